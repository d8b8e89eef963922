// What may move: nodes that must share a device form one unit, and some units never move.
#ifndef PLACER_NATIVE_PLUGIN_CONSTRAINTS_H_
#define PLACER_NATIVE_PLUGIN_CONSTRAINTS_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "placer/native/plugin/graph_view.h"
#include "placer/native/plugin/registry.h"

namespace placer::plugin {

// Why a node stays where TensorFlow placed it.
enum class Reason : uint8_t {
  kNone = 0,
  kUnknown,           // The placement does not know the node.
  kBoundary,          // Argument, result, feed, Send or Recv.
  kFunctionCall,      // Calls a function, whose body is placed when it is instantiated.
  kResource,          // Holds or takes a resource or reference whose device is fixed.
  kStateful,          // Has state or files outside the graph.
  kUnitDisagrees,     // Must share a device with nodes that are placed elsewhere.
  kNoDevice,          // The session has no such device.
  kNoKernel,          // The device has no kernel for it.
  kUnplaced,          // TensorFlow has not placed it either.
  kUnordered,         // On a cycle outside loops; not a graph to touch.
  kNoGain,            // The heuristic found nothing better.
  kCount,
};

// Name of a reason in reports.
const char* ReasonName(Reason reason);

struct Units {
  std::vector<int32_t> unit_of_node;  // Numbered from 0.
  std::vector<Reason> pinned;         // Per unit: kNone if it may move.
  int32_t count = 0;                  // Of units.
  std::vector<int32_t> order;         // Nodes, producers first; back edges of loops ignored.
};

// Joins nodes along resource, reference and variant edges, in `_class` colocation groups, in v1
// loops (from Enter to Exit, nested loops included), and to the input that they run beside. Pins
// what must not move: whatever holds a resource (a variable that one run of a session puts
// elsewhere than another is lost), arguments, calls, ops with hidden state.
Units FindUnits(const GraphView& graph, const OpRegistry& ops);

// Whether ops of this type run a function of the library.
bool CallsFunction(std::string_view op);

}  // namespace placer::plugin

#endif  // PLACER_NATIVE_PLUGIN_CONSTRAINTS_H_
