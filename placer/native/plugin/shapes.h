// Output shapes of nodes as far as a glance at the graph tells, for crude costs only.
#ifndef PLACER_NATIVE_PLUGIN_SHAPES_H_
#define PLACER_NATIVE_PLUGIN_SHAPES_H_

#include <cstdint>
#include <vector>

#include "placer/native/plugin/graph_view.h"

namespace placer::plugin {

using Shape = std::vector<int64_t>;

struct NodeCosts {
  std::vector<double> seconds;  // Per node.
  std::vector<double> bytes;    // Of a node's first output.
};

// Walks `order` once. Shapes come from constants, variables and `_output_shapes`, and spread
// through matrix products, convolutions and elementwise ops; a batch dimension left open counts
// as 32. What stays unknown counts as a tensor of 4096 elements.
NodeCosts EstimateCosts(const GraphView& graph, const std::vector<int32_t>& order);

}  // namespace placer::plugin

#endif  // PLACER_NATIVE_PLUGIN_SHAPES_H_
