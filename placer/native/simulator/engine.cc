#include "engine.h"

#include <algorithm>

#include "moves.h"

// The steps of the event loop. Left to itself, GCC calls some of them, which costs several percent.
#define PLACER_INLINE __attribute__((always_inline)) inline

namespace placer {
namespace {

// Models whose arrays overflow a core's second-level cache, and how many ops ahead they are
// fetched from memory. Several devices run the ops of a window in an order that hardware
// prefetchers do not recognise, though the window itself moves forwards.
constexpr int32_t kPrefetchOps = 16384;
constexpr int32_t kOpsAhead = 256;

// Element `index` of an array, which may lie past its end: a hint touches nothing.
template <int kWrite, typename T>
PLACER_INLINE void Prefetch(const std::vector<T>& array, size_t index) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(array.data()) + index * sizeof(T);
  __builtin_prefetch(reinterpret_cast<const void*>(address), kWrite, 2);
}

}  // namespace

Slots::Slots(const Model& model, const int32_t* group_of, int32_t width) : width(width) {
  auto slot = [&](int32_t op) { return group_of == nullptr ? op : group_of[op]; };
  of_op.resize(model.num_ops);
  for (int32_t id = 0; id < model.num_ops; ++id) of_op[id] = slot(model.op_of[id]);
  for (int32_t op : model.persistent_ops) of_persistent.push_back(slot(op));
  seconds.assign(model.num_kinds, std::vector<double>(width, 0.0));
  for (int32_t k = 0; k < model.num_kinds; ++k) {
    for (int32_t id = 0; id < model.num_ops; ++id) {
      seconds[k][of_op[id]] += model.costs[k][id].seconds;
    }
  }
}

void Outcome::Reset(int32_t devices) {
  step_seconds = 0;
  peak_bytes.assign(devices, 0);
  peak_seconds.assign(devices, 0);
  busy_seconds.assign(devices, 0);
  transfer_seconds.assign(devices, 0);
  transfer_bytes.assign(devices, 0);
}

Engine::Engine(const Model& model)
    : model_(model), prefetches_(model.num_ops >= kPrefetchOps), stamp_(model.num_devices) {
  ops_.resize(model.num_ops);
  root_.resize(model.num_outputs);
  references_.resize(static_cast<size_t>(model.num_devices) * model.num_outputs);
  devices_.resize(model.num_devices);
  memory_.resize(model.num_devices);
  channel_free_.resize(model.num_channels);
  channel_wires_.resize(model.num_channels);
  for (int32_t d = 0; d < model.num_devices; ++d) {
    devices_[d].concurrency = model.concurrency[d];
    devices_[d].is_executor = model.executor_threads[d] > 0;
    devices_[d].costs = model.costs[model.kind_of_device[d]].data();
    if (!devices_[d].is_executor) continue;
    executors_.resize(model.num_devices);
    executors_[d].threads.resize(model.executor_threads[d]);
  }
}

void Engine::Load(const Slots& slots, const int32_t* row, bool with_work) {
  const int32_t n = model_.num_ops;
  const int32_t* of_op = slots.of_op.data();
  const int32_t* indegree = model_.indegree.data();
  for (int32_t id = 0; id < n; ++id) ops_[id] = {indegree[id], row[of_op[id]]};
  for (Device& device : devices_) {
    device.ready.clear();
    device.running.clear();
    device.task = -1;
    device.available = device.remaining = 0;
  }
  for (Executor& executor : executors_) executor.Reset();
  changed_.clear();
  for (Memory& memory : memory_) memory = Memory();
  for (size_t i = 0; i < model_.persistent_ops.size(); ++i) {
    memory_[row[slots.of_persistent[i]]].now += model_.persistent_bytes[model_.persistent_ops[i]];
  }
  for (Memory& memory : memory_) memory.peak = memory.now;
  if (with_work) {
    for (int32_t s = 0; s < slots.width; ++s) {
      devices_[row[s]].remaining += slots.seconds[model_.kind_of_device[row[s]]][s];
    }
  }
  std::fill(channel_free_.begin(), channel_free_.end(), 0.0);
  for (Ring<Wire>& wires : channel_wires_) wires.clear();
  free_wires_.clear();
  transfers_.clear();
  std::fill(stamp_.begin(), stamp_.end(), -1);
  stamps_ = 0;
  sequence_ = 0;
  cut_ = false;
}

const Outcome& Engine::Run(const Slots& slots, const int32_t* row, double cutoff, TraceLog* log) {
  const bool with_cutoff = cutoff < kNever;
  Load(slots, row, with_cutoff);
  outcome_.Reset(model_.num_devices);
  limit_ = with_cutoff ? cutoff + cutoff * kRoundingMargin : kNever;
  log_ = log;
  if (log != nullptr) {
    log->op_ready.assign(model_.num_ops, 0);
    log->op_cause.assign(model_.num_ops, -1);
    log->op_reason.assign(model_.num_ops, kAtStart);
    log->op_span.assign(model_.num_ops, -1);
    log->channel_span.assign(model_.num_channels, -1);
    log->slot_buffer.assign(references_.size(), -1);
    log->temporary_buffer.assign(model_.num_ops, -1);
    log->owned_buffer.assign(model_.owned.size(), -1);
    for (int32_t d = 0; d < model_.num_devices; ++d) {
      log->memory.push_back({d, 0.0, memory_[d].now});
    }
  }
  if (with_cutoff) {
    for (const Device& device : devices_) {
      cut_ = cut_ || device.remaining / device.concurrency > limit_;
    }
  }
  if (!cut_) {
    if (log != nullptr) Simulate<Mode::kTrace>(true, kNever);
    else if (with_cutoff) Simulate<Mode::kCutoff>(true, cutoff);
    else Simulate<Mode::kPlain>(true, kNever);
  }
  if (with_cutoff && (cut_ || outcome_.step_seconds > cutoff)) outcome_.step_seconds = kNever;
  for (int32_t d = 0; d < model_.num_devices; ++d) {
    outcome_.peak_bytes[d] = memory_[d].peak;
    outcome_.peak_seconds[d] = memory_[d].peak_seconds;
  }
  return outcome_;
}

template <Engine::Mode kMode>
void Engine::Simulate(bool from_start, double cutoff) {
  const int32_t lanes = model_.num_devices + model_.num_channels + 1;
  if (lanes <= ScannedLanes::kMaxLanes) {
    if (from_start) {
      state_.scanned.Reset(lanes);
      Begin<ScannedLanes, kMode>(&state_.scanned);
    }
    Loop<ScannedLanes, kMode>(&state_.scanned, cutoff);
  } else {
    if (from_start) {
      state_.heap.Reset(lanes);
      Begin<HeapLanes, kMode>(&state_.heap);
    }
    Loop<HeapLanes, kMode>(&state_.heap, cutoff);
  }
}

template <typename Lanes, Engine::Mode kMode>
void Engine::Begin(Lanes* lanes) {
  for (int32_t id = 0; id < model_.num_sources; ++id) {
    MakeReady<kMode>(id, ops_[id].device, 0.0, kAtStart, false);
  }
  for (int32_t d = 0; d < model_.num_devices; ++d) Dispatch<Lanes, kMode>(lanes, d, 0.0);
  if (!changed_.empty()) ShareCores(lanes, 0.0);
}

template <typename Lanes, Engine::Mode kMode>
void Engine::Loop(Lanes* lanes, double cutoff) {
  const int32_t num_devices = model_.num_devices;
  const int32_t num_channels = model_.num_channels;
  double now = 0;
  for (;;) {
    const int32_t lane = lanes->Pick();
    if (lane < 0) break;
    now = lanes->time(lane);
    if (Cuts(kMode) && (cut_ || now > cutoff)) {
      cut_ = true;
      break;
    }
    if (lane < num_devices) {
      Device& device = devices_[lane];
      if (__builtin_expect(device.is_executor, false)) {
        EndOnExecutor<Lanes, kMode>(lanes, lane, now);
        if (kMode == Mode::kMove && converged_) return;
        ShareCores(lanes, now);
        continue;
      }
      const int32_t task = device.concurrency == 1 ? device.task : device.running.top().item;
      if (kMode == Mode::kBase && task < model_.num_ops) TakeCheckpoint(task, now);
      if (kMode == Mode::kMove && now >= marker_seconds_ && AtMarker(task, now)) {
        converged_ = true;
        return;
      }
      if (device.concurrency == 1) {
        device.task = -1;
        lanes->Clear(lane);
      } else {
        device.running.pop();
        if (device.running.empty()) {
          lanes->Clear(lane);
        } else {
          lanes->Set(lane, device.running.top().time, device.running.top().sequence);
        }
      }
      if (task < model_.num_ops) {
        if (kMode == Mode::kTrace) log_->cause = log_->op_span[task];
        EndOp<Lanes, kMode>(lanes, task, lane, now);
      } else {
        const int32_t id = (task - model_.num_ops) >> 1;
        const Transfer transfer = transfers_[id];
        if (((task - model_.num_ops) & 1) == 0) {
          if (kMode == Mode::kTrace) log_->cause = log_->stages[id].send;
          StartWire<Lanes, kMode>(lanes, transfer, id, now);
        } else {
          if (kMode == Mode::kTrace) log_->cause = log_->stages[id].recv;
          Deliver<kMode>(transfer.output, transfer.dst, now);
        }
      }
      Dispatch<Lanes, kMode>(lanes, lane, now);
    } else {
      Wire wire;
      if (lane < num_devices + num_channels) {
        Ring<Wire>& wires = channel_wires_[lane - num_devices];
        wire = wires.front();
        wires.pop();
        if (wires.empty()) {
          lanes->Clear(lane);
        } else {
          lanes->Set(lane, wires.front().end, wires.front().sequence);
        }
      } else {
        wire = free_wires_.top().item;
        free_wires_.pop();
        if (free_wires_.empty()) {
          lanes->Clear(lane);
        } else {
          lanes->Set(lane, free_wires_.top().time, free_wires_.top().sequence);
        }
      }
      if (wire.transfer < 0 || --transfers_[wire.transfer].parts == 0) {
        EndWire<Lanes, kMode>(lanes, wire, now);
        Dispatch<Lanes, kMode>(lanes, wire.dst, now);
      }
    }
    if (__builtin_expect(!changed_.empty(), false)) ShareCores(lanes, now);
  }
  outcome_.step_seconds = now;
}

template <Engine::Mode kMode>
inline void Engine::Queue(int32_t task, int32_t d, double now, double seconds) {
  Device& device = devices_[d];
  device.ready.push(task);
  if (Cuts(kMode)) device.available = std::max(device.available, now) + seconds;
}

__attribute__((noinline)) void Engine::ReadyOnExecutor(int32_t op, int32_t d, bool by_own_op) {
  if (by_own_op) executors_[d].FromOwnOp(op, model_.inline_op[op] != 0);
  else executors_[d].FromElsewhere(op);
}

// To be called before what is under way on an executor, or how fast, changes.
void Engine::BeforeChange(int32_t d, double now) {
  Executor& executor = executors_[d];
  if (executor.changed) return;
  if (executor.working) outcome_.busy_seconds[d] += now - executor.since;
  executor.Advance(now);
  executor.changed = true;
  changed_.push_back(d);
}

// At the end of an event: what is under way on executors that changed shares their cores anew. One
// that begins or ceases to work changes the speed of its neighbours.
template <typename Lanes>
__attribute__((noinline)) void Engine::ShareCores(Lanes* lanes, double now) {
  bool others = false;
  for (int32_t d : changed_) {
    const bool working = executors_[d].UnderWay() > 0;
    others = others || working != executors_[d].working;
    executors_[d].working = working;
  }
  if (others && model_.contends) {
    for (int32_t d = 0; d < model_.num_devices; ++d) {
      if (executors_[d].working) BeforeChange(d, now);
    }
  }
  for (int32_t d : changed_) {
    Executor& executor = executors_[d];
    executor.changed = false;
    double slower = 1;
    if (model_.contends) {
      const double* contention = model_.contention.data() + int64_t{d} * model_.num_devices;
      for (int32_t other = 0; other < model_.num_devices; ++other) {
        if (executors_[other].working) slower += contention[other];
      }
    }
    executor.slowdown = slower * std::max(1, executor.UnderWay());
    double end;
    uint64_t sequence;
    if (executor.Next(&end, &sequence)) lanes->Set(d, end, sequence);
    else lanes->Clear(d);
  }
  changed_.clear();
}

void Engine::AddTransferWork(int32_t d, int32_t id, double seconds, double now) {
  BeforeChange(d, now);
  executors_[d].transfers.push({seconds, sequence_++, id});
  ++transfers_[id].parts;
}

template <Engine::Mode kMode>
PLACER_INLINE void Engine::MakeReady(int32_t op, int32_t d, double now, int32_t reason,
                              bool by_own_op) {
  Device& device = devices_[d];
  if (__builtin_expect(device.is_executor, false)) {
    ReadyOnExecutor(op, d, by_own_op);
  } else {
    device.ready.push(op);
  }
  if (kMode == Mode::kTrace) {
    log_->op_ready[op] = now;
    log_->op_cause[op] = log_->cause;
    log_->op_reason[op] = reason;
  }
  if (Cuts(kMode)) {
    const OpCost& cost = device.costs[op];
    device.remaining -= cost.seconds;
    if (device.concurrency == 1) {
      // A device that runs one task at a time, first ready first, starts this one when everything
      // before it has ended: its start is known now. An executor may start it at once.
      const double after = std::max(device.available, now);
      const double start = device.is_executor ? now : after;
      const bool idle = now > device.available;
      device.available = after + cost.seconds;
      if (start + cost.rank > limit_ ||
          (idle && device.available + device.remaining > limit_)) {
        cut_ = true;
      }
    } else if (now + cost.rank > limit_) {
      cut_ = true;
    }
  }
}

template <typename Lanes, Engine::Mode kMode>
PLACER_INLINE void Engine::Dispatch(Lanes* lanes, int32_t d, double now) {
  Device& device = devices_[d];
  if (__builtin_expect(device.is_executor, false)) {
    DispatchExecutor<kMode>(d, now);
    return;
  }
  while (!device.ready.empty()) {
    if (device.concurrency == 1 ? device.task >= 0
                                : device.running.size() >= size_t(device.concurrency)) {
      return;
    }
    const int32_t task = device.ready.front();
    device.ready.pop();
    double seconds;
    if (task < model_.num_ops) {
      const OpCost& cost = device.costs[task];
      seconds = cost.seconds;
      if (kMode == Mode::kTrace) TraceOpBuffers(task, d);
      Allocate<kMode>(d, cost.start_bytes, now);
    } else {
      const Transfer& transfer = transfers_[(task - model_.num_ops) >> 1];
      const Link& link = model_.links[transfer.src * model_.num_devices + transfer.dst];
      const int64_t bytes = model_.outputs[transfer.output].copy_bytes;
      seconds = ((task - model_.num_ops) & 1) == 0 ? link.SendSeconds(bytes)
                                                   : link.RecvSeconds(bytes);
    }
    const double end = now + seconds;
    outcome_.busy_seconds[d] += seconds;
    if (kMode == Mode::kTrace) TraceStart(task, d, now, end);
    const uint64_t sequence = sequence_++;
    if (device.concurrency == 1) {
      device.task = task;
      lanes->Set(d, end, sequence);
    } else {
      device.running.push({end, sequence, task});
      lanes->Set(d, device.running.top().time, device.running.top().sequence);
    }
  }
}

template <Engine::Mode kMode>
__attribute__((noinline)) void Engine::DispatchExecutor(int32_t d, double now) {
  Executor& executor = executors_[d];
  for (size_t i = 0; i < executor.threads.size(); ++i) {
    ExecutorThread& thread = executor.threads[i];
    if (thread.op >= 0) continue;
    const int32_t op = executor.Take(i);
    if (op < 0) continue;
    BeforeChange(d, now);
    const OpCost& cost = devices_[d].costs[op];
    if (kMode == Mode::kTrace) TraceOpBuffers(op, d);
    Allocate<kMode>(d, cost.start_bytes, now);
    if (kMode == Mode::kTrace) TraceStart(op, d, now, now);  // EndOnExecutor knows the end
    thread.op = op;
    thread.left = cost.seconds;
    thread.sequence = sequence_++;
  }
}

template <typename Lanes, Engine::Mode kMode>
__attribute__((noinline)) void Engine::EndOnExecutor(Lanes* lanes, int32_t d, double now) {
  Executor& executor = executors_[d];
  if (executor.next == static_cast<int32_t>(executor.threads.size())) {
    const int32_t id = executor.transfers.front().transfer;
    BeforeChange(d, now);
    executor.transfers.pop();
    Transfer& transfer = transfers_[id];
    if (--transfer.parts == 0) {
      const int32_t dst = transfer.dst;
      EndWire<Lanes, kMode>(lanes, {now, 0, transfer.output, transfer.src, dst, id}, now);
      Dispatch<Lanes, kMode>(lanes, dst, now);
    }
    return;
  }
  ExecutorThread& thread = executor.threads[executor.next];
  const int32_t op = thread.op;
  if (kMode == Mode::kBase) TakeCheckpoint(op, now);
  if (kMode == Mode::kMove && now >= marker_seconds_ && AtMarker(op, now)) {
    converged_ = true;
    return;
  }
  BeforeChange(d, now);
  thread.op = -1;
  executor.ending = executor.next;
  if (kMode == Mode::kTrace) {
    log_->cause = log_->op_span[op];
    log_->spans[log_->cause].end = now;
  }
  EndOp<Lanes, kMode>(lanes, op, d, now);
  executor.EndOfOutputs();
  DispatchExecutor<kMode>(d, now);
}

// Every op ends once: what each fetches ahead of itself covers the arrays. Inlined by force, as GCC
// drops calls of a function that has no effect but prefetches.
PLACER_INLINE void Engine::PrefetchAhead(int32_t op, int32_t d) const {
  const size_t ahead = static_cast<size_t>(op) + kOpsAhead;
  const OpRange range = model_.ranges[op];
  const size_t output = static_cast<size_t>(range.output_begin) + kOpsAhead;
  const size_t edge = static_cast<size_t>(range.release_begin) + 2 * kOpsAhead;
  Prefetch<0>(model_.costs[model_.kind_of_device[d]], ahead);
  Prefetch<0>(model_.ranges, ahead);
  Prefetch<0>(model_.outputs, output);
  Prefetch<0>(model_.output_tensor, output);
  // An edge is a consumer of one op and a release of another: both arrays move on together.
  Prefetch<0>(model_.consumers, edge);
  Prefetch<0>(model_.releases, edge);
  Prefetch<1>(ops_, ahead + kOpsAhead);  // consumers are touched before they run
  Prefetch<1>(references_, BufferSlot(d, static_cast<int32_t>(range.output_begin)) + kOpsAhead);
}

template <typename Lanes, Engine::Mode kMode>
PLACER_INLINE void Engine::EndOp(Lanes* lanes, int32_t op, int32_t d, double now) {
  if (prefetches_) PrefetchAhead(op, d);
  const int32_t* consumers = model_.consumers.data();
  const int32_t output_end = model_.ranges[op + 1].output_begin;
  for (int32_t o = model_.ranges[op].output_begin; o < output_end; ++o) {
    const Output& output = model_.outputs[o];
    const int32_t stamp = stamps_++;
    int32_t users = 0;
    for (int32_t j = output.consumer_begin; j < output.consumer_end; ++j) {
      OpState& consumer = ops_[consumers[j]];
      if (kMode == Mode::kBase) Touch(consumers[j]);
      if (consumer.device == d) {
        ++users;
        if (--consumer.waiting == 0) {
          MakeReady<kMode>(consumers[j], d, now, model_.output_tensor[o] < 0 ? kControl : kData,
                           true);
        }
      } else if (stamp_[consumer.device] != stamp) {
        stamp_[consumer.device] = stamp;
        ++users;
        Request<Lanes, kMode>(lanes, o, d, consumer.device, now);
      }
    }
    if (output.alias < 0) {
      references_[BufferSlot(d, o)] = users;
    } else {
      // The buffer is the input's: the producer's own, or the copy that came to this device.
      const int32_t source = output.alias;
      const bool local = ops_[model_.outputs[source].producer].device == d;
      const int32_t root = local ? RootOf(source) : source;
      root_[o] = root;
      references_[BufferSlot(d, root)] += users;
    }
  }
  const OpCost& cost = devices_[d].costs[op];
  memory_[d].now -= cost.end_bytes;
  if (kMode == Mode::kTrace) {
    const int64_t point = static_cast<int64_t>(log_->memory.size());
    const int64_t temporary = log_->temporary_buffer[op];
    if (temporary >= 0) log_->buffers[temporary].end = point;
    for (int64_t j = model_.owned_begin[op]; j < model_.owned_begin[op + 1]; ++j) {
      if (model_.owned_output[j] < 0 && model_.owned[j].second > 0) {
        log_->buffers[log_->owned_buffer[j]].end = point;
      }
    }
    if (cost.end_bytes > 0) log_->memory.push_back({d, now, memory_[d].now});
  }
  const InputEdge* releases = model_.releases.data();
  for (int32_t j = model_.ranges[op].release_begin; j < model_.ranges[op + 1].release_begin; ++j) {
    const InputEdge edge = releases[j];
    int32_t buffer = edge.output();
    if (edge.alias() && ops_[edge.producer].device == d) buffer = root_[buffer];
    Release<kMode>(d, buffer, now);
  }
}

template <typename Lanes, Engine::Mode kMode>
PLACER_INLINE void Engine::Request(Lanes* lanes, int32_t output, int32_t src, int32_t dst, double now) {
  const Link& link = model_.links[src * model_.num_devices + dst];
  const Transfer transfer = {output, src, dst};
  int32_t id = -1;
  if (kMode == Mode::kTrace || link.send_task || link.recv_task || link.OverlapsWork()) {
    id = static_cast<int32_t>(transfers_.size());
    transfers_.push_back(transfer);
    if (kMode == Mode::kTrace) {
      log_->stages.push_back({now, log_->cause,
                              model_.output_tensor[output] < 0 ? kControl : kData, -1, -1, -1});
    }
  }
  if (link.send_task) {
    Queue<kMode>(model_.num_ops + 2 * id, src, now,
                   link.SendSeconds(model_.outputs[output].copy_bytes));
  } else {
    StartWire<Lanes, kMode>(lanes, transfer, id, now);
  }
}

template <typename Lanes, Engine::Mode kMode>
PLACER_INLINE void Engine::StartWire(Lanes* lanes, const Transfer& transfer, int32_t id, double now) {
  const Link& link = model_.links[transfer.src * model_.num_devices + transfer.dst];
  const int64_t bytes = model_.outputs[transfer.output].copy_bytes;
  const double seconds = link.WireSeconds(bytes);
  outcome_.transfer_seconds[transfer.src] += seconds;
  outcome_.transfer_bytes[transfer.src] += bytes;
  Wire wire = {0, sequence_++, transfer.output, transfer.src, transfer.dst, id};
  double start = now;
  int32_t blocker = -1;
  if (link.channel0 >= 0 && channel_free_[link.channel0] > start) {
    start = channel_free_[link.channel0];
    if (kMode == Mode::kTrace) blocker = log_->channel_span[link.channel0];
  }
  if (link.channel1 >= 0 && channel_free_[link.channel1] > start) {
    start = channel_free_[link.channel1];
    if (kMode == Mode::kTrace) blocker = log_->channel_span[link.channel1];
  }
  wire.end = start + seconds;
  if (link.channel1 >= 0) channel_free_[link.channel1] = wire.end;
  if (link.channel0 >= 0) channel_free_[link.channel0] = wire.end;
  if (link.send_beside) AddTransferWork(transfer.src, id, link.SendSeconds(bytes), now);
  if (link.recv_beside) AddTransferWork(transfer.dst, id, link.RecvSeconds(bytes), now);
  if (kMode == Mode::kTrace) {
    if (link.OverlapsWork() || (start > now && blocker < 0)) {
      // Parts that overlap have one span, waiting included, which may end after the channel is free.
      start = now;
      blocker = -1;
    }
    TraceLog::Stage& stage = log_->stages[id];
    stage.wire = static_cast<int32_t>(log_->spans.size());
    const int32_t producer = model_.outputs[transfer.output].producer;
    log_->spans.push_back({kWireSpan, blocker >= 0 ? kLinkBusy : stage.reason,
                           model_.op_of[producer], model_.output_tensor[transfer.output],
                           transfer.src, transfer.dst, blocker >= 0 ? blocker : log_->cause, id,
                           bytes, now, start, wire.end});
    const int32_t span = link.OverlapsWork() ? -1 : stage.wire;
    if (link.channel0 >= 0) log_->channel_span[link.channel0] = span;
    if (link.channel1 >= 0) log_->channel_span[link.channel1] = span;
  }
  if (link.channel0 >= 0) {
    // Reservations in request order: the wires of a channel end in that order too.
    Ring<Wire>& wires = channel_wires_[link.channel0];
    if (wires.empty()) lanes->Set(model_.num_devices + link.channel0, wire.end, wire.sequence);
    wires.push(wire);
  } else {
    free_wires_.push({wire.end, wire.sequence, wire});
    const auto& top = free_wires_.top();
    lanes->Set(model_.num_devices + model_.num_channels, top.time, top.sequence);
  }
}

template <typename Lanes, Engine::Mode kMode>
PLACER_INLINE void Engine::EndWire(Lanes* lanes, const Wire& wire, double now) {
  (void)lanes;
  const int64_t bytes = model_.outputs[wire.output].copy_bytes;
  if (kMode == Mode::kTrace) {
    log_->cause = log_->stages[wire.transfer].wire;
    log_->spans[log_->cause].end = now;  // of parts that overlap, the last has ended
    if (bytes > 0) {
      log_->slot_buffer[BufferSlot(wire.dst, wire.output)] =
          static_cast<int64_t>(log_->buffers.size());
      log_->buffers.push_back({kCopyBuffer, wire.dst,
                               model_.op_of[model_.outputs[wire.output].producer],
                               model_.output_tensor[wire.output], bytes,
                               static_cast<int64_t>(log_->memory.size()), INT64_MAX});
    }
  }
  Allocate<kMode>(wire.dst, bytes, now);
  Release<kMode>(wire.src, RootOf(wire.output), now);
  const Link& link = model_.links[wire.src * model_.num_devices + wire.dst];
  if (link.recv_task) {
    if (kMode == Mode::kTrace) {
      log_->stages[wire.transfer].ready = now;
      log_->stages[wire.transfer].cause = log_->cause;
    }
    Queue<kMode>(model_.num_ops + 2 * wire.transfer + 1, wire.dst, now,
                   link.RecvSeconds(bytes));
  } else {
    Deliver<kMode>(wire.output, wire.dst, now);
  }
}

template <Engine::Mode kMode>
PLACER_INLINE void Engine::Deliver(int32_t output, int32_t dst, double now) {
  const int32_t* consumers = model_.consumers.data();
  const int32_t end = model_.outputs[output].consumer_end;
  int32_t users = 0;
  for (int32_t j = model_.outputs[output].consumer_begin; j < end; ++j) {
    OpState& consumer = ops_[consumers[j]];
    if (consumer.device != dst) continue;
    ++users;
    if (--consumer.waiting == 0) {
      MakeReady<kMode>(consumers[j], dst, now,
                       model_.output_tensor[output] < 0 ? kControl : kData, false);
    }
  }
  references_[BufferSlot(dst, output)] = users;
}

template <Engine::Mode kMode>
PLACER_INLINE void Engine::Release(int32_t d, int32_t buffer, double now) {
  const size_t slot = BufferSlot(d, buffer);
  if (--references_[slot] != 0) return;
  const Output& output = model_.outputs[buffer];
  const bool local = ops_[output.producer].device == d;
  const int64_t bytes = local ? output.local_bytes : output.copy_bytes;
  memory_[d].now -= bytes;
  if (kMode == Mode::kTrace && bytes > 0) {
    log_->buffers[log_->slot_buffer[slot]].end = static_cast<int64_t>(log_->memory.size());
    log_->memory.push_back({d, now, memory_[d].now});
  }
}

template <Engine::Mode kMode>
PLACER_INLINE void Engine::Allocate(int32_t d, int64_t bytes, double now) {
  Memory& memory = memory_[d];
  memory.now += bytes;
  if (memory.now > memory.peak) {
    memory.peak = memory.now;
    memory.peak_seconds = now;
  }
  if (kMode == Mode::kTrace && bytes > 0) log_->memory.push_back({d, now, memory.now});
}

// Called from moves.cc.
template void Engine::Simulate<Engine::Mode::kBase>(bool, double);
template void Engine::Simulate<Engine::Mode::kMove>(bool, double);

}  // namespace placer
