#include "placer/native/plugin/device_name.h"

#include <algorithm>
#include <cctype>

namespace placer::plugin {
namespace {

std::string Upper(std::string_view text) {
  std::string upper(text);
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return upper;
}

bool IsWord(std::string_view text) {
  if (text.empty()) return false;
  for (const char c : text) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_') return false;
  }
  return true;
}

bool IsNumber(std::string_view text) {
  if (text.empty() || text.size() > 9) return false;
  for (const char c : text) {
    if (c < '0' || c > '9') return false;
  }
  return true;
}

// A number, or "*" which leaves `field` empty.
bool SetNumber(std::string_view text, std::string* field) {
  field->clear();
  if (text == "*") return true;
  if (!IsNumber(text)) return false;
  *field = text;
  return true;
}

}  // namespace

bool DeviceName::Parse(std::string_view text, DeviceName* name) {
  *name = DeviceName();
  while (!text.empty()) {
    if (text[0] != '/') return false;
    const size_t end = std::min(text.find('/', 1), text.size());
    const std::string_view part = text.substr(1, end - 1);
    text.remove_prefix(end);
    const size_t colon = part.find(':');
    const std::string_view key = part.substr(0, colon);
    const std::string_view value =
        colon == std::string_view::npos ? std::string_view() : part.substr(colon + 1);
    if (key == "job") {
      if (!IsWord(value)) return false;
      name->job = value;
    } else if (key == "replica") {
      if (!SetNumber(value, &name->replica)) return false;
    } else if (key == "task") {
      if (!SetNumber(value, &name->task)) return false;
    } else if (key == "device") {
      const size_t second = value.find(':');
      const std::string_view type = value.substr(0, second);
      if (type != "*") {
        if (!IsWord(type)) return false;
        const std::string upper = Upper(type);
        name->type = upper == "CPU" || upper == "GPU" ? upper : std::string(type);
      }
      if (second != std::string_view::npos &&
          !SetNumber(value.substr(second + 1), &name->index)) {
        return false;
      }
    } else {  // The old spelling: /cpu:0
      const std::string upper = Upper(key);
      if (upper != "CPU" && upper != "GPU") return false;
      name->type = upper;
      if (colon != std::string_view::npos && !SetNumber(value, &name->index)) return false;
    }
  }
  return true;
}

void DeviceName::FillHost(const DeviceName& other) {
  if (job.empty()) job = other.job;
  if (replica.empty()) replica = other.replica;
  if (task.empty()) task = other.task;
}

std::string DeviceName::ToString() const {
  return "/job:" + job + "/replica:" + replica + "/task:" + task + "/device:" + type + ":" + index;
}

}  // namespace placer::plugin
