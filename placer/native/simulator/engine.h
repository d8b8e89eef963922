// The event loop: one placement at a time, all memory kept from run to run.
#ifndef PLACER_NATIVE_SIMULATOR_ENGINE_H_
#define PLACER_NATIVE_SIMULATOR_ENGINE_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "executor.h"
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

// Bounds add the same numbers in another order than a run does; this keeps them on the safe side.
constexpr double kRoundingMargin = 1e-9;

struct Checkpoint;  // moves.h
struct MoveBase;    // moves.h

class Engine {
 public:
  explicit Engine(const Model& model);

  // Simulates the placement `row` ([slots.width] devices, all in range). Stops early, with a step
  // time of infinity, as soon as the step time is sure to exceed `cutoff`. Records into `log` if
  // it is not null.
  const Outcome& Run(const Slots& slots, const int32_t* row, double cutoff,
                     TraceLog* log = nullptr);

  // Simulates the placement of `base` and keeps about `checkpoints` states of the run in it.
  void RunBase(const Slots& slots, int32_t checkpoints, MoveBase* base);

  // Simulates the placement of `base` with slots[i] on devices[i], distinct slots, in the part
  // where it may differ. Only step_seconds and peak_bytes are filled in.
  const Outcome& RunMove(const MoveBase& base, const int32_t* slots, const int32_t* devices,
                         int64_t count, double cutoff);

 private:
  friend struct Checkpoint;
  enum class Mode { kPlain, kCutoff, kTrace, kBase, kMove };
  static constexpr bool Cuts(Mode mode) {
    return mode == Mode::kCutoff || mode == Mode::kBase || mode == Mode::kMove;
  }

  struct OpState {
    int32_t waiting;  // inputs and control inputs that have not come yet
    int32_t device;
  };
  struct Transfer {
    int32_t output, src, dst;
    int32_t parts = 1;  // that have not ended: its wire, and work of executors
  };
  struct Wire {
    double end;
    uint64_t sequence;
    int32_t output, src, dst, transfer;
  };
  struct Device {
    Ring<int32_t> ready;            // tasks in first-ready order
    int32_t task = -1;              // when it runs one
    int32_t concurrency = 1;
    bool is_executor = false;  // then its queues and tasks are those of state_.executors
    const OpCost* costs = nullptr;
    // With a cutoff, one task at a time: when all that is ready will have ended, and the work of
    // the ops that are not ready yet.
    double available = 0, remaining = 0;
    EventHeap<int32_t> running;     // when it runs several tasks at once
  };
  struct Memory {
    int64_t now = 0, peak = 0;
    double peak_seconds = 0;
  };

  void Load(const Slots& slots, const int32_t* row, bool with_work);

  template <Mode kMode>
  void Simulate(bool from_start, double cutoff);
  template <typename Lanes, Mode kMode>
  void Begin(Lanes* lanes);
  template <typename Lanes, Mode kMode>
  void Loop(Lanes* lanes, double cutoff);
  template <typename Lanes, Mode kMode>
  void Dispatch(Lanes* lanes, int32_t d, double now);
  template <typename Lanes, Mode kMode>
  void EndOnExecutor(Lanes* lanes, int32_t d, double now);
  void ReadyOnExecutor(int32_t op, int32_t d, bool by_own_op);
  template <Mode kMode>
  void DispatchExecutor(int32_t d, double now);
  void BeforeChange(int32_t d, double now);
  template <typename Lanes>
  void ShareCores(Lanes* lanes, double now);
  void AddTransferWork(int32_t d, int32_t id, double seconds, double now);
  template <Mode kMode>
  void MakeReady(int32_t op, int32_t d, double now, int32_t reason, bool by_own_op);
  template <Mode kMode>
  void Queue(int32_t task, int32_t d, double now, double seconds);
  void PrefetchAhead(int32_t op, int32_t d) const;
  template <typename Lanes, Mode kMode>
  void EndOp(Lanes* lanes, int32_t op, int32_t d, double now);
  template <typename Lanes, Mode kMode>
  void Request(Lanes* lanes, int32_t output, int32_t src, int32_t dst, double now);
  template <typename Lanes, Mode kMode>
  void StartWire(Lanes* lanes, const Transfer& transfer, int32_t id, double now);
  template <typename Lanes, Mode kMode>
  void EndWire(Lanes* lanes, const Wire& wire, double now);
  template <Mode kMode>
  void Deliver(int32_t output, int32_t dst, double now);
  template <Mode kMode>
  void Release(int32_t d, int32_t buffer, double now);
  template <Mode kMode>
  void Allocate(int32_t d, int64_t bytes, double now);

  size_t BufferSlot(int32_t d, int32_t output) const {
    return static_cast<size_t>(d) * model_.num_outputs + output;
  }
  // The output whose buffer holds this one on the device of its producer.
  int32_t RootOf(int32_t output) const {
    return model_.outputs[output].alias < 0 ? output : root_[output];
  }

  void TakeCheckpoint(int32_t op, double now);
  void Touch(int32_t op);
  bool AtMarker(int32_t task, double now);
  bool Converged(const Checkpoint& checkpoint, double now);

  void TraceStart(int32_t task, int32_t d, double now, double end);
  void TraceOpBuffers(int32_t op, int32_t d);

  // All that changes during a run and decides about the rest of it.
  struct State {
    std::vector<OpState> ops;
    std::vector<int32_t> root;        // [outputs], of aliases
    std::vector<int32_t> references;  // [devices, outputs] users of a buffer or copy
    std::vector<Device> devices;
    std::vector<Executor> executors;  // [D], or none
    std::vector<Memory> memory;
    std::vector<double> channel_free;
    std::vector<Ring<Wire>> channel_wires;
    EventHeap<Wire> free_wires;       // on links without channels
    std::vector<Transfer> transfers;  // those with CPU tasks, or all when tracing
    uint64_t sequence = 0;
    ScannedLanes scanned;
    HeapLanes heap;
  };

  const Model& model_;
  const bool prefetches_;
  State state_;
  // The members of state_, by short names.
  std::vector<OpState>& ops_ = state_.ops;
  std::vector<int32_t>& root_ = state_.root;
  std::vector<int32_t>& references_ = state_.references;
  std::vector<Device>& devices_ = state_.devices;
  std::vector<Executor>& executors_ = state_.executors;
  std::vector<Memory>& memory_ = state_.memory;
  std::vector<double>& channel_free_ = state_.channel_free;
  std::vector<Ring<Wire>>& channel_wires_ = state_.channel_wires;
  EventHeap<Wire>& free_wires_ = state_.free_wires;
  std::vector<Transfer>& transfers_ = state_.transfers;
  uint64_t& sequence_ = state_.sequence;

  std::vector<int32_t> stamp_;  // [devices] last output requested for this device
  int32_t stamps_ = 0;
  std::vector<int32_t> changed_;  // executors that have `changed` set
  double limit_ = kNever;
  bool cut_ = false;
  // Runs of bases and moves.
  MoveBase* recording_ = nullptr;
  const MoveBase* base_ = nullptr;
  int64_t ended_ = 0;          // ops that have ended
  int64_t marker_ = 0;         // next checkpoint of the base to compare with
  double marker_seconds_ = kNever;
  bool converged_ = false;
  struct Move {
    int32_t op, source, target;
  };
  std::vector<Move> moved_;
  std::vector<int64_t> shifts_;  // [D] persistent bytes that the moves bring to a device
  Outcome outcome_;
  TraceLog* log_ = nullptr;
};

}  // namespace placer

#endif  // PLACER_NATIVE_SIMULATOR_ENGINE_H_
