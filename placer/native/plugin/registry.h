// What TensorFlow knows of op types and kernels, read once through its C API.
#ifndef PLACER_NATIVE_PLUGIN_REGISTRY_H_
#define PLACER_NATIVE_PLUGIN_REGISTRY_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "placer/native/plugin/graph_view.h"

namespace placer::plugin {

struct ArgDef {
  int32_t type = 0;  // 0: given by an attribute.
  bool is_ref = false;
  std::string type_attr;
  std::string number_attr;
  std::string type_list_attr;
};

struct OpDef {
  std::vector<ArgDef> outputs;
  bool is_stateful = false;
  // Attributes of kind type or list(type) with a default.
  std::unordered_map<std::string, std::vector<int32_t>> default_types;
};

// Op types by name. Immutable once parsed.
class OpRegistry {
 public:
  // Parses a serialized OpList; false if it is malformed.
  bool Parse(std::string_view op_list);

  // The definition of an op type, or null.
  const OpDef* Find(std::string_view op) const;

  // DataType of output `port` of a node, plus kRefOffset for a reference; 0 if unknown.
  int32_t OutputType(const GraphView& graph, int32_t node, int32_t port) const;

  bool empty() const { return ops_.empty(); }

 private:
  std::unordered_map<std::string, OpDef> ops_;
};

// Kernels by op type and device type. Immutable once parsed.
class KernelRegistry {
 public:
  // Parses a serialized KernelList; false if it is malformed.
  bool Parse(std::string_view kernel_list);

  // Whether `node` can run on a device of type `device_type` ("CPU", "GPU"): FindKernelDef of
  // tensorflow/core/framework/op_kernel.cc.
  bool HasKernel(const OpRegistry& ops, const GraphView& graph, int32_t node,
                 std::string_view device_type) const;

 private:
  struct Constraint {
    std::string attr;
    std::vector<int32_t> allowed;
  };
  struct Kernel {
    std::string device_type;
    std::string label;
    std::vector<Constraint> constraints;
  };
  std::unordered_map<std::string, std::vector<Kernel>> kernels_;
};

}  // namespace placer::plugin

#endif  // PLACER_NATIVE_PLUGIN_REGISTRY_H_
