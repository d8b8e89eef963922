#include "bounds.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "transfer_bound.h"

namespace placer {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Sums are taken in another order than in a run; stay below it.
constexpr double kShrink = 1 - 1e-9;

// Ops that share a device: a colocation group, or one op.
struct Unit {
  int32_t first_op = -1;  // caller's
  int64_t persistent = 0;
  std::vector<int32_t> ops;  // executed, internal
};

// A lower bound of the fractional assignment problem
//   min M  such that  sum_u x[u, d] seconds[u, d] <= concurrency[d] M,  sum_d x[u, d] = 1.
// For any prices y >= 0 with sum_d concurrency[d] y[d] = 1 its dual gives
//   M >= sum_u min_d y[d] seconds[u, d];
// a multiplicative-weights ascent looks for good ones. Whatever it finds is a bound.
class WorkBound {
 public:
  WorkBound(std::vector<double> seconds, std::vector<double> concurrency)
      : seconds_(std::move(seconds)), concurrency_(std::move(concurrency)) {}

  double Solve() {
    const size_t columns = concurrency_.size();
    std::vector<double> share(columns, 1.0 / static_cast<double>(columns)), load(columns);
    double best = 0;
    for (int step = 0; step < kSteps; ++step) {
      const double value = Evaluate(share, &load);
      if (value > best) {
        best = value;
        best_share_ = share;
      }
      // Dearer where the load per unit of capacity is above the average.
      const double highest = *std::max_element(load.begin(), load.end());
      if (columns == 1 || !(highest > 0)) break;
      const double rate = 2.0 / std::sqrt(1.0 + step);
      double total = 0;
      for (size_t d = 0; d < columns; ++d) {
        share[d] = std::max(share[d] * std::exp(rate * load[d] / highest), 1e-12);
        total += share[d];
      }
      for (double& s : share) s /= total;
    }
    return best;
  }

  // What each row contributes to the best bound found: these add up to it.
  std::vector<double> Contributions() const {
    const size_t columns = concurrency_.size();
    std::vector<double> values(seconds_.size() / columns, 0.0);
    if (best_share_.empty()) return values;
    for (size_t u = 0; u < values.size(); ++u) {
      double least = kInfinity;
      for (size_t d = 0; d < columns; ++d) {
        least = std::min(least, best_share_[d] / concurrency_[d] * seconds_[u * columns + d]);
      }
      values[u] = least;
    }
    return values;
  }

 private:
  static constexpr int kSteps = 200;

  // Prices are share / concurrency. `load` is each column's load per unit of capacity.
  double Evaluate(const std::vector<double>& share, std::vector<double>* load) const {
    const size_t columns = concurrency_.size();
    std::fill(load->begin(), load->end(), 0.0);
    double total = 0;
    for (size_t u = 0; u + columns <= seconds_.size(); u += columns) {
      size_t cheapest = 0;
      double least = kInfinity;
      for (size_t d = 0; d < columns; ++d) {
        const double price = share[d] / concurrency_[d] * seconds_[u + d];
        if (price < least) {
          least = price;
          cheapest = d;
        }
      }
      total += least;
      (*load)[cheapest] += seconds_[u + cheapest] / concurrency_[cheapest];
    }
    return total;
  }

  std::vector<double> seconds_;      // [units, columns], infinite where not allowed
  std::vector<double> concurrency_;  // [columns]
  std::vector<double> best_share_;   // [columns]
};

// Ops that cannot start before `head` and leave at least `tail` behind them share the time between:
// step >= head + tail + the work bound of these ops, for any prices. Tries a grid of both.
double WindowBound(const std::vector<double>& heads, const std::vector<double>& tails,
                   const std::vector<double>& work) {
  constexpr size_t kGrid = 128;
  const auto thresholds = [](std::vector<double> values) {
    std::sort(values.begin(), values.end());
    std::vector<double> grid;
    for (size_t g = 0; g < kGrid; ++g) grid.push_back(values[g * values.size() / kGrid]);
    return grid;
  };
  if (work.empty()) return 0;
  const std::vector<double> head_grid = thresholds(heads), tail_grid = thresholds(tails);
  const auto cell = [](const std::vector<double>& grid, double value) {
    return std::upper_bound(grid.begin(), grid.end(), value) - grid.begin() - 1;
  };
  std::vector<double> sum((kGrid + 1) * (kGrid + 1), 0.0);
  for (size_t i = 0; i < work.size(); ++i) {
    sum[cell(head_grid, heads[i]) * (kGrid + 1) + cell(tail_grid, tails[i])] += work[i];
  }
  double best = 0;
  for (size_t h = kGrid; h-- > 0;) {
    double row = 0;
    for (size_t t = kGrid; t-- > 0;) {
      double& at = sum[h * (kGrid + 1) + t];
      row += at;
      at = row + sum[(h + 1) * (kGrid + 1) + t];
      if (at > 0) best = std::max(best, head_grid[h] + tail_grid[t] + at);
    }
  }
  return best;
}

std::vector<Unit> MakeUnits(const Model& model, const int32_t* colocation) {
  std::vector<Unit> units;
  std::map<int32_t, size_t> unit_of_group;
  for (int32_t i = 0; i < model.num_all_ops; ++i) {
    size_t unit = units.size();
    if (colocation != nullptr && colocation[i] >= 0) {
      unit = unit_of_group.emplace(colocation[i], unit).first->second;
    }
    if (unit == units.size()) {
      units.emplace_back();
      units.back().first_op = i;
    }
    units[unit].persistent += model.persistent_bytes[i];
    if (model.id_of[i] >= 0) units[unit].ops.push_back(model.id_of[i]);
  }
  for (Unit& unit : units) std::sort(unit.ops.begin(), unit.ops.end());
  return units;
}

}  // namespace

LowerBound ComputeLowerBound(const Model& model, const bool* allowed, const int32_t* colocation) {
  const int32_t devices = model.num_devices;
  LowerBound bound;
  std::vector<Unit> units = MakeUnits(model, colocation);
  // Devices that every op of a unit may use.
  std::vector<char> usable(units.size() * devices, 1);
  if (allowed != nullptr) {
    std::map<int32_t, size_t> unit_of_group;
    size_t next = 0;
    for (int32_t i = 0; i < model.num_all_ops; ++i) {
      size_t unit = next;
      if (colocation != nullptr && colocation[i] >= 0) {
        unit = unit_of_group.emplace(colocation[i], next).first->second;
      }
      if (unit == next) ++next;
      for (int32_t d = 0; d < devices; ++d) {
        if (!allowed[static_cast<int64_t>(i) * devices + d]) usable[unit * devices + d] = 0;
      }
    }
  }

  // Critical path, colocation, and the work of each unit on each device.
  std::vector<double> seconds, least(model.num_ops);
  for (size_t u = 0; u < units.size(); ++u) {
    const Unit& unit = units[u];
    const char* may = &usable[u * devices];
    if (std::find(may, may + devices, 1) == may + devices) {
      throw std::invalid_argument("op " + std::to_string(unit.first_op) +
                                  ", with those colocated with it, has no allowed device");
    }
    if (unit.ops.empty()) continue;
    double shortest = kInfinity;
    for (int32_t d = 0; d < devices; ++d) {
      double sum = kInfinity;
      if (may[d]) {
        sum = 0;
        for (int32_t op : unit.ops) sum += model.costs[model.kind_of_device[d]][op].seconds;
        shortest = std::min(shortest, sum / model.concurrency[d]);
      }
      seconds.push_back(sum);
    }
    bound.colocation_seconds = std::max(bound.colocation_seconds, shortest);
    for (int32_t op : unit.ops) {
      least[op] = kInfinity;
      for (int32_t d = 0; d < devices; ++d) {
        if (may[d]) {
          least[op] = std::min(least[op], model.costs[model.kind_of_device[d]][op].seconds);
        }
      }
    }
  }
  // Longest chains of least times before and behind each op.
  std::vector<double> heads(model.num_ops, 0.0), tails(model.num_ops, 0.0);
  for (int32_t id = model.num_ops; id-- > 0;) {
    for (int32_t o = model.ranges[id].output_begin; o < model.ranges[id + 1].output_begin; ++o) {
      for (int32_t j = model.outputs[o].consumer_begin; j < model.outputs[o].consumer_end; ++j) {
        const int32_t next = model.consumers[j];
        tails[id] = std::max(tails[id], least[next] + tails[next]);
      }
    }
    bound.critical_path_seconds = std::max(bound.critical_path_seconds, least[id] + tails[id]);
  }
  for (int32_t id = 0; id < model.num_ops; ++id) {
    for (int32_t o = model.ranges[id].output_begin; o < model.ranges[id + 1].output_begin; ++o) {
      for (int32_t j = model.outputs[o].consumer_begin; j < model.outputs[o].consumer_end; ++j) {
        double& head = heads[model.consumers[j]];
        head = std::max(head, heads[id] + least[id]);
      }
    }
  }
  const std::vector<double> concurrency(model.concurrency.begin(), model.concurrency.end());
  bound.work_seconds = WorkBound(std::move(seconds), concurrency).Solve();
  std::vector<double> op_seconds(static_cast<size_t>(model.num_ops) * devices, kInfinity);
  for (size_t u = 0; u < units.size(); ++u) {
    for (int32_t op : units[u].ops) {
      for (int32_t d = 0; d < devices; ++d) {
        if (!usable[u * devices + d]) continue;
        op_seconds[static_cast<size_t>(op) * devices + d] =
            model.costs[model.kind_of_device[d]][op].seconds;
      }
    }
  }
  WorkBound op_work(std::move(op_seconds), concurrency);
  op_work.Solve();
  std::vector<char> op_usable(static_cast<size_t>(model.num_ops) * devices);
  std::vector<int32_t> op_group(model.num_ops, -1);
  for (size_t u = 0; u < units.size(); ++u) {
    for (int32_t op : units[u].ops) {
      std::copy_n(&usable[u * devices], devices, &op_usable[static_cast<size_t>(op) * devices]);
      op_group[op] = static_cast<int32_t>(u);
    }
  }
  const TransferBound transfers = ComputeTransferBound(model, op_usable, op_group);
  bound.transfer_seconds = transfers.seconds * kShrink;
  for (int32_t id = 0; id < model.num_ops; ++id) {
    heads[id] = std::max(heads[id], transfers.heads[id]);
    tails[id] = std::max(tails[id], transfers.tails[id]);
  }
  bound.window_seconds = WindowBound(heads, tails, op_work.Contributions());
  bound.critical_path_seconds *= kShrink;
  bound.work_seconds *= kShrink;
  bound.window_seconds *= kShrink;
  bound.colocation_seconds *= kShrink;

  // Memory: what has to live somewhere whatever the placement.
  double persistent = 0, limits = 0;
  for (int32_t d = 0; d < devices; ++d) limits += static_cast<double>(model.memory_limit[d]);
  for (size_t u = 0; u < units.size() && bound.memory_problem.empty(); ++u) {
    const Unit& unit = units[u];
    persistent += static_cast<double>(unit.persistent);
    bool fits = false;
    int64_t needed = std::numeric_limits<int64_t>::max();
    for (int32_t d = 0; d < devices; ++d) {
      if (!usable[u * devices + d]) continue;
      int64_t most = 0;  // an op with what it allocates itself, beside the persistent bytes
      for (int32_t op : unit.ops) {
        most = std::max(most, model.costs[model.kind_of_device[d]][op].start_bytes);
      }
      needed = std::min(needed, unit.persistent + most);
      fits = fits || unit.persistent + most <= model.memory_limit[d];
    }
    if (!fits) {
      bound.memory_problem = "op " + std::to_string(unit.first_op) +
                             ", with those colocated with it, needs " + std::to_string(needed) +
                             " bytes on one device and fits on none it may use";
    }
  }
  if (bound.memory_problem.empty() && persistent > limits) {
    bound.memory_problem = "the persistent bytes of all ops, " +
                           std::to_string(static_cast<int64_t>(persistent)) +
                           ", exceed the memory of all devices, " +
                           std::to_string(static_cast<int64_t>(limits));
  }
  return bound;
}

}  // namespace placer
