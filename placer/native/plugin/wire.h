// Reads the protobuf wire format in place, without protobuf: the pass touches a handful of fields
// and copies everything else byte for byte.
#ifndef PLACER_NATIVE_PLUGIN_WIRE_H_
#define PLACER_NATIVE_PLUGIN_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace placer::plugin {

enum class WireType : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// One field of a message. `begin` and `end` delimit its tag and payload within the message.
struct Field {
  uint32_t number = 0;
  WireType type = WireType::kVarint;
  uint64_t varint = 0;       // kVarint
  std::string_view bytes;    // kBytes
  size_t begin = 0;
  size_t end = 0;

  bool IsBytes(uint32_t n) const { return number == n && type == WireType::kBytes; }
  bool IsVarint(uint32_t n) const { return number == n && type == WireType::kVarint; }
};

// Walks the fields of one message. `Next` returns false at the end and at the first malformed
// byte; `ok` tells which of the two it was.
class WireReader {
 public:
  explicit WireReader(std::string_view message) : message_(message) {}

  bool Next(Field* field);
  bool ok() const { return ok_; }

 private:
  bool ReadVarint(uint64_t* value);
  bool Fail() {
    ok_ = false;
    return false;
  }

  std::string_view message_;
  size_t position_ = 0;
  bool ok_ = true;
};

// Reads a repeated varint field that may be packed: calls `add(value)` for each element.
// Returns false if the packed payload is malformed.
template <typename Add>
bool ReadRepeatedVarint(const Field& field, Add add) {
  if (field.type == WireType::kVarint) {
    add(field.varint);
    return true;
  }
  if (field.type != WireType::kBytes) return false;
  const std::string_view data = field.bytes;
  size_t position = 0;
  while (position < data.size()) {
    uint64_t value = 0;
    int shift = 0;
    for (;;) {
      if (position >= data.size() || shift > 63) return false;
      const uint8_t byte = static_cast<uint8_t>(data[position++]);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) break;
      shift += 7;
    }
    add(value);
  }
  return true;
}

void AppendVarint(uint64_t value, std::string* out);
void AppendBytesField(uint32_t number, std::string_view bytes, std::string* out);

}  // namespace placer::plugin

#endif  // PLACER_NATIVE_PLUGIN_WIRE_H_
