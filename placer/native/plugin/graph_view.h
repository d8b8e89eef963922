// A serialized GraphDef seen in place: names, op types, devices, inputs and attributes as views
// into its bytes, and a rewriter that changes nothing but NodeDef.device.
#ifndef PLACER_NATIVE_PLUGIN_GRAPH_VIEW_H_
#define PLACER_NATIVE_PLUGIN_GRAPH_VIEW_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace placer::plugin {

struct NodeView {
  std::string_view name;
  std::string_view op;
  std::string_view device;
  std::string_view payload;  // The NodeDef's bytes.
  size_t begin = 0;          // Of the node's field, tag included, within the graph.
  size_t end = 0;
  int32_t first_edge = 0;  // Into GraphView::edges.
  int32_t num_edges = 0;
  int32_t first_attr = 0;  // Into GraphView::attrs.
  int32_t num_attrs = 0;
};

struct AttrView {
  std::string_view key;
  std::string_view value;  // The AttrValue's bytes.
};

// An input of a node. `producer` is -1 if the graph has no node of that name; `port` is -1 for a
// control input.
struct Edge {
  int32_t producer = -1;
  int32_t port = 0;
};

// DataType values of tensorflow/core/framework/types.proto that matter here.
enum : int32_t { kResource = 20, kVariant = 21, kRefOffset = 100 };

class GraphView {
 public:
  // Parses `graph`, which must outlive the view. Returns false and says why in `error` if the
  // bytes are no GraphDef or two nodes share a name.
  bool Parse(std::string_view graph, std::string* error);

  int32_t size() const { return static_cast<int32_t>(nodes.size()); }

  // Index of the node called `name`, or -1.
  int32_t Find(std::string_view name) const;
  // Bytes of an attribute's AttrValue, or nothing.
  std::string_view Attr(int32_t node, std::string_view key) const;

  // The graph with node i on devices[device_of[i]], or where it was if device_of[i] < 0.
  std::string WithDevices(const std::vector<int32_t>& device_of,
                          const std::vector<std::string>& devices) const;

  std::vector<NodeView> nodes;
  std::vector<Edge> edges;
  std::vector<AttrView> attrs;
  std::unordered_set<std::string_view> functions;  // Names of the library's functions.

 private:
  bool ParseNode(NodeView* node, std::vector<std::string_view>* inputs);

  std::string_view bytes_;
  std::unordered_map<std::string_view, int32_t> index_;
};

// Fields of an AttrValue. Absent or malformed values give `fallback` or nothing.
int64_t AttrInt(std::string_view attr, int64_t fallback);
bool AttrBool(std::string_view attr);
std::vector<int32_t> AttrTypes(std::string_view attr);  // type, or list.type.
std::vector<std::string_view> AttrStrings(std::string_view attr);
std::string_view AttrString(std::string_view attr);

}  // namespace placer::plugin

#endif  // PLACER_NATIVE_PLUGIN_GRAPH_VIEW_H_
