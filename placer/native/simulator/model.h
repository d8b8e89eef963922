// The simulator's view of one graph on one set of devices: validated, compact and read-only.
//
// A Model is built once from plain arrays and then shared by every thread. Ops that do not execute
// are dropped, executed ops are renumbered in the order in which a single device would run them (so
// that a run walks memory forwards), outputs without consumers disappear into their op's byte
// counts, and an op's control successors become one more output of zero bytes.
#ifndef PLACER_NATIVE_SIMULATOR_MODEL_H_
#define PLACER_NATIVE_SIMULATOR_MODEL_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace placer {

// Borrowed arrays, row-major. Sizes: N ops, T tensors, E data edges, C control edges, D devices,
// K device classes. Meaning, units and rules: the docstring of the Python package.
struct Inputs {
  int64_t num_ops = 0, num_tensors = 0, num_edges = 0, num_controls = 0;
  int64_t num_devices = 0, num_classes = 0;
  const bool* executed = nullptr;              // [N]
  const double* op_seconds = nullptr;          // [K, N]
  const double* launch_seconds = nullptr;      // [D]
  const int64_t* persistent_bytes = nullptr;   // [N]
  const int64_t* temporary_bytes = nullptr;    // [K, N]
  const int64_t* out_ptr = nullptr;            // [N + 1]
  const int64_t* tensor_bytes = nullptr;       // [T]
  const int64_t* tensor_local_bytes = nullptr; // [T]
  const int32_t* tensor_alias = nullptr;       // [T]
  const int64_t* in_ptr = nullptr;             // [N + 1]
  const int32_t* in_tensor = nullptr;          // [E]
  const int32_t* control_src = nullptr;        // [C]
  const int32_t* control_dst = nullptr;        // [C]
  const int32_t* device_class = nullptr;       // [D]
  const int64_t* memory_limit = nullptr;       // [D]
  const int32_t* concurrency = nullptr;        // [D]
  const int32_t* executor_threads = nullptr;   // [D]
  const double* contention = nullptr;          // [D, D]
  const bool* inline_op = nullptr;             // [N]
  const double* latency = nullptr;             // [D, D]
  const double* seconds_per_byte = nullptr;    // [D, D]
  const int32_t* channels = nullptr;           // [D, D, 2]
  const double* send_cpu_seconds = nullptr;           // [D, D]
  const double* send_cpu_seconds_per_byte = nullptr;  // [D, D]
  const double* recv_cpu_seconds = nullptr;           // [D, D]
  const double* recv_cpu_seconds_per_byte = nullptr;  // [D, D]
};

// What running an op on one kind of device takes.
struct OpCost {
  double seconds;       // compute time plus the device's launch time
  int64_t start_bytes;  // allocated when it starts: temporaries and outputs that own their buffer
  int64_t end_bytes;    // released when it ends: temporaries and outputs nobody consumes
  double rank;          // seconds + longest chain of least times behind it: start + rank <= step
};

// A buffer that an op releases when it ends.
struct InputEdge {
  uint32_t output_and_alias;  // 2 * index into Model::outputs, + 1 if that output is an alias
  int32_t producer;           // internal op
  int32_t output() const { return static_cast<int32_t>(output_and_alias >> 1); }
  bool alias() const { return (output_and_alias & 1) != 0; }
};

// A tensor with at least one executed consumer, or the control successors of an op.
struct Output {
  int64_t copy_bytes;      // what a transfer moves and a received copy occupies
  int64_t local_bytes;     // what it occupies where it is produced
  int32_t consumer_begin;  // range of Model::consumers
  int32_t consumer_end;
  int32_t alias;     // output whose buffer it shares, or -1
  int32_t producer;  // internal op
};

// Where the outputs and releases of an op begin; those of the next op end them.
struct OpRange {
  int32_t output_begin;
  int32_t release_begin;
};

struct Link {
  double latency, seconds_per_byte;
  double send_seconds, send_seconds_per_byte, recv_seconds, recv_seconds_per_byte;
  int32_t channel0, channel1;  // dense channel ids; channel0 is -1 only if both are
  bool send_task, recv_task;      // the cost queues at this end as a task
  bool send_beside, recv_beside;  // an executor of this end works it off beside its ops

  bool OverlapsWork() const { return send_beside || recv_beside; }

  double WireSeconds(int64_t bytes) const {
    return latency + static_cast<double>(bytes) * seconds_per_byte;
  }
  double SendSeconds(int64_t bytes) const {
    return send_seconds + static_cast<double>(bytes) * send_seconds_per_byte;
  }
  double RecvSeconds(int64_t bytes) const {
    return recv_seconds + static_cast<double>(bytes) * recv_seconds_per_byte;
  }
};

class Model {
 public:
  // Throws std::invalid_argument naming the array, the index and what is wrong there.
  explicit Model(const Inputs& in);

  int32_t num_all_ops = 0;  // N
  int32_t num_ops = 0;      // executed ops; internal ids are 0..num_ops-1
  int32_t num_tensors = 0;
  int32_t num_devices = 0;
  int32_t num_channels = 0;
  int32_t num_outputs = 0;
  int32_t num_kinds = 0;

  std::vector<int32_t> op_of;     // [num_ops] internal -> caller's index
  std::vector<int32_t> id_of;     // [N] caller's index -> internal, -1 if not executed
  int32_t num_sources = 0;        // ops 0..num_sources-1 have no executed predecessors
  std::vector<int32_t> indegree;  // [num_ops] data edges (one per op and tensor) + control edges

  // Each op's tensors in order, then its control successors if it has any.
  std::vector<OpRange> ranges;         // [num_ops + 1]
  std::vector<Output> outputs;         // [num_outputs]
  std::vector<int32_t> output_tensor;  // [num_outputs] caller's tensor, -1: control
  std::vector<int32_t> output_has_bytes;  // [num_outputs] -1 if it occupies memory, else 0
  std::vector<int32_t> consumers;      // internal op ids, in edge order
  std::vector<InputEdge> releases;     // those of no bytes are left out

  std::vector<std::vector<OpCost>> costs;  // [num_kinds][num_ops]
  std::vector<int32_t> kind_of_device;     // [D]
  std::vector<int64_t> temporary_bytes;    // [num_kinds * num_ops], for traces
  std::vector<int64_t> persistent_bytes;   // [N]
  std::vector<int32_t> persistent_ops;     // callers' ops that hold persistent bytes
  std::vector<int64_t> memory_limit;       // [D]
  std::vector<int32_t> concurrency;        // [D]
  std::vector<int32_t> executor_threads;   // [D] 0: the device is no executor
  std::vector<double> contention;          // [D, D] 0 but between different executors
  bool contends = false;                   // whether any of it is positive
  std::vector<char> inline_op;             // [num_ops]
  std::vector<Link> links;                 // [D, D]

  // Caller's outputs without consumers, per executed op, for traces: tensors of internal op i that
  // own a buffer of local bytes.
  std::vector<int64_t> owned_begin;                       // [num_ops + 1]
  std::vector<std::pair<int32_t, int64_t>> owned;         // (caller's tensor, local bytes)
  std::vector<int32_t> owned_output;                      // output index or -1

 private:
  void Validate(const Inputs& in) const;
  void Build(const Inputs& in);
  void BuildDevices(const Inputs& in);
  void BuildCosts(const Inputs& in);
};

}  // namespace placer

#endif  // PLACER_NATIVE_SIMULATOR_MODEL_H_
