#include "placer/native/plugin/constraints.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace placer::plugin {
namespace {

bool StartsWith(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

bool EndsWith(std::string_view text, std::string_view suffix) {
  return text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}

const std::unordered_set<std::string_view>& BoundaryOps() {
  static const auto* const ops = new std::unordered_set<std::string_view>{
      "_Arg",      "_Retval",   "_DeviceArg", "_DeviceRetval", "_Send",
      "_Recv",     "_HostSend", "_HostRecv",  "Placeholder",   "PlaceholderV2",
      "_ParallelConcatStart"};
  return *ops;
}

const std::unordered_set<std::string_view>& CallOps() {
  static const auto* const ops = new std::unordered_set<std::string_view>{
      "PartitionedCall", "StatefulPartitionedCall", "RemoteCall", "SymbolicGradient",
      "If",              "StatelessIf",             "Case",       "StatelessCase",
      "While",           "StatelessWhile",          "For",        "_While",
      "_If",             "XlaLaunch",               "_XlaRun",    "_XlaCompile",
      "TPUPartitionedCall"};
  return *ops;
}

// Ops that OpDef calls stateless though they see files or the process they run in.
const std::unordered_set<std::string_view>& ProcessOps() {
  static const auto* const ops = new std::unordered_set<std::string_view>{
      "PyFunc",        "PyFuncStateless", "EagerPyFunc", "ReadFile",
      "MatchingFiles", "WriteFile",       "SaveV2",      "RestoreV2"};
  return *ops;
}

// Stateful only in its random number generator, which moves with it.
bool IsRandomOp(std::string_view op) {
  return !EndsWith(op, "Dataset") && (StartsWith(op, "Random") || op == "TruncatedNormal" ||
                                      op == "ParameterizedTruncatedNormal" || op == "Multinomial");
}

// A variable that one step makes and destroys: the sums that Grappler's memory optimizer makes of
// AddN. It goes where its unit goes.
bool LivesOneStep(std::string_view op) {
  return op == "TemporaryVariable" || op == "DestroyTemporaryVariable";
}

bool IsLoopEntry(std::string_view op) { return op == "Enter" || op == "RefEnter"; }
bool IsLoopExit(std::string_view op) { return op == "Exit" || op == "RefExit"; }
bool IsBackEdge(std::string_view op) { return op == "NextIteration" || op == "RefNextIteration"; }

// Runs where its first input is produced, whatever it asks for: OptimizeControlFlowColocation in
// tensorflow/core/graph/graph_partition.cc.
bool FollowsInput(std::string_view op) {
  return op == "Switch" || op == "RefSwitch" || IsLoopExit(op);
}

class UnionFind {
 public:
  explicit UnionFind(int32_t size) : parent_(size) {
    std::iota(parent_.begin(), parent_.end(), 0);
  }
  int32_t Find(int32_t x) {
    while (parent_[x] != x) {
      parent_[x] = parent_[parent_[x]];
      x = parent_[x];
    }
    return x;
  }
  void Join(int32_t a, int32_t b) { parent_[Find(a)] = Find(b); }

 private:
  std::vector<int32_t> parent_;
};

bool BindsDevice(int32_t type) {
  // An unknown type binds: better a node left than a resource torn from its users.
  return type == 0 || type == kResource || type == kVariant || type > kRefOffset;
}

// Producers first. Nodes on a cycle that no NextIteration closes are left out.
std::vector<int32_t> TopologicalOrder(const GraphView& graph) {
  const int32_t n = graph.size();
  std::vector<int32_t> waiting(n, 0);
  std::vector<int32_t> begin(n + 1, 0);
  for (int32_t i = 0; i < n; ++i) {
    const NodeView& node = graph.nodes[i];
    for (int32_t e = node.first_edge; e < node.first_edge + node.num_edges; ++e) {
      const int32_t p = graph.edges[e].producer;
      if (p < 0 || IsBackEdge(graph.nodes[p].op)) continue;
      ++waiting[i];
      ++begin[p + 1];
    }
  }
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  std::vector<int32_t> consumers(begin[n]);
  std::vector<int32_t> next(begin.begin(), begin.end() - 1);
  for (int32_t i = 0; i < n; ++i) {
    const NodeView& node = graph.nodes[i];
    for (int32_t e = node.first_edge; e < node.first_edge + node.num_edges; ++e) {
      const int32_t p = graph.edges[e].producer;
      if (p >= 0 && !IsBackEdge(graph.nodes[p].op)) consumers[next[p]++] = i;
    }
  }
  std::vector<int32_t> order;
  order.reserve(n);
  for (int32_t i = 0; i < n; ++i) {
    if (waiting[i] == 0) order.push_back(i);
  }
  for (size_t k = 0; k < order.size(); ++k) {
    const int32_t p = order[k];
    for (int32_t c = begin[p]; c < begin[p + 1]; ++c) {
      if (--waiting[consumers[c]] == 0) order.push_back(consumers[c]);
    }
  }
  return order;
}

// Joins the nodes of every v1 loop. depth[i] counts the frames that node i runs in.
void JoinLoops(const GraphView& graph, const std::vector<int32_t>& order, UnionFind* joined) {
  std::vector<int32_t> depth(graph.nodes.size(), 0);
  const auto depth_after = [&](int32_t p) {
    return depth[p] - (IsLoopExit(graph.nodes[p].op) ? 1 : 0);
  };
  for (const int32_t i : order) {
    const NodeView& node = graph.nodes[i];
    for (int32_t e = node.first_edge; e < node.first_edge + node.num_edges; ++e) {
      const int32_t p = graph.edges[e].producer;
      if (p >= 0 && !IsBackEdge(graph.nodes[p].op)) depth[i] = std::max(depth[i], depth_after(p));
    }
    if (IsLoopEntry(node.op)) ++depth[i];
  }
  for (const int32_t i : order) {
    const NodeView& node = graph.nodes[i];
    if (depth[i] == 0) continue;
    for (int32_t e = node.first_edge; e < node.first_edge + node.num_edges; ++e) {
      const int32_t p = graph.edges[e].producer;
      if (p >= 0 && depth_after(p) > 0) joined->Join(i, p);
    }
  }
}

void JoinColocated(const GraphView& graph, UnionFind* joined) {
  std::unordered_map<std::string_view, int32_t> first_of_group;
  for (int32_t i = 0; i < graph.size(); ++i) {
    for (std::string_view group : AttrStrings(graph.Attr(i, "_class"))) {
      if (!StartsWith(group, "loc:@")) continue;
      group.remove_prefix(5);
      const int32_t named = graph.Find(group);
      if (named >= 0) joined->Join(i, named);
      const auto [entry, added] = first_of_group.emplace(group, i);
      if (!added) joined->Join(i, entry->second);
    }
  }
}

Reason PinReason(const GraphView& graph, const OpRegistry& ops, int32_t i, bool takes_handle) {
  const NodeView& node = graph.nodes[i];
  if (BoundaryOps().count(node.op) > 0) return Reason::kBoundary;
  if (CallsFunction(node.op) || graph.functions.count(node.op) > 0) {
    return Reason::kFunctionCall;
  }
  if (ProcessOps().count(node.op) > 0) return Reason::kStateful;
  const OpDef* op = ops.Find(node.op);
  if (op == nullptr) return Reason::kStateful;
  if (!op->is_stateful || IsRandomOp(node.op) || LivesOneStep(node.op)) return Reason::kNone;
  // A stateful op that takes a handle goes where the handle is; its unit says where.
  if (takes_handle) return Reason::kNone;
  for (const ArgDef& output : op->outputs) {
    if (output.type == kResource || output.is_ref) return Reason::kResource;
  }
  return Reason::kStateful;
}

}  // namespace

const char* ReasonName(Reason reason) {
  switch (reason) {
    case Reason::kNone: return "moved";
    case Reason::kUnknown: return "not in the placement";
    case Reason::kBoundary: return "argument, result or feed";
    case Reason::kFunctionCall: return "function call";
    case Reason::kResource: return "resource fixed where it was created";
    case Reason::kStateful: return "state outside the graph";
    case Reason::kUnitDisagrees: return "bound to ops placed elsewhere";
    case Reason::kNoDevice: return "no such device in the session";
    case Reason::kNoKernel: return "no kernel on that device";
    case Reason::kUnplaced: return "not placed by TensorFlow";
    case Reason::kUnordered: return "on a cycle";
    case Reason::kNoGain: return "no gain predicted";
    case Reason::kCount: break;
  }
  return "";
}

bool CallsFunction(std::string_view op) { return CallOps().count(op) > 0; }

Units FindUnits(const GraphView& graph, const OpRegistry& ops) {
  const int32_t n = graph.size();
  UnionFind joined(n);
  std::vector<char> takes_handle(n, 0);
  std::unordered_map<std::string_view, char> may_bind;  // Op type -> any output may bind.
  for (int32_t i = 0; i < n; ++i) {
    const auto [entry, added] = may_bind.emplace(graph.nodes[i].op, 1);
    if (!added) continue;
    const OpDef* op = ops.Find(graph.nodes[i].op);
    if (op == nullptr) continue;
    entry->second = std::any_of(op->outputs.begin(), op->outputs.end(), [](const ArgDef& output) {
      return output.is_ref || output.type == 0 || BindsDevice(output.type);
    });
  }
  for (int32_t i = 0; i < n; ++i) {
    const NodeView& node = graph.nodes[i];
    bool follows = FollowsInput(node.op);
    for (int32_t e = node.first_edge; e < node.first_edge + node.num_edges; ++e) {
      const Edge& edge = graph.edges[e];
      if (edge.port < 0) continue;
      if (follows && edge.producer >= 0) joined.Join(i, edge.producer);
      follows = false;
      if (edge.producer < 0 || !may_bind[graph.nodes[edge.producer].op]) continue;
      const int32_t type = ops.OutputType(graph, edge.producer, edge.port);
      if (!BindsDevice(type)) continue;
      joined.Join(i, edge.producer);
      takes_handle[i] |= type == kResource || type > kRefOffset;
    }
  }
  Units units;
  units.order = TopologicalOrder(graph);
  JoinLoops(graph, units.order, &joined);
  JoinColocated(graph, &joined);

  units.unit_of_node.assign(n, -1);
  std::vector<int32_t> number(n, -1);
  for (int32_t i = 0; i < n; ++i) {
    const int32_t root = joined.Find(i);
    if (number[root] < 0) number[root] = units.count++;
    units.unit_of_node[i] = number[root];
  }
  units.pinned.assign(units.count, Reason::kNone);
  std::vector<char> ordered(n, 0);
  for (const int32_t i : units.order) ordered[i] = 1;
  for (int32_t i = 0; i < n; ++i) {
    Reason& pinned = units.pinned[units.unit_of_node[i]];
    Reason reason = ordered[i] ? PinReason(graph, ops, i, takes_handle[i])
                               : Reason::kUnordered;
    // In a unit of several nodes the others stay because of this one.
    if (pinned == Reason::kNone || reason == Reason::kResource) {
      if (reason != Reason::kNone) pinned = reason;
    }
    if (ordered[i] && graph.nodes[i].device.empty() && pinned == Reason::kNone) {
      pinned = Reason::kUnplaced;
    }
  }
  // Others are joined to an argument only because it carries a handle.
  std::vector<int32_t> size(units.count, 0);
  for (const int32_t unit : units.unit_of_node) ++size[unit];
  for (int32_t unit = 0; unit < units.count; ++unit) {
    if (size[unit] > 1 && units.pinned[unit] == Reason::kBoundary) {
      units.pinned[unit] = Reason::kResource;
    }
  }
  return units;
}

}  // namespace placer::plugin
