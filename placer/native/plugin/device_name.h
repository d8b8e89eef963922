// Device names: /job:worker/replica:0/task:1/device:GPU:0 and shorter spellings of them.
#ifndef PLACER_NATIVE_PLUGIN_DEVICE_NAME_H_
#define PLACER_NATIVE_PLUGIN_DEVICE_NAME_H_

#include <string>
#include <string_view>

namespace placer::plugin {

struct DeviceName {
  std::string job;
  std::string replica;
  std::string task;
  std::string type;  // Upper case for CPU and GPU.
  std::string index;

  // Parses a full or partial name in TensorFlow's syntax (device_name_utils.cc); a wildcard leaves
  // its field empty. False if it is no device name.
  static bool Parse(std::string_view text, DeviceName* name);

  bool IsFull() const {
    return !job.empty() && !replica.empty() && !task.empty() && !type.empty() && !index.empty();
  }
  // Takes job, replica and task from `other` where this name has none.
  void FillHost(const DeviceName& other);
  std::string ToString() const;
};

}  // namespace placer::plugin

#endif  // PLACER_NATIVE_PLUGIN_DEVICE_NAME_H_
