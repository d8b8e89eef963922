#include "placer/native/plugin/shapes.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <unordered_set>

#include "placer/native/plugin/wire.h"

namespace placer::plugin {
namespace {

// Field numbers of attr_value.proto, tensor.proto, tensor_shape.proto.
constexpr uint32_t kAttrShape = 7;
constexpr uint32_t kAttrTensor = 8;
constexpr uint32_t kAttrList = 1;
constexpr uint32_t kListShape = 7;
constexpr uint32_t kTensorShape = 2;
constexpr uint32_t kShapeDim = 2;
constexpr uint32_t kDimSize = 1;

constexpr int64_t kOpenDimension = 32;
constexpr double kUnknownElements = 4096;
constexpr double kFlopsPerSecond = 2e10;  // One CPU core, roughly; only ratios matter.
constexpr double kBytesPerSecond = 5e9;
constexpr double kLaunchSeconds = 3e-6;
constexpr double kBytesPerElement = 4;

bool ParseShape(std::string_view bytes, Shape* shape) {
  shape->clear();
  WireReader reader(bytes);
  Field field;
  while (reader.Next(&field)) {
    if (!field.IsBytes(kShapeDim)) {
      if (field.IsVarint(3) && field.varint != 0) return false;  // unknown_rank
      continue;
    }
    int64_t size = 0;
    WireReader dim(field.bytes);
    Field part;
    while (dim.Next(&part)) {
      if (part.IsVarint(kDimSize)) size = static_cast<int64_t>(part.varint);
    }
    shape->push_back(size < 0 ? kOpenDimension : size);
    if (shape->size() > 16) return false;
  }
  return reader.ok();
}

bool ShapeOfAttr(std::string_view attr, Shape* shape) {
  WireReader reader(attr);
  Field field;
  while (reader.Next(&field)) {
    if (field.IsBytes(kAttrShape)) return ParseShape(field.bytes, shape);
    const bool tensor = field.IsBytes(kAttrTensor);
    if (!tensor && !field.IsBytes(kAttrList)) continue;
    WireReader inner(field.bytes);
    Field part;
    while (inner.Next(&part)) {
      if (part.IsBytes(tensor ? kTensorShape : kListShape)) return ParseShape(part.bytes, shape);
    }
    // A TensorProto without a shape is a scalar.
    shape->clear();
    return tensor;
  }
  return false;
}

double Elements(const Shape& shape) {
  double product = 1;
  for (const int64_t size : shape) product *= static_cast<double>(std::max<int64_t>(size, 0));
  return product;
}

const std::unordered_set<std::string_view>& FreeOps() {
  static const auto* const ops = new std::unordered_set<std::string_view>{
      "Const",    "NoOp",        "Identity",     "ReadVariableOp", "VarHandleOp", "Reshape",
      "Squeeze",  "ExpandDims",  "Shape",        "StopGradient",   "_Arg",        "_Retval",
      "Placeholder", "VariableV2", "IdentityN",  "ControlTrigger"};
  return *ops;
}

}  // namespace

NodeCosts EstimateCosts(const GraphView& graph, const std::vector<int32_t>& order) {
  const size_t n = graph.nodes.size();
  std::vector<Shape> shapes(n);
  std::vector<char> known(n, 0);
  NodeCosts costs;
  costs.seconds.assign(n, kLaunchSeconds);
  costs.bytes.assign(n, kUnknownElements * kBytesPerElement);
  for (const int32_t i : order) {
    const NodeView& node = graph.nodes[i];
    Shape& shape = shapes[i];
    for (const char* key : {"_output_shapes", "_handle_shapes", "value", "shape"}) {
      const std::string_view attr = graph.Attr(i, key);
      if (attr.data() != nullptr && ShapeOfAttr(attr, &shape)) {
        known[i] = 1;
        break;
      }
    }
    int32_t in[3] = {-1, -1, -1};
    int inputs = 0;
    int32_t largest = -1;
    double read = 0;
    for (int32_t e = node.first_edge; e < node.first_edge + node.num_edges; ++e) {
      const Edge& edge = graph.edges[e];
      if (edge.producer < 0 || edge.port < 0) continue;
      if (inputs < 3) in[inputs++] = edge.producer;
      read += costs.bytes[edge.producer];
      if (largest < 0 || costs.bytes[edge.producer] > costs.bytes[largest]) {
        largest = edge.producer;
      }
    }
    const bool two = inputs >= 2 && known[in[0]] && known[in[1]];
    double flops = 0;
    if (node.op == "MatMul" || node.op == "_FusedMatMul") {
      const Shape* a = two ? &shapes[in[0]] : nullptr;
      const Shape* b = two ? &shapes[in[1]] : nullptr;
      if (two && a->size() == 2 && b->size() == 2) {
        const bool ta = AttrBool(graph.Attr(i, "transpose_a"));
        const double m = static_cast<double>((*a)[ta ? 1 : 0]);
        const double k = static_cast<double>((*a)[ta ? 0 : 1]);
        const double columns = k > 0 ? Elements(*b) / k : 0;
        flops = 2 * m * k * columns;
        if (!known[i]) shape = {static_cast<int64_t>(m), static_cast<int64_t>(columns)};
        known[i] = 1;
      } else {
        flops = 1e6;
      }
    } else if (node.op == "Conv2D" || node.op == "_FusedConv2D") {
      if (two && shapes[in[0]].size() == 4 && shapes[in[1]].size() == 4) {
        const Shape& image = shapes[in[0]];
        const Shape& kernel = shapes[in[1]];
        if (!known[i]) shape = {image[0], image[1], image[2], kernel[3]};
        known[i] = 1;
        flops = 2 * Elements(shape) * Elements(kernel) /
                static_cast<double>(std::max<int64_t>(kernel[3], 1));
      } else {
        flops = 2e7;
      }
    } else if (node.op == "Conv2DBackpropFilter" || node.op == "Conv2DBackpropInput" ||
               node.op == "BatchMatMulV2" || node.op == "BatchMatMul") {
      flops = 1e7;
    } else if (!known[i] && largest >= 0 && known[largest]) {
      shape = shapes[largest];  // Elementwise, or near enough.
      known[i] = 1;
    }
    if (known[i]) costs.bytes[i] = Elements(shape) * kBytesPerElement;
    if (FreeOps().count(node.op) == 0) {
      costs.seconds[i] += flops / kFlopsPerSecond + (read + costs.bytes[i]) / kBytesPerSecond;
    }
  }
  return costs;
}

}  // namespace placer::plugin
