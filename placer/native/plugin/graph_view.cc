#include "placer/native/plugin/graph_view.h"

#include <limits>

#include "placer/native/plugin/wire.h"

namespace placer::plugin {
namespace {

// Field numbers of graph.proto, node_def.proto, function.proto, op_def.proto, attr_value.proto.
constexpr uint32_t kGraphNode = 1;
constexpr uint32_t kGraphLibrary = 2;
constexpr uint32_t kLibraryFunction = 1;
constexpr uint32_t kFunctionSignature = 1;
constexpr uint32_t kOpDefName = 1;
constexpr uint32_t kNodeName = 1;
constexpr uint32_t kNodeOp = 2;
constexpr uint32_t kNodeInput = 3;
constexpr uint32_t kNodeDevice = 4;
constexpr uint32_t kNodeAttr = 5;
constexpr uint32_t kAttrList = 1;
constexpr uint32_t kAttrS = 2;
constexpr uint32_t kAttrI = 3;
constexpr uint32_t kAttrB = 5;
constexpr uint32_t kAttrType = 6;
constexpr uint32_t kListS = 2;
constexpr uint32_t kListType = 6;

// Last value of a bytes field of `message`; false if the message is malformed.
bool LastBytes(std::string_view message, uint32_t number, std::string_view* value) {
  WireReader reader(message);
  Field field;
  while (reader.Next(&field)) {
    if (field.IsBytes(number)) *value = field.bytes;
  }
  return reader.ok();
}

// Splits "name:3" and "^name".
void SplitInput(std::string_view input, std::string_view* name, int32_t* port) {
  if (!input.empty() && input[0] == '^') {
    *name = input.substr(1);
    *port = -1;
    return;
  }
  *name = input;
  *port = 0;
  const size_t colon = input.rfind(':');
  if (colon == std::string_view::npos || colon + 1 == input.size()) return;
  int64_t value = 0;
  for (size_t i = colon + 1; i < input.size(); ++i) {
    if (input[i] < '0' || input[i] > '9') return;
    value = value * 10 + (input[i] - '0');
    if (value > std::numeric_limits<int32_t>::max()) return;
  }
  *name = input.substr(0, colon);
  *port = static_cast<int32_t>(value);
}

}  // namespace

bool GraphView::ParseNode(NodeView* node, std::vector<std::string_view>* inputs) {
  node->first_attr = static_cast<int32_t>(attrs.size());
  WireReader reader(node->payload);
  Field field;
  while (reader.Next(&field)) {
    if (field.type != WireType::kBytes) continue;
    switch (field.number) {
      case kNodeName: node->name = field.bytes; break;
      case kNodeOp: node->op = field.bytes; break;
      case kNodeInput: inputs->push_back(field.bytes); break;
      case kNodeDevice: node->device = field.bytes; break;
      case kNodeAttr: {
        AttrView attr;
        WireReader entry(field.bytes);
        Field part;
        while (entry.Next(&part)) {
          if (part.IsBytes(1)) attr.key = part.bytes;
          if (part.IsBytes(2)) attr.value = part.bytes;
        }
        if (!entry.ok()) return false;
        attrs.push_back(attr);
        break;
      }
      default: break;
    }
  }
  node->num_attrs = static_cast<int32_t>(attrs.size()) - node->first_attr;
  return reader.ok();
}

bool GraphView::Parse(std::string_view graph, std::string* error) {
  bytes_ = graph;
  nodes.clear();
  edges.clear();
  attrs.clear();
  functions.clear();
  index_.clear();
  std::vector<std::string_view> inputs;
  WireReader reader(graph);
  Field field;
  while (reader.Next(&field)) {
    if (field.IsBytes(kGraphNode)) {
      NodeView node;
      node.payload = field.bytes;
      node.begin = field.begin;
      node.end = field.end;
      node.first_edge = static_cast<int32_t>(inputs.size());
      if (!ParseNode(&node, &inputs)) {
        *error = "a NodeDef is malformed";
        return false;
      }
      node.num_edges = static_cast<int32_t>(inputs.size()) - node.first_edge;
      nodes.push_back(node);
    } else if (field.IsBytes(kGraphLibrary)) {
      WireReader library(field.bytes);
      Field function;
      while (library.Next(&function)) {
        if (!function.IsBytes(kLibraryFunction)) continue;
        std::string_view signature, name;
        if (!LastBytes(function.bytes, kFunctionSignature, &signature) ||
            !LastBytes(signature, kOpDefName, &name)) {
          *error = "a FunctionDef is malformed";
          return false;
        }
        functions.insert(name);
      }
      if (!library.ok()) {
        *error = "the function library is malformed";
        return false;
      }
    }
  }
  if (!reader.ok()) {
    *error = "the bytes are no GraphDef";
    return false;
  }
  index_.reserve(nodes.size() * 2);
  for (int32_t i = 0; i < size(); ++i) {
    if (!index_.emplace(nodes[i].name, i).second) {
      *error = "two nodes are called " + std::string(nodes[i].name);
      return false;
    }
  }
  edges.resize(inputs.size());
  for (size_t e = 0; e < inputs.size(); ++e) {
    std::string_view name;
    SplitInput(inputs[e], &name, &edges[e].port);
    edges[e].producer = Find(name);
  }
  return true;
}

int32_t GraphView::Find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? -1 : found->second;
}

std::string_view GraphView::Attr(int32_t node, std::string_view key) const {
  const NodeView& view = nodes[node];
  for (int32_t a = view.first_attr + view.num_attrs - 1; a >= view.first_attr; --a) {
    if (attrs[a].key == key) return attrs[a].value;
  }
  return {};
}

std::string GraphView::WithDevices(const std::vector<int32_t>& device_of,
                                   const std::vector<std::string>& devices) const {
  std::string out;
  out.reserve(bytes_.size() + bytes_.size() / 8 + 1024);
  size_t copied = 0;
  std::string rewritten;
  for (int32_t i = 0; i < size(); ++i) {
    if (device_of[i] < 0) continue;
    const NodeView& node = nodes[i];
    out.append(bytes_.substr(copied, node.begin - copied));
    rewritten.clear();
    WireReader reader(node.payload);
    Field field;
    while (reader.Next(&field)) {
      if (field.IsBytes(kNodeDevice)) continue;
      rewritten.append(node.payload.substr(field.begin, field.end - field.begin));
    }
    AppendBytesField(kNodeDevice, devices[device_of[i]], &rewritten);
    AppendBytesField(kGraphNode, rewritten, &out);
    copied = node.end;
  }
  out.append(bytes_.substr(copied));
  return out;
}

int64_t AttrInt(std::string_view attr, int64_t fallback) {
  WireReader reader(attr);
  Field field;
  int64_t value = fallback;
  while (reader.Next(&field)) {
    if (field.IsVarint(kAttrI)) value = static_cast<int64_t>(field.varint);
  }
  return reader.ok() ? value : fallback;
}

std::vector<int32_t> AttrTypes(std::string_view attr) {
  std::vector<int32_t> types;
  const auto add = [&types](uint64_t v) { types.push_back(static_cast<int32_t>(v)); };
  WireReader reader(attr);
  Field field;
  while (reader.Next(&field)) {
    if (field.IsVarint(kAttrType)) {
      types.assign(1, static_cast<int32_t>(field.varint));
    } else if (field.IsBytes(kAttrList)) {
      WireReader list(field.bytes);
      Field element;
      while (list.Next(&element)) {
        if (element.number == kListType && !ReadRepeatedVarint(element, add)) return {};
      }
      if (!list.ok()) return {};
    }
  }
  return types;
}

bool AttrBool(std::string_view attr) {
  WireReader reader(attr);
  Field field;
  bool value = false;
  while (reader.Next(&field)) {
    if (field.IsVarint(kAttrB)) value = field.varint != 0;
  }
  return value;
}

std::vector<std::string_view> AttrStrings(std::string_view attr) {
  std::vector<std::string_view> strings;
  WireReader reader(attr);
  Field field;
  while (reader.Next(&field)) {
    if (field.IsBytes(kAttrS)) {
      strings.push_back(field.bytes);
    } else if (field.IsBytes(kAttrList)) {
      WireReader list(field.bytes);
      Field element;
      while (list.Next(&element)) {
        if (element.IsBytes(kListS)) strings.push_back(element.bytes);
      }
    }
  }
  return strings;
}

std::string_view AttrString(std::string_view attr) {
  const std::vector<std::string_view> strings = AttrStrings(attr);
  return strings.empty() ? std::string_view() : strings.back();
}

}  // namespace placer::plugin
