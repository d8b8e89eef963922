#include "placer/native/plugin/registry.h"

#include <algorithm>

#include "placer/native/plugin/wire.h"

namespace placer::plugin {
namespace {

// Field numbers of op_def.proto and kernel_def.proto.
constexpr uint32_t kOpListOp = 1;
constexpr uint32_t kOpName = 1;
constexpr uint32_t kOpOutputArg = 3;
constexpr uint32_t kOpAttr = 4;
constexpr uint32_t kOpIsStateful = 17;
constexpr uint32_t kArgType = 3;
constexpr uint32_t kArgTypeAttr = 4;
constexpr uint32_t kArgNumberAttr = 5;
constexpr uint32_t kArgTypeListAttr = 6;
constexpr uint32_t kArgIsRef = 16;
constexpr uint32_t kAttrDefName = 1;
constexpr uint32_t kAttrDefDefault = 3;
constexpr uint32_t kKernelListKernel = 1;
constexpr uint32_t kKernelOp = 1;
constexpr uint32_t kKernelDeviceType = 2;
constexpr uint32_t kKernelConstraint = 3;
constexpr uint32_t kKernelLabel = 5;
constexpr uint32_t kConstraintName = 1;
constexpr uint32_t kConstraintAllowed = 2;

bool ParseArg(std::string_view bytes, ArgDef* arg) {
  WireReader reader(bytes);
  Field field;
  while (reader.Next(&field)) {
    if (field.IsVarint(kArgType)) arg->type = static_cast<int32_t>(field.varint);
    if (field.IsVarint(kArgIsRef)) arg->is_ref = field.varint != 0;
    if (field.IsBytes(kArgTypeAttr)) arg->type_attr = field.bytes;
    if (field.IsBytes(kArgNumberAttr)) arg->number_attr = field.bytes;
    if (field.IsBytes(kArgTypeListAttr)) arg->type_list_attr = field.bytes;
  }
  return reader.ok();
}

bool ParseOp(std::string_view bytes, std::string* name, OpDef* op) {
  WireReader reader(bytes);
  Field field;
  while (reader.Next(&field)) {
    if (field.IsBytes(kOpName)) {
      *name = field.bytes;
    } else if (field.IsBytes(kOpOutputArg)) {
      op->outputs.emplace_back();
      if (!ParseArg(field.bytes, &op->outputs.back())) return false;
    } else if (field.IsBytes(kOpAttr)) {
      WireReader attr(field.bytes);
      Field part;
      std::string key;
      std::vector<int32_t> types;
      while (attr.Next(&part)) {
        if (part.IsBytes(kAttrDefName)) key = part.bytes;
        if (part.IsBytes(kAttrDefDefault)) types = AttrTypes(part.bytes);
      }
      if (!attr.ok()) return false;
      if (!types.empty()) op->default_types[key] = types;
    } else if (field.IsVarint(kOpIsStateful)) {
      op->is_stateful = field.varint != 0;
    }
  }
  return reader.ok();
}

std::vector<int32_t> NodeTypes(const OpDef* op, const GraphView& graph, int32_t node,
                               const std::string& key) {
  const std::string_view attr = graph.Attr(node, key);
  if (attr.data() != nullptr) return AttrTypes(attr);
  if (op != nullptr) {
    const auto found = op->default_types.find(key);
    if (found != op->default_types.end()) return found->second;
  }
  return {};
}

}  // namespace

bool OpRegistry::Parse(std::string_view op_list) {
  ops_.clear();
  WireReader reader(op_list);
  Field field;
  while (reader.Next(&field)) {
    if (!field.IsBytes(kOpListOp)) continue;
    std::string name;
    OpDef op;
    if (!ParseOp(field.bytes, &name, &op)) return false;
    ops_[name] = std::move(op);
  }
  return reader.ok();
}

const OpDef* OpRegistry::Find(std::string_view op) const {
  const auto found = ops_.find(std::string(op));
  return found == ops_.end() ? nullptr : &found->second;
}

int32_t OpRegistry::OutputType(const GraphView& graph, int32_t node, int32_t port) const {
  const OpDef* op = Find(graph.nodes[node].op);
  if (op == nullptr || port < 0) return 0;
  int64_t next = 0;
  for (const ArgDef& arg : op->outputs) {
    int64_t count = 1;
    std::vector<int32_t> types;
    if (!arg.type_list_attr.empty()) {
      types = NodeTypes(op, graph, node, arg.type_list_attr);
      count = static_cast<int64_t>(types.size());
    } else {
      if (!arg.number_attr.empty()) count = AttrInt(graph.Attr(node, arg.number_attr), -1);
      if (count < 0) return 0;
    }
    if (port < next + count) {
      int32_t type = arg.type;
      if (!types.empty()) {
        type = types[port - next];
      } else if (type == 0) {
        const std::vector<int32_t> one = NodeTypes(op, graph, node, arg.type_attr);
        type = one.size() == 1 ? one[0] : 0;
      }
      return type != 0 && arg.is_ref && type < kRefOffset ? type + kRefOffset : type;
    }
    next += count;
  }
  return 0;
}

bool KernelRegistry::Parse(std::string_view kernel_list) {
  kernels_.clear();
  WireReader reader(kernel_list);
  Field field;
  while (reader.Next(&field)) {
    if (!field.IsBytes(kKernelListKernel)) continue;
    std::string op;
    Kernel kernel;
    WireReader parts(field.bytes);
    Field part;
    while (parts.Next(&part)) {
      if (part.IsBytes(kKernelOp)) op = part.bytes;
      if (part.IsBytes(kKernelDeviceType)) kernel.device_type = part.bytes;
      if (part.IsBytes(kKernelLabel)) kernel.label = part.bytes;
      if (part.IsBytes(kKernelConstraint)) {
        Constraint constraint;
        WireReader inner(part.bytes);
        Field element;
        while (inner.Next(&element)) {
          if (element.IsBytes(kConstraintName)) constraint.attr = element.bytes;
          if (element.IsBytes(kConstraintAllowed)) constraint.allowed = AttrTypes(element.bytes);
        }
        if (!inner.ok()) return false;
        kernel.constraints.push_back(std::move(constraint));
      }
    }
    if (!parts.ok()) return false;
    kernels_[op].push_back(std::move(kernel));
  }
  return reader.ok();
}

bool KernelRegistry::HasKernel(const OpRegistry& ops, const GraphView& graph, int32_t node,
                               std::string_view device_type) const {
  const auto found = kernels_.find(std::string(graph.nodes[node].op));
  if (found == kernels_.end()) return false;
  const OpDef* op = ops.Find(graph.nodes[node].op);
  const std::string_view label = AttrString(graph.Attr(node, "_kernel"));
  for (const std::string_view wanted : {device_type, std::string_view("DEFAULT")}) {
    for (const Kernel& kernel : found->second) {
      if (kernel.device_type != wanted || kernel.label != label) continue;
      const bool holds = std::all_of(
          kernel.constraints.begin(), kernel.constraints.end(), [&](const Constraint& c) {
            const std::vector<int32_t> types = NodeTypes(op, graph, node, c.attr);
            return std::all_of(types.begin(), types.end(), [&](int32_t type) {
              return std::find(c.allowed.begin(), c.allowed.end(), type) != c.allowed.end();
            });
          });
      if (holds) return true;
    }
  }
  return false;
}

}  // namespace placer::plugin
