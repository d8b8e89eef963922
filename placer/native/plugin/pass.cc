#include "placer/native/plugin/pass.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "placer/native/plugin/device_name.h"
#include "placer/native/plugin/heuristic.h"

namespace placer::plugin {
namespace {

using Clock = std::chrono::steady_clock;

// Interned full device names.
class DeviceTable {
 public:
  int32_t Add(const std::string& name) {
    const auto [entry, added] = index_.emplace(name, static_cast<int32_t>(names.size()));
    if (added) {
      names.push_back(name);
      exists_.push_back(0);
    }
    return entry->second;
  }
  // The full name that `name` stands for, if it is one that exists; else -1.
  int32_t FindExisting(const DeviceName& name) const {
    if (!name.IsFull()) return -1;
    const auto found = index_.find(name.ToString());
    return found == index_.end() || !exists_[found->second] ? -1 : found->second;
  }
  void MarkExisting(const std::string& text) {
    DeviceName name;
    if (!DeviceName::Parse(text, &name) || !name.IsFull()) return;
    exists_[Add(name.ToString())] = 1;
  }

  std::vector<std::string> names;

 private:
  std::unordered_map<std::string, int32_t> index_;
  std::vector<char> exists_;
};

struct Job {
  const GraphView& graph;
  const Knowledge& knowledge;
  DeviceTable devices;
  std::vector<DeviceName> parsed;         // Of each distinct current device.
  std::vector<int32_t> device_of_node;    // Current, into `parsed`; -1 if none.
  std::vector<int32_t> target_of_node;    // Into devices.names; -1: stays.
  std::vector<Reason> reason;             // Why a node stays.
};

void ReadDevices(Job* job) {
  std::unordered_map<std::string_view, int32_t> seen;
  job->device_of_node.assign(job->graph.nodes.size(), -1);
  for (int32_t i = 0; i < job->graph.size(); ++i) {
    const std::string_view text = job->graph.nodes[i].device;
    if (text.empty()) continue;
    const auto [entry, added] = seen.emplace(text, static_cast<int32_t>(job->parsed.size()));
    if (added) {
      DeviceName name;
      if (!DeviceName::Parse(text, &name)) name = DeviceName();
      job->parsed.push_back(name);
      if (name.IsFull()) job->devices.MarkExisting(name.ToString());
    }
    job->device_of_node[i] = entry->second;
  }
}

bool HasKernel(const Job& job, int32_t node, const std::string& from, const std::string& to) {
  if (from == to) return true;
  const KernelRegistry* kernels = job.knowledge.kernels ? job.knowledge.kernels() : nullptr;
  return kernels != nullptr && kernels->HasKernel(*job.knowledge.ops, job.graph, node, to);
}

// Nodes that the placement does not know wish for what their unit wishes for.
void FollowUnits(Job* job, const Units& units) {
  constexpr int32_t kNone = -1;
  constexpr int32_t kTorn = -2;
  std::vector<int32_t> target(units.count, kNone);
  for (int32_t i = 0; i < job->graph.size(); ++i) {
    const int32_t wish = job->target_of_node[i];
    if (wish < 0) continue;
    int32_t& common = target[units.unit_of_node[i]];
    common = common == kNone || common == wish ? wish : kTorn;
  }
  for (int32_t i = 0; i < job->graph.size(); ++i) {
    const int32_t unit = units.unit_of_node[i];
    if (job->reason[i] == Reason::kUnknown && units.pinned[unit] == Reason::kNone &&
        target[unit] >= 0) {
      job->target_of_node[i] = target[unit];
      job->reason[i] = Reason::kNone;
    }
  }
}

// Constants that Grappler added go where all their consumers go: no transfer, no surprise.
void FollowConsumers(Job* job, const std::vector<char>& known) {
  std::vector<int32_t> wanted(job->graph.nodes.size(), -1);
  constexpr int32_t kTorn = -2;
  for (int32_t i = 0; i < job->graph.size(); ++i) {
    const NodeView& node = job->graph.nodes[i];
    for (int32_t e = node.first_edge; e < node.first_edge + node.num_edges; ++e) {
      const Edge& edge = job->graph.edges[e];
      if (edge.producer < 0 || edge.port < 0 || known[edge.producer]) continue;
      int32_t& wish = wanted[edge.producer];
      const int32_t target = job->target_of_node[i];
      wish = target < 0 || (wish != -1 && wish != target) ? kTorn : target;
    }
  }
  for (int32_t i = 0; i < job->graph.size(); ++i) {
    if (!known[i] && wanted[i] >= 0 && job->graph.nodes[i].op == "Const") {
      job->target_of_node[i] = wanted[i];
      job->reason[i] = Reason::kNone;
    }
  }
}

// From wishes to what is done: a unit moves whole or stays whole.
void SettleUnits(Job* job, const Units& units) {
  constexpr int32_t kNone = -1;
  constexpr int32_t kTorn = -2;
  std::vector<int32_t> target(units.count, kNone);
  std::vector<Reason> reason(units.count, Reason::kNone);
  for (int32_t i = 0; i < job->graph.size(); ++i) {
    const int32_t unit = units.unit_of_node[i];
    const int32_t wish = job->target_of_node[i];
    if (wish < 0) {
      // One that names a device which does not exist keeps its unit back; an unknown one follows.
      if (job->reason[i] == Reason::kNoDevice) reason[unit] = Reason::kNoDevice;
      continue;
    }
    if (target[unit] == kNone) target[unit] = wish;
    if (target[unit] != wish) target[unit] = kTorn;
  }
  std::vector<std::string> target_type(job->devices.names.size());
  for (size_t d = 0; d < job->devices.names.size(); ++d) {
    DeviceName name;
    if (DeviceName::Parse(job->devices.names[d], &name)) target_type[d] = name.type;
  }
  // A pinned unit whose nodes are all where they belong is no exception worth telling.
  for (int32_t u = 0; u < units.count; ++u) {
    if (reason[u] == Reason::kNone && target[u] == kTorn) reason[u] = Reason::kUnitDisagrees;
    if (units.pinned[u] != Reason::kNone) reason[u] = units.pinned[u];
  }
  for (int32_t i = 0; i < job->graph.size(); ++i) {
    const int32_t unit = units.unit_of_node[i];
    if (reason[unit] != Reason::kNone || target[unit] < 0) continue;
    const int32_t from = job->device_of_node[i];
    if (!HasKernel(*job, i, from < 0 ? "" : job->parsed[from].type, target_type[target[unit]])) {
      reason[unit] = Reason::kNoKernel;
    }
  }
  for (int32_t i = 0; i < job->graph.size(); ++i) {
    const int32_t unit = units.unit_of_node[i];
    if (reason[unit] == Reason::kNone && target[unit] >= 0) {
      job->target_of_node[i] = target[unit];
      job->reason[i] = Reason::kNone;
    } else if (job->target_of_node[i] >= 0) {
      // Where it is may be where it belongs all the same.
      const int32_t from = job->device_of_node[i];
      const bool there = from >= 0 && job->parsed[from].IsFull() &&
                         job->parsed[from].ToString() ==
                             job->devices.names[job->target_of_node[i]];
      if (!there) {
        job->target_of_node[i] = -1;
        job->reason[i] = reason[unit];
      }
    } else if (reason[unit] != Reason::kNone && job->reason[i] == Reason::kUnknown &&
               units.pinned[unit] != Reason::kNone) {
      job->reason[i] = units.pinned[unit];
    }
  }
}

void ApplyPlacements(Job* job, const Match& match) {
  // What each device of each placement stands for, by the device that the node is on now.
  std::map<std::pair<int32_t, int32_t>, std::vector<int32_t>> resolved;
  std::vector<char> known(job->graph.nodes.size(), 0);
  for (int32_t i = 0; i < job->graph.size(); ++i) {
    const auto [which, op] = match.op_of_node[i];
    job->reason[i] = Reason::kUnknown;
    if (op < 0) continue;
    known[i] = 1;
    const StoredPlacement& placement = *match.placements[which];
    const int32_t from = job->device_of_node[i];
    std::vector<int32_t>& targets = resolved[{which, from}];
    if (targets.empty()) {
      for (const std::string& text : placement.devices) {
        DeviceName name;
        DeviceName::Parse(text, &name);
        if (from >= 0) name.FillHost(job->parsed[from]);
        targets.push_back(job->devices.FindExisting(name));
      }
    }
    job->target_of_node[i] = targets[placement.device_of_op[op]];
    job->reason[i] = job->target_of_node[i] < 0 ? Reason::kNoDevice : Reason::kNone;
  }
  const Units units = FindUnits(job->graph, *job->knowledge.ops);
  FollowUnits(job, units);
  FollowConsumers(job, known);
  SettleUnits(job, units);
}

// Accelerators if there are any of the session's, else its CPUs.
std::vector<int32_t> HeuristicDevices(const Job& job) {
  std::vector<int32_t> cpus, others;
  for (size_t d = 0; d < job.devices.names.size(); ++d) {
    DeviceName name;
    if (!DeviceName::Parse(job.devices.names[d], &name) || job.devices.FindExisting(name) < 0) {
      continue;
    }
    if (name.type == "CPU") cpus.push_back(static_cast<int32_t>(d));
    if (name.type == "GPU") others.push_back(static_cast<int32_t>(d));
  }
  return others.empty() ? cpus : others;
}

void ApplyHeuristic(Job* job, const HeuristicOptions& options, Clock::time_point start,
                    GraphRecord* record) {
  const auto deadline =
      start + std::chrono::duration_cast<Clock::duration>(
                  std::chrono::duration<double>(options.limit_seconds));
  std::fill(job->reason.begin(), job->reason.end(), Reason::kNoGain);
  std::vector<int32_t> usable = HeuristicDevices(*job);
  if (usable.size() < 2) return;
  std::sort(usable.begin(), usable.end(), [job](int32_t a, int32_t b) {
    return job->devices.names[a] < job->devices.names[b];
  });
  const Units units = FindUnits(job->graph, *job->knowledge.ops);
  // Devices in the heuristic's numbering; those of pinned nodes come after the usable ones.
  std::vector<std::string> names;
  std::unordered_map<std::string, int32_t> number;
  for (const int32_t d : usable) {
    number[job->devices.names[d]] = static_cast<int32_t>(names.size());
    names.push_back(job->devices.names[d]);
  }
  // Units whose nodes TensorFlow has put on several devices stay as they are.
  std::vector<int32_t> unit_device(units.count, -1);
  std::vector<char> torn(units.count, 0);
  for (int32_t i = 0; i < job->graph.size(); ++i) {
    const int32_t from = job->device_of_node[i];
    if (from < 0 || !job->parsed[from].IsFull()) continue;
    const std::string name = job->parsed[from].ToString();
    const auto [entry, added] = number.emplace(name, static_cast<int32_t>(names.size()));
    if (added) names.push_back(name);
    const int32_t u = units.unit_of_node[i];
    if (unit_device[u] >= 0 && unit_device[u] != entry->second) torn[u] = 1;
    unit_device[u] = entry->second;
  }
  for (int32_t& device : unit_device) device = std::max(device, 0);
  std::vector<std::string> types;
  for (const std::string& name : names) {
    DeviceName parsed;
    DeviceName::Parse(name, &parsed);
    types.push_back(parsed.type);
  }
  std::vector<std::vector<char>> allowed(units.count, std::vector<char>(names.size(), 0));
  for (int32_t u = 0; u < units.count; ++u) {
    if (units.pinned[u] == Reason::kNone && !torn[u]) {
      std::fill(allowed[u].begin(), allowed[u].begin() + static_cast<int64_t>(usable.size()), 1);
    }
    allowed[u][unit_device[u]] = 1;
  }
  for (int32_t i = 0; i < job->graph.size(); ++i) {
    const int32_t u = units.unit_of_node[i];
    const int32_t here = unit_device[u];
    for (size_t d = 0; d < names.size(); ++d) {
      if (static_cast<int32_t>(d) == here || !allowed[u][d]) continue;
      if (!HasKernel(*job, i, types[here], types[d])) allowed[u][d] = 0;
    }
    if (Clock::now() > deadline) return;
  }
  const HeuristicResult result =
      PlaceHeuristically(job->graph, units, unit_device, names, allowed, deadline);
  record->predicted_before = result.seconds_before;
  record->predicted_after = result.seconds_after;
  if (result.device_of_unit.empty()) return;
  for (int32_t i = 0; i < job->graph.size(); ++i) {
    const int32_t unit = units.unit_of_node[i];
    job->reason[i] = torn[unit] ? Reason::kUnitDisagrees : units.pinned[unit];
    if (job->reason[i] != Reason::kNone) continue;
    job->target_of_node[i] = job->devices.Add(names[result.device_of_unit[unit]]);
  }
}

bool Run(std::string_view graph_bytes, const PlacementList& active,
         const HeuristicOptions& heuristic, const std::vector<std::string>& session_devices,
         const Knowledge& knowledge, std::string* out, GraphRecord* record) {
  const Clock::time_point start = Clock::now();
  GraphView graph;
  std::string error;
  if (!graph.Parse(graph_bytes, &error)) {
    record->outcome = "error: " + error;
    return false;
  }
  record->nodes = graph.size();
  const Match match = FindMatch(graph, active);
  record->share = match.share;
  if (match.ambiguous) {
    record->outcome = "ambiguous";
    return false;
  }
  if (match.placements.empty() && !heuristic.enabled) {
    record->outcome = "no match";
    return false;
  }
  Job job{graph, knowledge, {}, {}, {}, {}, {}};
  job.target_of_node.assign(graph.nodes.size(), -1);
  job.reason.assign(graph.nodes.size(), Reason::kNone);
  ReadDevices(&job);
  for (const std::string& name : session_devices) job.devices.MarkExisting(name);
  if (!match.placements.empty()) {
    record->outcome = "matched";
    for (const auto& placement : match.placements) record->placements.push_back(placement->id);
    ApplyPlacements(&job, match);
  } else {
    record->outcome = "heuristic";
    record->heuristic = true;
    ApplyHeuristic(&job, heuristic, start, record);
  }
  std::vector<int32_t> rewrite(graph.nodes.size(), -1);
  for (int32_t i = 0; i < graph.size(); ++i) {
    const int32_t target = job.target_of_node[i];
    if (target < 0) {
      ++record->left[static_cast<size_t>(job.reason[i])];
      record->left_nodes.emplace_back(graph.nodes[i].name, job.reason[i]);
    } else if (job.devices.names[target] == graph.nodes[i].device) {
      ++record->in_place;
    } else {
      rewrite[i] = target;
      ++record->moved;
    }
  }
  if (record->moved == 0) return false;
  *out = graph.WithDevices(rewrite, job.devices.names);
  return true;
}

}  // namespace

bool RunPass(std::string_view graph_bytes, const PlacementList& active,
             const HeuristicOptions& heuristic, const std::vector<std::string>& session_devices,
             const Knowledge& knowledge, std::string* out, GraphRecord* record) {
  try {
    return Run(graph_bytes, active, heuristic, session_devices, knowledge, out, record);
  } catch (const std::exception& error) {
    record->outcome = std::string("error: ") + error.what();
    record->moved = 0;
    return false;
  }
}

}  // namespace placer::plugin
