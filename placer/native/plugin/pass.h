// The pass: a graph in, the same graph with other devices out.
#ifndef PLACER_NATIVE_PLUGIN_PASS_H_
#define PLACER_NATIVE_PLUGIN_PASS_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "placer/native/plugin/constraints.h"
#include "placer/native/plugin/placements.h"
#include "placer/native/plugin/registry.h"

namespace placer::plugin {

// What is known of op types and kernels. `kernels` may be null: then no node changes its device
// type.
struct Knowledge {
  const OpRegistry* ops = nullptr;
  const KernelRegistry* (*kernels)() = nullptr;
};

struct HeuristicOptions {
  bool enabled = false;
  double limit_seconds = 0.2;
};

// What the pass did with one graph.
struct GraphRecord {
  int64_t nodes = 0;
  std::vector<int64_t> placements;  // Ids of those that matched.
  bool heuristic = false;
  double share = 0;
  int64_t moved = 0;
  int64_t in_place = 0;  // Already where they belong.
  double seconds = 0;    // Of the whole call, as its caller measures it.
  std::array<int64_t, static_cast<size_t>(Reason::kCount)> left{};
  std::vector<std::pair<std::string, Reason>> left_nodes;
  std::string outcome;  // "matched", "heuristic", "no match", "ambiguous", "error: ..."
  double predicted_before = 0;  // Heuristic only, seconds.
  double predicted_after = 0;
};

// Runs the pass. Returns true and fills `out` if any node moved; otherwise the graph stands as it
// is. `session_devices` may be empty: then only devices that the graph already uses count as
// existing. Never throws.
bool RunPass(std::string_view graph_bytes, const PlacementList& active,
             const HeuristicOptions& heuristic, const std::vector<std::string>& session_devices,
             const Knowledge& knowledge, std::string* out, GraphRecord* record);

}  // namespace placer::plugin

#endif  // PLACER_NATIVE_PLUGIN_PASS_H_
