#include "placer/native/plugin/placements.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>

#include "placer/native/plugin/constraints.h"
#include "placer/native/plugin/device_name.h"
#include "placer/native/plugin/wire.h"

namespace placer::plugin {
namespace {

// Field numbers of protos/placement.proto.
constexpr uint32_t kFingerprint = 1;
constexpr uint32_t kDevices = 2;
constexpr uint32_t kOps = 3;
constexpr uint32_t kDeviceOfOp = 4;
constexpr uint32_t kOpTypes = 7;
constexpr uint32_t kTypeOfOp = 8;
constexpr uint32_t kInputCount = 9;
constexpr uint32_t kInputs = 10;

constexpr int kMaxPrefixDepth = 8;
// Fewer nodes than these under a prefix are a coincidence.
constexpr int64_t kMinInlined = 3;

// Scopes of nodes that Grappler's optimizers add.
constexpr std::array<std::string_view, 9> kOptimizerScopes = {
    "ArithmeticOptimizer", "ConstantFolding", "DependencyOptimizer", "LayoutOptimizer",
    "LoopOptimizer",       "MemoryOptimizer", "Remapper",            "ShapeOptimizer",
    "AutoMixedPrecision"};

bool IsAddedName(std::string_view name) {
  const std::string_view scope = name.substr(0, name.find('/'));
  return std::find(kOptimizerScopes.begin(), kOptimizerScopes.end(), scope) !=
         kOptimizerScopes.end();
}

std::string_view LeafOf(std::string_view name) { return name.substr(name.rfind('/') + 1); }

bool IsBoundary(const NodeView& node) {
  return node.op == "_Arg" || node.op == "_Retval" || node.op == "NoOp";
}

bool StartsWith(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

enum class Kind { kNone, kSame, kRewritten };

// How well op `index` of the placement stands for a node of type `op`.
Kind Compare(const StoredPlacement& placement, int32_t index, std::string_view op) {
  if (index < 0) return Kind::kNone;
  const std::string_view type = placement.TypeOf(index);
  if (type.empty() || type == op) return Kind::kSame;
  // Folded, or fused with its neighbours, under its own name.
  if (op == "Const" || op == "Identity" || op == "NoOp" || StartsWith(op, "_Fused") ||
      StartsWith(op, "_Mkl")) {
    return Kind::kRewritten;
  }
  return Kind::kNone;
}

// The function call or functional loop of the placement that a node called `name` came from: the
// longest prefix of the name that is one. -1 if there is none.
int32_t CallerOf(const StoredPlacement& placement, std::string_view name) {
  for (size_t slash = name.rfind('/'); slash != std::string_view::npos && slash > 0;
       slash = name.rfind('/', slash - 1)) {
    const int32_t op = placement.Find(name.substr(0, slash));
    if (op >= 0 && CallsFunction(placement.TypeOf(op))) return op;
  }
  return -1;
}

struct Candidate {
  std::shared_ptr<const StoredPlacement> placement;
  std::vector<int32_t> op_of_node;  // -1 unknown
  double share = 0;
};

// Share of the edges among known nodes that the placement's graph has too; 1 if there are none.
double EdgeShare(const GraphView& graph, const StoredPlacement& placement,
                 const std::vector<int32_t>& op_of_node) {
  if (placement.input_begin.empty()) return 1;
  int64_t agree = 0;
  int64_t total = 0;
  for (int32_t i = 0; i < graph.size(); ++i) {
    const int32_t op = op_of_node[i];
    if (op < 0 || placement.TypeOf(op) != graph.nodes[i].op) continue;
    const auto begin = placement.inputs.begin() + placement.input_begin[op];
    const auto end = placement.inputs.begin() + placement.input_begin[op + 1];
    const NodeView& node = graph.nodes[i];
    for (int32_t e = node.first_edge; e < node.first_edge + node.num_edges; ++e) {
      const Edge& edge = graph.edges[e];
      if (edge.producer < 0 || edge.port < 0 || op_of_node[edge.producer] < 0) continue;
      ++total;
      agree += std::find(begin, end, op_of_node[edge.producer]) != end;
    }
  }
  return total == 0 ? 1 : static_cast<double>(agree) / static_cast<double>(total);
}

// The whole graph against one placement; an empty pointer if it does not match.
Candidate MatchWhole(const GraphView& graph, const std::shared_ptr<const StoredPlacement>& p) {
  Candidate candidate;
  candidate.op_of_node.assign(graph.nodes.size(), -1);
  const bool calls = std::any_of(p->op_types.begin(), p->op_types.end(), CallsFunction);
  int64_t own = 0;
  int64_t known = 0;
  for (int32_t i = 0; i < graph.size(); ++i) {
    const NodeView& node = graph.nodes[i];
    int32_t op = p->Find(node.name);
    bool same = Compare(*p, op, node.op) != Kind::kNone;
    if (!same && calls && op < 0) {
      op = CallerOf(*p, node.name);
      same = op >= 0;
    }
    if (same) candidate.op_of_node[i] = op;
    if (IsBoundary(node) || IsAddedName(node.name)) continue;
    ++own;
    known += same;
  }
  candidate.share = own == 0 ? 0 : static_cast<double>(known) / static_cast<double>(own);
  if (candidate.share >= kMinShare &&
      EdgeShare(graph, *p, candidate.op_of_node) >= kMinEdgeShare) {
    candidate.placement = p;
  }
  return candidate;
}

// Functions inlined under a prefix, against one placement.
Candidate MatchInlined(const GraphView& graph, const std::shared_ptr<const StoredPlacement>& p) {
  Candidate candidate;
  candidate.op_of_node.assign(graph.nodes.size(), -1);
  struct Region {
    int64_t nodes = 0;
    int64_t known = 0;
  };
  // Calls visit(prefix, rest) for every way to split a name at a slash.
  const auto for_each_split = [](std::string_view name, auto visit) {
    size_t slash = name.find('/');
    for (int depth = 0; depth < kMaxPrefixDepth && slash != std::string_view::npos; ++depth) {
      if (visit(name.substr(0, slash), name.substr(slash + 1))) return;
      slash = name.find('/', slash + 1);
    }
  };
  std::unordered_map<std::string_view, Region> regions;
  for (const NodeView& node : graph.nodes) {
    if (IsBoundary(node) || p->leaves.count(LeafOf(node.name)) == 0) continue;
    for_each_split(node.name, [&](std::string_view prefix, std::string_view rest) {
      if (Compare(*p, p->Find(rest), node.op) == Kind::kSame) ++regions[prefix].known;
      return false;
    });
  }
  for (auto region = regions.begin(); region != regions.end();) {
    region = region->second.known < kMinInlined ? regions.erase(region) : std::next(region);
  }
  if (regions.empty()) return candidate;
  for (const NodeView& node : graph.nodes) {
    if (IsBoundary(node)) continue;
    for_each_split(node.name, [&](std::string_view prefix, std::string_view) {
      const auto region = regions.find(prefix);
      if (region != regions.end()) ++region->second.nodes;
      return false;
    });
  }
  int64_t own = 0;
  int64_t known = 0;
  for (int32_t i = 0; i < graph.size(); ++i) {
    const NodeView& node = graph.nodes[i];
    if (IsBoundary(node) || IsAddedName(node.name)) continue;
    ++own;
    for_each_split(node.name, [&](std::string_view prefix, std::string_view rest) {
      const auto region = regions.find(prefix);
      if (region == regions.end() || static_cast<double>(region->second.known) <
                                         kMinShare * static_cast<double>(region->second.nodes)) {
        return false;
      }
      const int32_t op = p->Find(rest);
      if (op < 0) return false;
      candidate.op_of_node[i] = op;
      known += Compare(*p, op, node.op) != Kind::kNone;
      return true;
    });
  }
  candidate.share = own == 0 ? 0 : static_cast<double>(known) / static_cast<double>(own);
  if (known > 0 && EdgeShare(graph, *p, candidate.op_of_node) >= kMinEdgeShare) {
    candidate.placement = p;
  }
  return candidate;
}

std::string_view TargetOf(const Candidate& candidate, int32_t node) {
  const int32_t op = candidate.op_of_node[node];
  if (op < 0) return {};
  return candidate.placement->devices[candidate.placement->device_of_op[op]];
}

bool SameTargets(const GraphView& graph, const Candidate& a, const Candidate& b) {
  for (int32_t i = 0; i < graph.size(); ++i) {
    if (TargetOf(a, i) != TargetOf(b, i)) return false;
  }
  return true;
}

// For a node that Grappler added: the op it was made from, by the name it was given.
// "ConstantFolding/a/b-folded", "ArithmeticOptimizer/a/ReplaceMulWithSquare_b".
int32_t OriginOf(const StoredPlacement& placement, std::string_view name) {
  if (!IsAddedName(name)) return -1;
  const size_t first = name.find('/');
  if (first == std::string_view::npos) return -1;
  const std::string rest(name.substr(first + 1));
  int32_t op = placement.Find(rest);
  if (op >= 0) return op;
  for (size_t end = rest.find_last_of("-_"); end != std::string::npos && end > 0;
       end = rest.find_last_of("-_", end - 1)) {
    if (rest.find('/', end) != std::string::npos) break;
    op = placement.Find(std::string_view(rest).substr(0, end));
    if (op >= 0) return op;
  }
  const size_t slash = rest.rfind('/');
  const std::string scope = slash == std::string::npos ? "" : rest.substr(0, slash + 1);
  const std::string leaf = slash == std::string::npos ? rest : rest.substr(slash + 1);
  for (size_t begin = leaf.find('_'); begin != std::string::npos;
       begin = leaf.find('_', begin + 1)) {
    op = placement.Find(scope + leaf.substr(begin + 1));
    if (op >= 0) return op;
  }
  return -1;
}

}  // namespace

bool StoredPlacement::Parse(std::string_view bytes, std::string* error) {
  std::vector<int64_t> counts;
  const auto add_to = [](std::vector<int32_t>* values) {
    return [values](uint64_t v) {
      values->push_back(v > std::numeric_limits<int32_t>::max() ? -1 : static_cast<int32_t>(v));
    };
  };
  WireReader reader(bytes);
  Field field;
  bool well_formed = true;
  while (well_formed && reader.Next(&field)) {
    switch (field.number) {
      case kFingerprint:
        if (field.type == WireType::kBytes) fingerprint = field.bytes;
        break;
      case kDevices:
        if (field.type == WireType::kBytes) devices.emplace_back(field.bytes);
        break;
      case kOps:
        if (field.type == WireType::kBytes) ops.emplace_back(field.bytes);
        break;
      case kOpTypes:
        if (field.type == WireType::kBytes) op_types.emplace_back(field.bytes);
        break;
      case kDeviceOfOp: well_formed = ReadRepeatedVarint(field, add_to(&device_of_op)); break;
      case kTypeOfOp: well_formed = ReadRepeatedVarint(field, add_to(&type_of_op)); break;
      case kInputs: well_formed = ReadRepeatedVarint(field, add_to(&inputs)); break;
      case kInputCount:
        well_formed = ReadRepeatedVarint(
            field, [&](uint64_t v) { counts.push_back(static_cast<int64_t>(v & 0x7fffffff)); });
        break;
      default: break;
    }
  }
  if (!well_formed || !reader.ok()) {
    *error = "the bytes are no Placement message";
    return false;
  }
  const auto within = [](const std::vector<int32_t>& values, size_t size) {
    return std::all_of(values.begin(), values.end(),
                       [size](int32_t v) { return v >= 0 && static_cast<size_t>(v) < size; });
  };
  if (device_of_op.size() != ops.size() || !within(device_of_op, devices.size())) {
    *error = "device_of_op does not give a device for every op";
    return false;
  }
  if (!type_of_op.empty() &&
      (type_of_op.size() != ops.size() || !within(type_of_op, op_types.size()))) {
    *error = "op_type_of_op does not give a type for every op";
    return false;
  }
  if (!counts.empty()) {
    int64_t total = 0;
    input_begin.assign(1, 0);
    for (const int64_t count : counts) {
      total += count;
      if (total > static_cast<int64_t>(inputs.size())) break;
      input_begin.push_back(static_cast<int32_t>(total));
    }
    if (counts.size() != ops.size() || total != static_cast<int64_t>(inputs.size()) ||
        !within(inputs, ops.size())) {
      *error = "input_count and inputs do not belong together";
      return false;
    }
  }
  index.reserve(ops.size() * 2);
  for (size_t i = 0; i < ops.size(); ++i) {
    if (!index.emplace(ops[i], static_cast<int32_t>(i)).second) {
      *error = "op " + ops[i] + " is there twice";
      return false;
    }
    leaves.insert(LeafOf(ops[i]));
  }
  for (const std::string& device : devices) {
    DeviceName name;
    if (!DeviceName::Parse(device, &name) || name.type.empty() || name.index.empty()) {
      *error = "\"" + device + "\" names no device, such as /job:localhost/task:0/device:CPU:1";
      return false;
    }
  }
  return true;
}

Match FindMatch(const GraphView& graph, const PlacementList& active) {
  Match match;
  match.op_of_node.assign(graph.nodes.size(), {0, -1});
  const auto take = [&](const Candidate& candidate) {
    const int32_t which = static_cast<int32_t>(match.placements.size());
    match.placements.push_back(candidate.placement);
    for (int32_t i = 0; i < graph.size(); ++i) {
      if (candidate.op_of_node[i] >= 0) match.op_of_node[i] = {which, candidate.op_of_node[i]};
    }
  };

  Candidate best;
  for (const auto& placement : active) {  // In order of activation.
    if (placement->ops.empty()) continue;
    Candidate candidate = MatchWhole(graph, placement);
    if (candidate.placement == nullptr || candidate.share < best.share - 1e-9) continue;
    if (best.placement != nullptr && candidate.share <= best.share + 1e-9 &&
        candidate.placement->fingerprint != best.placement->fingerprint &&
        !SameTargets(graph, best, candidate)) {
      match.ambiguous = true;
    } else if (best.placement == nullptr || candidate.share > best.share + 1e-9) {
      match.ambiguous = false;
    }
    best = std::move(candidate);
  }
  if (match.ambiguous) return match;
  if (best.placement != nullptr) {
    match.share = best.share;
    take(best);
    for (int32_t i = 0; i < graph.size(); ++i) {
      int32_t& op = match.op_of_node[i].second;
      // In a graph known to be this one a name says enough: RealDiv becomes Mul under its own.
      if (op < 0) op = best.placement->Find(graph.nodes[i].name);
      if (op < 0) op = OriginOf(*best.placement, graph.nodes[i].name);
    }
    return match;
  }

  std::vector<Candidate> inlined;
  for (const auto& placement : active) {
    if (placement->ops.empty()) continue;
    Candidate candidate = MatchInlined(graph, placement);
    if (candidate.placement != nullptr) inlined.push_back(std::move(candidate));
  }
  // A node that two placements of different graphs claim for different devices stays unknown.
  std::vector<char> contested(graph.nodes.size(), 0);
  for (size_t a = 0; a < inlined.size(); ++a) {
    for (size_t b = a + 1; b < inlined.size(); ++b) {
      if (inlined[a].placement->fingerprint == inlined[b].placement->fingerprint) continue;
      for (int32_t i = 0; i < graph.size(); ++i) {
        const std::string_view first = TargetOf(inlined[a], i);
        const std::string_view second = TargetOf(inlined[b], i);
        if (!first.empty() && !second.empty() && first != second) contested[i] = 1;
      }
    }
  }
  for (Candidate& candidate : inlined) {
    for (int32_t i = 0; i < graph.size(); ++i) {
      if (contested[i]) candidate.op_of_node[i] = -1;
    }
    match.share = std::min(1.0, match.share + candidate.share);
    take(candidate);
  }
  return match;
}

}  // namespace placer::plugin
