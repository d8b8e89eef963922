#include "placer/native/plugin/heuristic.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <queue>

#include "placer/native/plugin/shapes.h"

namespace placer::plugin {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kTransferLatency = 1e-4;
constexpr double kTransferBytesPerSecond = 1e9;
constexpr double kMinGain = 0.10;

double TransferSeconds(double bytes) {
  return kTransferLatency + bytes / kTransferBytesPerSecond;
}

// Nodes in execution order with their costs; a unit is one or more of them.
struct Model {
  const GraphView& graph;
  const Units& units;
  NodeCosts costs;
  int32_t num_devices;
};

template <typename Visit>
void ForEachProducer(const GraphView& graph, int32_t i, Visit visit) {
  const NodeView& node = graph.nodes[i];
  for (int32_t e = node.first_edge; e < node.first_edge + node.num_edges; ++e) {
    const Edge& edge = graph.edges[e];
    if (edge.producer >= 0) visit(edge.producer, edge.port < 0);
  }
}

// Seconds of one step with nodes started in `order` and one transfer at a time out of a device.
double Simulate(const Model& model, const std::vector<int32_t>& order,
                const std::vector<int32_t>& device_of_unit) {
  const size_t n = model.graph.nodes.size();
  std::vector<double> finish(n, 0);
  std::vector<double> free_at(model.num_devices, 0);
  std::vector<double> wire_free_at(model.num_devices, 0);
  // arrival[i * D + d]: when node i's output is on device d; negative if not sent.
  std::vector<double> arrival(n * model.num_devices, -1);
  double end = 0;
  for (const int32_t i : order) {
    const int32_t device = device_of_unit[model.units.unit_of_node[i]];
    double ready = 0;
    ForEachProducer(model.graph, i, [&](int32_t p, bool control) {
      const int32_t from = device_of_unit[model.units.unit_of_node[p]];
      if (from == device) {
        ready = std::max(ready, finish[p]);
        return;
      }
      double& arrived = arrival[static_cast<size_t>(p) * model.num_devices + device];
      if (arrived < 0) {
        const double start = std::max(finish[p], wire_free_at[from]);
        arrived = start + TransferSeconds(control ? 0 : model.costs.bytes[p]);
        wire_free_at[from] = arrived;
      }
      ready = std::max(ready, arrived);
    });
    finish[i] = std::max(ready, free_at[device]) + model.costs.seconds[i];
    free_at[device] = finish[i];
    end = std::max(end, finish[i]);
  }
  return end;
}

std::vector<double> UpwardRanks(const Model& model) {
  std::vector<double> rank(model.graph.nodes.size(), 0);
  const std::vector<int32_t>& order = model.units.order;
  std::vector<int32_t> position(model.graph.nodes.size(), 0);
  for (size_t k = 0; k < order.size(); ++k) position[order[k]] = static_cast<int32_t>(k);
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    rank[*it] += model.costs.seconds[*it];
    ForEachProducer(model.graph, *it, [&](int32_t p, bool) {
      if (position[p] < position[*it]) rank[p] = std::max(rank[p], rank[*it]);
    });
  }
  return rank;
}

// Producers first, and among ready nodes the highest rank first.
std::vector<int32_t> RankOrder(const Model& model, const std::vector<double>& rank) {
  std::vector<int32_t> order = model.units.order;
  std::vector<int32_t> position(model.graph.nodes.size(), 0);
  for (size_t k = 0; k < order.size(); ++k) position[order[k]] = static_cast<int32_t>(k);
  // A producer's rank is at least its consumers', so sorting by rank keeps the order; ties fall
  // back on the topological order.
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return rank[a] != rank[b] ? rank[a] > rank[b] : position[a] < position[b];
  });
  return order;
}

}  // namespace

HeuristicResult PlaceHeuristically(const GraphView& graph, const Units& units,
                                   const std::vector<int32_t>& unit_device,
                                   const std::vector<std::string>& devices,
                                   const std::vector<std::vector<char>>& allowed,
                                   Clock::time_point deadline) {
  HeuristicResult result;
  const int32_t num_devices = static_cast<int32_t>(devices.size());
  const Model model{graph, units, EstimateCosts(graph, units.order), num_devices};
  const std::vector<double> rank = UpwardRanks(model);
  const std::vector<int32_t> order = RankOrder(model, rank);
  const auto late = [&] { return Clock::now() > deadline; };

  result.seconds_before = Simulate(model, order, unit_device);
  result.seconds_after = result.seconds_before;
  std::vector<int32_t> best = unit_device;
  double best_seconds = result.seconds_before;
  const auto consider = [&](const std::vector<int32_t>& candidate) {
    const double seconds = Simulate(model, order, candidate);
    if (seconds < best_seconds) {
      best_seconds = seconds;
      best = candidate;
    }
  };

  // Contiguous pieces of about equal work, in topological order.
  double total = 0;
  for (const int32_t i : units.order) total += model.costs.seconds[i];
  std::vector<int32_t> split(units.count, -1);
  double done = 0;
  for (const int32_t i : order) {
    const int32_t unit = units.unit_of_node[i];
    if (split[unit] < 0) {
      const int32_t piece = std::min(num_devices - 1,
                                     static_cast<int32_t>(done / total * num_devices));
      split[unit] = allowed[unit][piece] ? piece : unit_device[unit];
    }
    done += model.costs.seconds[i];
  }
  for (int32_t u = 0; u < units.count; ++u) {
    if (split[u] < 0) split[u] = unit_device[u];
  }
  if (late()) return result;
  consider(split);

  // Earliest finish time. A unit goes where its first node would finish first.
  std::vector<int32_t> chosen(units.count, -1);
  for (int32_t u = 0; u < units.count; ++u) {
    if (units.pinned[u] != Reason::kNone) chosen[u] = unit_device[u];
  }
  std::vector<double> finish(graph.nodes.size(), 0);
  std::vector<double> free_at(num_devices, 0);
  std::vector<int32_t> device_of_node(graph.nodes.size(), 0);
  int64_t scheduled = 0;
  bool complete = true;
  for (const int32_t i : order) {
    if ((++scheduled & 255) == 0 && late()) {
      complete = false;
      break;
    }
    const int32_t unit = units.unit_of_node[i];
    double best_finish = std::numeric_limits<double>::infinity();
    int32_t best_device = unit_device[unit];
    for (int32_t d = 0; d < num_devices; ++d) {
      if (chosen[unit] >= 0 ? d != chosen[unit] : !allowed[unit][d]) continue;
      double ready = free_at[d];
      ForEachProducer(graph, i, [&](int32_t p, bool control) {
        const double transfer = device_of_node[p] == d
                                    ? 0
                                    : TransferSeconds(control ? 0 : model.costs.bytes[p]);
        ready = std::max(ready, finish[p] + transfer);
      });
      if (ready + model.costs.seconds[i] < best_finish) {
        best_finish = ready + model.costs.seconds[i];
        best_device = d;
      }
    }
    chosen[unit] = best_device;
    device_of_node[i] = best_device;
    finish[i] = best_finish;
    free_at[best_device] = best_finish;
  }
  if (complete) {
    for (int32_t u = 0; u < units.count; ++u) {
      if (chosen[u] < 0) chosen[u] = unit_device[u];
    }
    consider(chosen);
  }
  result.seconds_after = best_seconds;
  if (best_seconds <= (1 - kMinGain) * result.seconds_before) result.device_of_unit = best;
  return result;
}

}  // namespace placer::plugin
