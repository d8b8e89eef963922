#include "placer/native/plugin/wire.h"

namespace placer::plugin {

bool WireReader::ReadVarint(uint64_t* value) {
  *value = 0;
  for (int shift = 0; shift <= 63; shift += 7) {
    if (position_ >= message_.size()) return false;
    const uint8_t byte = static_cast<uint8_t>(message_[position_++]);
    *value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if ((byte & 0x80) == 0) return true;
  }
  return false;
}

bool WireReader::Next(Field* field) {
  if (!ok_ || position_ >= message_.size()) return false;
  field->begin = position_;
  field->varint = 0;
  field->bytes = {};
  uint64_t tag = 0;
  if (!ReadVarint(&tag)) return Fail();
  const uint64_t number = tag >> 3;
  if (number == 0 || number > 536870911) return Fail();
  field->number = static_cast<uint32_t>(number);
  const size_t left = message_.size() - position_;
  switch (tag & 7) {
    case 0:
      field->type = WireType::kVarint;
      if (!ReadVarint(&field->varint)) return Fail();
      break;
    case 1:
      field->type = WireType::kFixed64;
      if (left < 8) return Fail();
      position_ += 8;
      break;
    case 2: {
      field->type = WireType::kBytes;
      uint64_t size = 0;
      if (!ReadVarint(&size)) return Fail();
      if (size > message_.size() - position_) return Fail();
      field->bytes = message_.substr(position_, static_cast<size_t>(size));
      position_ += static_cast<size_t>(size);
      break;
    }
    case 5:
      field->type = WireType::kFixed32;
      if (left < 4) return Fail();
      position_ += 4;
      break;
    default:  // Groups; TensorFlow's messages have none.
      return Fail();
  }
  field->end = position_;
  return true;
}

void AppendVarint(uint64_t value, std::string* out) {
  while (value >= 0x80) {
    out->push_back(static_cast<char>((value & 0x7f) | 0x80));
    value >>= 7;
  }
  out->push_back(static_cast<char>(value));
}

void AppendBytesField(uint32_t number, std::string_view bytes, std::string* out) {
  AppendVarint((static_cast<uint64_t>(number) << 3) | 2, out);
  AppendVarint(bytes.size(), out);
  out->append(bytes);
}

}  // namespace placer::plugin
