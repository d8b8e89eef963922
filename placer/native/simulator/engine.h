// The event loop: one placement at a time, all memory kept from run to run.
#ifndef PLACER_NATIVE_SIMULATOR_ENGINE_H_
#define PLACER_NATIVE_SIMULATOR_ENGINE_H_

#include <cstdint>
#include <vector>

#include "lanes.h"
#include "model.h"
#include "trace.h"

namespace placer {

// Which entry of a placement row decides about each op: the op's own or its group's.
struct Slots {
  int32_t width = 0;
  std::vector<int32_t> of_op;          // [num_ops] by internal id
  std::vector<int32_t> of_persistent;  // parallel to Model::persistent_ops
  std::vector<std::vector<double>> seconds;  // [num_kinds][width] work of each slot

  // `group_of` is [N], or null for one entry per op.
  Slots(const Model& model, const int32_t* group_of, int32_t width);
};

// What one run found. A run that was cut has a step time of infinity, and the other figures are
// those at the moment it stopped.
struct Outcome {
  double step_seconds = 0;
  std::vector<int64_t> peak_bytes;
  std::vector<double> peak_seconds;  // when the peak was first reached
  std::vector<double> busy_seconds;
  std::vector<double> transfer_seconds;  // by sender
  std::vector<int64_t> transfer_bytes;   // by sender

  void Reset(int32_t devices);
};

class Engine {
 public:
  explicit Engine(const Model& model);

  // Simulates the placement `row` ([slots.width] devices, all in range). Stops early, with a step
  // time of infinity, as soon as the step time is sure to exceed `cutoff`. Records into `log` if
  // it is not null.
  const Outcome& Run(const Slots& slots, const int32_t* row, double cutoff,
                     TraceLog* log = nullptr);

 private:
  struct OpState {
    int32_t waiting;  // inputs and control inputs that have not come yet
    int32_t device;
  };
  struct Transfer {
    int32_t output, src, dst;
  };
  struct Wire {
    double end;
    uint64_t sequence;
    int32_t output, src, dst, transfer;
  };
  struct Device {
    Ring<int32_t> ready;            // tasks in first-ready order
    EventHeap<int32_t> running;     // when it runs several tasks at once
    int32_t task = -1;              // when it runs one
    int32_t concurrency = 1;
    const OpCost* costs = nullptr;
    // With a cutoff, one task at a time: when all that is ready will have ended, and the work of
    // the ops that are not ready yet.
    double available = 0, remaining = 0;
  };
  struct Memory {
    int64_t now = 0, peak = 0;
    double peak_seconds = 0;
  };

  void Load(const Slots& slots, const int32_t* row, bool with_work);

  template <typename Lanes, bool kCutoff, bool kTrace>
  void Loop(Lanes* lanes, double cutoff);
  template <typename Lanes, bool kCutoff, bool kTrace>
  void Dispatch(Lanes* lanes, int32_t d, double now);
  template <bool kCutoff, bool kTrace>
  void MakeReady(int32_t op, int32_t d, double now, int32_t reason);
  template <bool kCutoff>
  void Queue(int32_t task, int32_t d, double now, double seconds);
  template <typename Lanes, bool kCutoff, bool kTrace>
  void EndOp(Lanes* lanes, int32_t op, int32_t d, double now);
  template <typename Lanes, bool kCutoff, bool kTrace>
  void Request(Lanes* lanes, int32_t output, int32_t src, int32_t dst, double now);
  template <typename Lanes, bool kTrace>
  void StartWire(Lanes* lanes, const Transfer& transfer, int32_t id, double now);
  template <typename Lanes, bool kCutoff, bool kTrace>
  void EndWire(Lanes* lanes, const Wire& wire, double now);
  template <bool kCutoff, bool kTrace>
  void Deliver(int32_t output, int32_t dst, double now);
  template <bool kTrace>
  void Release(int32_t d, int32_t buffer, double now);
  template <bool kTrace>
  void Allocate(int32_t d, int64_t bytes, double now);

  size_t BufferSlot(int32_t d, int32_t output) const {
    return static_cast<size_t>(d) * model_.num_outputs + output;
  }
  // The output whose buffer holds this one on the device of its producer.
  int32_t RootOf(int32_t output) const {
    return model_.outputs[output].alias < 0 ? output : root_[output];
  }

  void TraceStart(int32_t task, int32_t d, double now, double end);
  void TraceOpBuffers(int32_t op, int32_t d);

  const Model& model_;
  std::vector<OpState> ops_;
  std::vector<int32_t> root_;        // [outputs], of aliases
  std::vector<int32_t> references_;  // [devices, outputs] users of a buffer or copy
  std::vector<Device> devices_;
  std::vector<Memory> memory_;
  std::vector<double> channel_free_;
  std::vector<Ring<Wire>> channel_wires_;
  EventHeap<Wire> free_wires_;       // on links without channels
  std::vector<Transfer> transfers_;  // those with CPU tasks, or all when tracing
  std::vector<int32_t> stamp_;       // [devices] last output requested for this device
  int32_t stamps_ = 0;
  uint64_t sequence_ = 0;
  double limit_ = kNever;
  bool cut_ = false;
  ScannedLanes scanned_;
  HeapLanes heap_;
  Outcome outcome_;
  TraceLog* log_ = nullptr;
};

}  // namespace placer

#endif  // PLACER_NATIVE_SIMULATOR_ENGINE_H_
