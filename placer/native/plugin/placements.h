// Stored placements: what Python activates, and which one a graph of the runtime belongs to.
#ifndef PLACER_NATIVE_PLUGIN_PLACEMENTS_H_
#define PLACER_NATIVE_PLUGIN_PLACEMENTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "placer/native/plugin/graph_view.h"

namespace placer::plugin {

// One activated placement. Immutable, shared by all threads.
struct StoredPlacement {
  int64_t id = 0;
  std::string fingerprint;
  std::vector<std::string> devices;
  std::vector<std::string> ops;
  std::vector<int32_t> device_of_op;
  // Index into op_types per op; empty if the placement does not carry op types.
  std::vector<std::string> op_types;
  std::vector<int32_t> type_of_op;
  // Data inputs of op i: inputs[input_begin[i] .. input_begin[i + 1]); empty if not carried.
  std::vector<int32_t> input_begin;
  std::vector<int32_t> inputs;
  std::unordered_map<std::string_view, int32_t> index;  // By name, into ops.
  std::unordered_set<std::string_view> leaves;          // Names without their scopes.

  // Parses protos/placement.proto and checks every index. False and why in `error` otherwise.
  bool Parse(std::string_view bytes, std::string* error);

  int32_t Find(std::string_view name) const {
    const auto found = index.find(name);
    return found == index.end() ? -1 : found->second;
  }
  std::string_view TypeOf(int32_t op) const {
    return type_of_op.empty() ? std::string_view() : std::string_view(op_types[type_of_op[op]]);
  }
};

using PlacementList = std::vector<std::shared_ptr<const StoredPlacement>>;

// Where each node of a graph belongs.
struct Match {
  // Per node: index into `placements` and the op in it; op -1 where nothing is known of the node.
  std::vector<std::pair<int32_t, int32_t>> op_of_node;
  PlacementList placements;  // Those used.
  double share = 0;          // Of the graph's own nodes that are known.
  bool ambiguous = false;    // Several placements fit equally well and name different devices.
};

// Which placement, if any, `graph` belongs to.
//
// A node counts as known if the placement has an op of its name and type; Grappler may have folded
// it to a Const, an Identity or a NoOp or fused it, which keeps the name. A node whose name starts
// with that of a function call or functional loop ("while/body/_9/MatMul") came from its body and
// counts as that op. The whole graph matches
// if at least kMinShare of its own nodes (no arguments, no nodes that Grappler added) are known and
// at least kMinEdgeShare of the edges among them are edges of the placement's graph too. Failing
// that, functions inlined under a prefix ("StatefulPartitionedCall/...") are tried the same way,
// each on its own. Of several that match, the best share wins; of equals, the last activated if
// they are of the same graph, else none.
Match FindMatch(const GraphView& graph, const PlacementList& active);

inline constexpr double kMinShare = 0.6;
inline constexpr double kMinEdgeShare = 0.6;

}  // namespace placer::plugin

#endif  // PLACER_NATIVE_PLUGIN_PLACEMENTS_H_
