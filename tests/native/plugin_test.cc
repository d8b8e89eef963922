// Feeds the plugin's pass with random graphs and placements, whole and damaged, outside
// TensorFlow. Prints what fails and exits with 1. Meant for the sanitizers.
//
//   plugin_test [ROUNDS]

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "placer/native/plugin/constraints.h"
#include "placer/native/plugin/device_name.h"
#include "placer/native/plugin/pass.h"
#include "placer/native/plugin/state.h"
#include "placer/native/plugin/wire.h"

namespace placer::plugin {
namespace {

int failures = 0;

#define EXPECT(condition)                                                        \
  do {                                                                           \
    if (!(condition)) {                                                          \
      ++failures;                                                                \
      std::fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
    }                                                                            \
  } while (0)

const char* const kDevices[] = {"/job:localhost/replica:0/task:0/device:CPU:0",
                                "/job:localhost/replica:0/task:0/device:CPU:1"};

void AppendVarintField(uint32_t number, uint64_t value, std::string* out) {
  AppendVarint(static_cast<uint64_t>(number) << 3, out);
  AppendVarint(value, out);
}

std::string TypeAttr(const std::string& key, int type) {
  std::string value, entry;
  AppendVarintField(6, static_cast<uint64_t>(type), &value);
  AppendBytesField(1, key, &entry);
  AppendBytesField(2, value, &entry);
  return entry;
}

// Const() -> T, Add(T, T) -> T, Holder() -> resource, Take(resource) -> float, stateful.
std::string OpList() {
  const auto arg = [](int type, const std::string& type_attr) {
    std::string bytes;
    AppendBytesField(1, "x", &bytes);
    if (type > 0) AppendVarintField(3, static_cast<uint64_t>(type), &bytes);
    if (!type_attr.empty()) AppendBytesField(4, type_attr, &bytes);
    return bytes;
  };
  const auto op = [](const std::string& name, const std::vector<std::string>& inputs,
                     const std::vector<std::string>& outputs, bool stateful) {
    std::string bytes;
    AppendBytesField(1, name, &bytes);
    for (const std::string& a : inputs) AppendBytesField(2, a, &bytes);
    for (const std::string& a : outputs) AppendBytesField(3, a, &bytes);
    if (stateful) AppendVarintField(17, 1, &bytes);
    return bytes;
  };
  std::string list;
  AppendBytesField(1, op("Const", {}, {arg(0, "dtype")}, false), &list);
  AppendBytesField(1, op("Add", {arg(0, "T"), arg(0, "T")}, {arg(0, "T")}, false), &list);
  AppendBytesField(1, op("Holder", {}, {arg(kResource, "")}, true), &list);
  AppendBytesField(1, op("Take", {arg(kResource, "")}, {arg(1, "")}, true), &list);
  for (const char* name : {"Enter", "Exit", "NextIteration", "Merge", "Switch"}) {
    AppendBytesField(1, op(name, {arg(0, "T"), arg(0, "T")}, {arg(0, "T")}, false), &list);
  }
  return list;
}

std::string Node(const std::string& name, const std::string& op,
                 const std::vector<std::string>& inputs, const std::string& device,
                 const std::string& location) {
  std::string node;
  AppendBytesField(1, name, &node);
  AppendBytesField(2, op, &node);
  for (const std::string& input : inputs) AppendBytesField(3, input, &node);
  if (!device.empty()) AppendBytesField(4, device, &node);
  AppendBytesField(5, TypeAttr("T", 1), &node);
  AppendBytesField(5, TypeAttr("dtype", 1), &node);
  if (!location.empty()) {
    std::string list, value, entry;
    AppendBytesField(2, "loc:@" + location, &list);
    AppendBytesField(1, list, &value);
    AppendBytesField(1, "_class", &entry);
    AppendBytesField(2, value, &entry);
    AppendBytesField(5, entry, &node);
  }
  AppendBytesField(1000, "a field nobody knows", &node);
  return node;
}

struct Sample {
  std::string graph;
  std::string placement;
};

Sample RandomSample(std::mt19937* random) {
  const auto below = [random](int n) { return static_cast<int>((*random)() % n); };
  const char* const ops[] = {"Add",   "Add",  "Const",         "Holder", "Take",
                             "Enter", "Exit", "NextIteration", "Merge",  "Unheard"};
  Sample sample;
  std::string device_of_op, types;
  const int n = 1 + below(40);
  for (const char* device : kDevices) AppendBytesField(2, device, &sample.placement);
  for (int i = 0; i < n; ++i) {
    const std::string name = (below(3) == 0 ? "call/n" : "n") + std::to_string(i);
    std::vector<std::string> inputs;
    for (int k = below(3); k > 0; --k) {
      const std::string producer = "n" + std::to_string(below(n));
      inputs.push_back(below(5) == 0 ? "^" + producer : producer + (below(4) == 0 ? ":1" : ""));
    }
    const std::string location = below(6) == 0 ? "n" + std::to_string(below(n)) : "";
    AppendBytesField(1,
                     Node(name, ops[below(10)], inputs, below(9) == 0 ? "" : kDevices[below(2)],
                          location),
                     &sample.graph);
    AppendBytesField(3, below(8) == 0 ? "other" + std::to_string(i) : name, &sample.placement);
    AppendVarint(static_cast<uint64_t>(below(2)), &device_of_op);
  }
  std::string versions;
  AppendVarintField(1, 2000, &versions);
  AppendBytesField(4, versions, &sample.graph);
  AppendBytesField(4, device_of_op, &sample.placement);
  return sample;
}

std::string WithoutDevices(const std::string& bytes) {
  std::string out;
  WireReader reader(bytes);
  Field field;
  while (reader.Next(&field)) {
    if (!field.IsBytes(1)) {
      out.append(bytes, field.begin, field.end - field.begin);
      continue;
    }
    WireReader node(field.bytes);
    Field part;
    std::string kept;
    while (node.Next(&part)) {
      if (!part.IsBytes(4)) kept.append(field.bytes.substr(part.begin, part.end - part.begin));
    }
    AppendBytesField(1, kept, &out);
  }
  return out;
}

std::string Damaged(std::string bytes, std::mt19937* random) {
  for (int k = 0; k < 3 && !bytes.empty(); ++k) {
    const size_t at = (*random)() % bytes.size();
    switch ((*random)() % 4) {
      case 0: bytes[at] = static_cast<char>((*random)()); break;
      case 1: bytes.resize(at); break;
      case 2: bytes.erase(at, 1 + (*random)() % 4); break;
      default: bytes.insert(at, 1 + (*random)() % 4, static_cast<char>((*random)())); break;
    }
  }
  return bytes;
}

// Whether every node that takes a resource is with the node that holds it, where it was before.
void CheckResources(const std::string& before, const std::string& after, const OpRegistry& ops) {
  GraphView old_graph, graph;
  std::string error;
  EXPECT(old_graph.Parse(before, &error) && graph.Parse(after, &error));
  for (int32_t i = 0; i < graph.size(); ++i) {
    const NodeView& node = graph.nodes[i];
    if (node.op == "Holder") EXPECT(node.device == old_graph.nodes[i].device);
    for (int32_t e = node.first_edge; e < node.first_edge + node.num_edges; ++e) {
      const Edge& edge = graph.edges[e];
      if (edge.producer < 0 || ops.OutputType(graph, edge.producer, edge.port) != kResource) {
        continue;
      }
      EXPECT(node.device == old_graph.nodes[i].device);
    }
  }
}

// Whether units that TensorFlow has put on several devices are as they were.
void CheckTornUnits(const std::string& before, const std::string& after, const OpRegistry& ops) {
  GraphView old_graph, graph;
  std::string error;
  EXPECT(old_graph.Parse(before, &error) && graph.Parse(after, &error));
  const Units units = FindUnits(old_graph, ops);
  std::vector<std::set<std::string>> devices(units.count);
  for (int32_t i = 0; i < old_graph.size(); ++i) {
    const std::string device(old_graph.nodes[i].device);
    if (!device.empty()) devices[units.unit_of_node[i]].insert(device);
  }
  for (int32_t i = 0; i < graph.size(); ++i) {
    if (devices[units.unit_of_node[i]].size() < 2) continue;
    EXPECT(graph.nodes[i].device == old_graph.nodes[i].device);
  }
}

void Run(int rounds) {
  OpRegistry ops;
  EXPECT(ops.Parse(OpList()));
  KernelRegistry kernels;
  EXPECT(kernels.Parse(""));
  const Knowledge knowledge{&ops, nullptr};
  const std::vector<std::string> devices(std::begin(kDevices), std::end(kDevices));
  std::mt19937 random(7);
  int64_t moved = 0;
  for (int round = 0; round < rounds; ++round) {
    const Sample sample = RandomSample(&random);
    auto placement = std::make_shared<StoredPlacement>();
    std::string error;
    EXPECT(placement->Parse(sample.placement, &error));
    HeuristicOptions heuristic{round % 2 == 0, 0.2};
    GraphRecord record;
    std::string out;
    if (RunPass(sample.graph, {placement}, heuristic, devices, knowledge, &out, &record)) {
      moved += record.moved;
      // Nothing but devices changes, unknown fields included, and a second pass has nothing to do.
      EXPECT(WithoutDevices(out) == WithoutDevices(sample.graph));
      CheckResources(sample.graph, out, ops);
      if (record.heuristic) CheckTornUnits(sample.graph, out, ops);
      GraphRecord again;
      std::string unused;
      if (record.outcome == "matched") {
        EXPECT(!RunPass(out, {placement}, {}, devices, knowledge, &unused, &again));
      }
    }
    // Damage is survived; what comes of it is a graph or nothing.
    const std::string graph = Damaged(sample.graph, &random);
    auto damaged = std::make_shared<StoredPlacement>();
    const bool readable = damaged->Parse(Damaged(sample.placement, &random), &error);
    GraphRecord survived;
    if (RunPass(graph, {readable ? damaged : placement}, heuristic, devices, knowledge, &out,
                &survived)) {
      CheckResources(graph, out, ops);
    }
    OpRegistry broken_ops;
    if (broken_ops.Parse(Damaged(OpList(), &random))) {
      RunPass(sample.graph, {placement}, {}, devices, {&broken_ops, nullptr}, &out, &survived);
    }
    kernels.Parse(Damaged(OpList(), &random));
    DeviceName name;
    DeviceName::Parse(Damaged(kDevices[0], &random), &name);
    State::Get().Record(survived);
  }
  EXPECT(moved > rounds);  // The pass did something.
  EXPECT(State::Get().ReportJson().size() > 100);
}

}  // namespace
}  // namespace placer::plugin

int main(int argc, char** argv) {
  placer::plugin::Run(argc > 1 ? std::atoi(argv[1]) : 500);
  if (placer::plugin::failures > 0) return 1;
  std::puts("passed");
  return 0;
}
