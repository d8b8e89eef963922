// Places a graph without a stored placement: fast, crude, bounded in time.
#ifndef PLACER_NATIVE_PLUGIN_HEURISTIC_H_
#define PLACER_NATIVE_PLUGIN_HEURISTIC_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "placer/native/plugin/constraints.h"
#include "placer/native/plugin/graph_view.h"

namespace placer::plugin {

struct HeuristicResult {
  std::vector<int32_t> device_of_unit;  // Empty: leave the graph as it is.
  double seconds_before = 0;            // Step time by the crude model.
  double seconds_after = 0;
};

// Proposes a device of `devices` for each unit and returns the best of: everything where it is, a
// contiguous balanced split of the topological order, and a list schedule by upward rank (earliest
// finish time, Topcuoglu et al. 2002), by one crude simulation: seconds by op type and tensor
// shapes, one op at a time on a device, transfers at a fixed latency and rate.
//
// `unit_device[u]` is where unit u is now, `allowed(u, d)` whether it may be on device d. Nothing
// is returned unless the gain is at least 10 %.
HeuristicResult PlaceHeuristically(const GraphView& graph, const Units& units,
                                   const std::vector<int32_t>& unit_device,
                                   const std::vector<std::string>& devices,
                                   const std::vector<std::vector<char>>& allowed,
                                   std::chrono::steady_clock::time_point deadline);

}  // namespace placer::plugin

#endif  // PLACER_NATIVE_PLUGIN_HEURISTIC_H_
