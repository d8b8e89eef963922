#include "moves.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <tuple>

namespace placer {
namespace {

constexpr int32_t kMaxCheckpoints = 40;
constexpr int64_t kMaxCheckpointBytes = int64_t{256} << 20;

[[noreturn]] void FailMove(int64_t at, const std::string& what) {
  throw std::invalid_argument("moves[" + std::to_string(at) + "]: " + what);
}

void CheckMoves(const Model* model, const MoveBase& base, int32_t devices, int64_t rows,
                const int64_t* ptr, const int32_t* slots, const int32_t* to, int64_t count) {
  if (base.model != model) throw std::invalid_argument("the base is of another simulator");
  if (ptr[0] != 0 || ptr[rows] != count) {
    throw std::invalid_argument("move_ptr must run from 0 to " + std::to_string(count));
  }
  for (int64_t b = 0; b < rows; ++b) {
    if (ptr[b + 1] < ptr[b] || ptr[b + 1] > count) {
      throw std::invalid_argument("move_ptr[" + std::to_string(b + 1) + "] decreases");
    }
  }
  const int32_t width = static_cast<int32_t>(base.row.size());
  std::vector<int64_t> last(width, -1);
  for (int64_t b = 0; b < rows; ++b) {
    for (int64_t i = ptr[b]; i < ptr[b + 1]; ++i) {
      if (slots[i] < 0 || slots[i] >= width) {
        FailMove(b, "there is no " + std::to_string(slots[i]) + " among " +
                        std::to_string(width) + " ops or groups");
      }
      if (to[i] < 0 || to[i] >= devices) {
        FailMove(b, "device " + std::to_string(to[i]) + " is not one of 0 to " +
                        std::to_string(devices - 1));
      }
      if (last[slots[i]] == b) FailMove(b, "moves " + std::to_string(slots[i]) + " twice");
      last[slots[i]] = b;
    }
  }
}

// Rows of `items` by slot, in order.
void BySlot(const std::vector<int32_t>& slot_of, const std::vector<int32_t>* items, int32_t width,
            std::vector<int32_t>* begin, std::vector<int32_t>* rows) {
  begin->assign(width + 1, 0);
  for (int32_t slot : slot_of) ++(*begin)[slot + 1];
  for (int32_t s = 0; s < width; ++s) (*begin)[s + 1] += (*begin)[s];
  rows->resize(slot_of.size());
  std::vector<int32_t> next(begin->begin(), begin->end() - 1);
  for (size_t i = 0; i < slot_of.size(); ++i) {
    (*rows)[next[slot_of[i]]++] = items == nullptr ? static_cast<int32_t>(i) : (*items)[i];
  }
}

bool SameItems(const Ring<int32_t>& a, const Ring<int32_t>& b) {
  if (a.size() != b.size()) return false;
  for (uint32_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) return false;
  }
  return true;
}

// Whether two executors hold the same ops and share their cores in the same way; what is under way
// is compared with the other events.
bool SameExecutor(const Executor& a, const Executor& b) {
  if (a.working != b.working || a.transfers.size() != b.transfers.size() ||
      (a.working && (a.since != b.since || a.slowdown != b.slowdown))) {
    return false;
  }
  for (size_t i = 0; i < a.threads.size(); ++i) {
    if ((a.threads[i].op < 0) != (b.threads[i].op < 0) ||
        !SameItems(a.threads[i].inlined, b.threads[i].inlined) ||
        !SameItems(a.threads[i].stack, b.threads[i].stack)) {
      return false;
    }
  }
  return true;
}

}  // namespace

void BuildMoveBase(const Model& model, Engine* engine, const Slots& slots, const int32_t* row,
                   MoveBase* base) {
  base->model = &model;
  base->row.assign(row, row + slots.width);
  BySlot(slots.of_op, nullptr, slots.width, &base->slot_op_begin, &base->slot_ops);
  BySlot(slots.of_persistent, &model.persistent_ops, slots.width, &base->slot_persistent_begin,
         &base->slot_persistent);
  const int64_t bytes =
      int64_t{model.num_ops} * 8 + int64_t{model.num_devices} * model.num_outputs * 4;
  const int64_t fitting = std::max<int64_t>(2, kMaxCheckpointBytes / std::max<int64_t>(1, bytes));
  engine->RunBase(slots, static_cast<int32_t>(std::min<int64_t>(kMaxCheckpoints, fitting)), base);
  base->slot_touched.assign(slots.width, model.num_ops);
  base->slot_ended.assign(slots.width, -1);
  for (int32_t id = 0; id < model.num_ops; ++id) {
    const int32_t slot = slots.of_op[id];
    base->slot_touched[slot] = std::min(base->slot_touched[slot], base->op_touched[id]);
    base->slot_ended[slot] = std::max(base->slot_ended[slot], base->op_ended[id]);
  }
}

bool EvaluateMoves(const Model& model, EnginePool* engines, const MoveBase& base, int64_t rows,
                   const int64_t* move_ptr, const int32_t* move_slots, const int32_t* move_devices,
                   int64_t num_moves, const double* cutoffs, int threads,
                   const MoveResults& results, const std::function<bool()>& poll) {
  const int32_t devices = model.num_devices;
  CheckMoves(&model, base, devices, rows, move_ptr, move_slots, move_devices, num_moves);
  const auto evaluate = [&](int64_t b) {
    std::unique_ptr<Engine> engine = engines->Take();
    const Outcome& outcome =
        engine->RunMove(base, move_slots + move_ptr[b], move_devices + move_ptr[b],
                        move_ptr[b + 1] - move_ptr[b], cutoffs[b]);
    results.step_seconds[b] = outcome.step_seconds;
    bool feasible = outcome.step_seconds < kNever;
    for (int32_t d = 0; d < devices; ++d) {
      results.peak_bytes[b * devices + d] = outcome.peak_bytes[d];
      feasible = feasible && outcome.peak_bytes[d] <= model.memory_limit[d];
    }
    results.feasible[b] = feasible;
    engines->Give(std::move(engine));
  };
  return ParallelFor(rows, threads, evaluate, poll);
}

void Engine::RunBase(const Slots& slots, int32_t checkpoints, MoveBase* base) {
  Load(slots, base->row.data(), true);
  std::fill(references_.begin(), references_.end(), 0);
  outcome_.Reset(model_.num_devices);
  limit_ = kNever;
  log_ = nullptr;
  recording_ = base;
  ended_ = 0;
  base->interval = std::max<int64_t>(1, (model_.num_ops + checkpoints - 1) / checkpoints);
  base->op_touched.assign(model_.num_ops, model_.num_ops);
  std::fill(base->op_touched.begin(), base->op_touched.begin() + model_.num_sources, -1);
  base->op_ended.assign(model_.num_ops, 0);
  // The state before anything has started is the first checkpoint.
  base->checkpoints.clear();
  Checkpoint start;
  start.state = state_;
  start.ended = -1;
  start.seconds = -1;
  base->checkpoints.push_back(std::move(start));
  Simulate<Mode::kBase>(true, kNever);
  recording_ = nullptr;
  base->step_seconds = outcome_.step_seconds;
  // Peaks of the stretches become peaks before and after each checkpoint.
  const int32_t devices = model_.num_devices;
  const size_t count = base->checkpoints.size();
  std::vector<int64_t> highest(devices, 0);
  for (size_t c = 0; c < count; ++c) {
    Checkpoint& at = base->checkpoints[c];
    for (int32_t d = 0; d < devices; ++d) {
      highest[d] = std::max(highest[d], at.state.memory[d].peak);
    }
    at.peak_before = highest;
  }
  std::vector<int64_t> after(devices);
  for (int32_t d = 0; d < devices; ++d) after[d] = memory_[d].peak;
  for (size_t c = count; c-- > 0;) {
    Checkpoint& at = base->checkpoints[c];
    at.peak_after = after;
    for (int32_t d = 0; d < devices; ++d) {
      after[d] = std::max(after[d], at.state.memory[d].peak);
    }
  }
  base->peak_bytes = after;
}

void Engine::TakeCheckpoint(int32_t op, double now) {
  MoveBase* base = recording_;
  base->op_ended[op] = ended_;
  // The first op to end is always a checkpoint: behind it all sources are placed.
  if (ended_ % base->interval == 0) {
    base->checkpoints.emplace_back();
    Checkpoint& checkpoint = base->checkpoints.back();
    checkpoint.state = state_;
    checkpoint.ended = ended_;
    checkpoint.op = op;
    checkpoint.seconds = now;
    for (Memory& memory : memory_) memory.peak = memory.now;
  }
  ++ended_;
}

void Engine::Touch(int32_t op) {
  // TakeCheckpoint has counted the op that ends now.
  int64_t& touched = recording_->op_touched[op];
  touched = std::min(touched, ended_ - 1);
}

const Outcome& Engine::RunMove(const MoveBase& base, const int32_t* slots, const int32_t* devices,
                               int64_t count, double cutoff) {
  int64_t touched = model_.num_ops, ended = -1;
  for (int64_t i = 0; i < count; ++i) {
    if (base.row[slots[i]] == devices[i]) continue;
    touched = std::min(touched, base.slot_touched[slots[i]]);
    ended = std::max(ended, base.slot_ended[slots[i]]);
  }
  const auto after = [&base](int64_t ops) {  // first checkpoint at which more ops had ended
    return std::upper_bound(
        base.checkpoints.begin(), base.checkpoints.end(), ops,
        [](int64_t value, const Checkpoint& checkpoint) { return value < checkpoint.ended; });
  };
  const Checkpoint& from = *(after(touched) - 1);
  state_ = from.state;
  std::fill(stamp_.begin(), stamp_.end(), -1);
  stamps_ = 0;
  outcome_.Reset(model_.num_devices);
  shifts_.assign(model_.num_devices, 0);
  cut_ = converged_ = false;
  limit_ = cutoff < kNever ? cutoff + cutoff * kRoundingMargin : kNever;
  log_ = nullptr;
  base_ = &base;
  changed_.clear();
  moved_.clear();
  for (int32_t d = 0; d < model_.num_devices; ++d) memory_[d].peak = from.peak_before[d];
  // Persistent bytes shift the whole history of a device's memory.
  const auto shift = [this](int32_t d, int64_t bytes) {
    memory_[d].now += bytes;
    memory_[d].peak += bytes;
  };
  for (int64_t i = 0; i < count; ++i) {
    const int32_t slot = slots[i], source = base.row[slot], target = devices[i];
    if (source == target) continue;
    for (int32_t j = base.slot_op_begin[slot]; j < base.slot_op_begin[slot + 1]; ++j) {
      const int32_t op = base.slot_ops[j];
      ops_[op].device = target;
      moved_.push_back({op, source, target});
      devices_[source].remaining -= devices_[source].costs[op].seconds;
      devices_[target].remaining += devices_[target].costs[op].seconds;
    }
    for (int32_t j = base.slot_persistent_begin[slot]; j < base.slot_persistent_begin[slot + 1];
         ++j) {
      const int64_t bytes = model_.persistent_bytes[base.slot_persistent[j]];
      shift(source, -bytes);
      shift(target, bytes);
    }
  }
  for (int32_t d = 0; d < model_.num_devices; ++d) {
    shifts_[d] = memory_[d].now - from.state.memory[d].now;
    const Device& device = devices_[d];
    // Several tasks at once share the work; one at a time also has its queue in front.
    const double least = device.concurrency == 1 ? device.available + device.remaining
                                                 : device.remaining / device.concurrency;
    cut_ = cut_ || least > limit_;
  }
  marker_ = std::max(after(ended), after(from.ended)) - base.checkpoints.begin();
  marker_seconds_ = marker_ < static_cast<int64_t>(base.checkpoints.size())
                        ? base.checkpoints[marker_].seconds
                        : kNever;
  outcome_.step_seconds = base.step_seconds;
  if (!cut_) {
    if (touched == model_.num_ops) {
      converged_ = true;  // nothing that runs has moved
      marker_ = &from - base.checkpoints.data();
    } else {
      Simulate<Mode::kMove>(&from == &base.checkpoints.front(), cutoff);
    }
  }
  for (int32_t d = 0; d < model_.num_devices; ++d) {
    outcome_.peak_bytes[d] = memory_[d].peak;
    if (converged_) {
      outcome_.peak_bytes[d] =
          std::max(memory_[d].peak, base.checkpoints[marker_].peak_after[d] + shifts_[d]);
    }
  }
  if (converged_) outcome_.step_seconds = base.step_seconds;
  if (cut_ || outcome_.step_seconds > cutoff) outcome_.step_seconds = kNever;
  return outcome_;
}

bool Engine::AtMarker(int32_t task, double now) {
  const std::vector<Checkpoint>& checkpoints = base_->checkpoints;
  const Checkpoint& marker = checkpoints[marker_];
  if (task == marker.op && now == marker.seconds && Converged(marker, now)) return true;
  while (marker_ < static_cast<int64_t>(checkpoints.size()) &&
         (checkpoints[marker_].seconds < now ||
          (checkpoints[marker_].seconds == now && checkpoints[marker_].op == task))) {
    ++marker_;
  }
  marker_seconds_ = marker_ < static_cast<int64_t>(checkpoints.size())
                        ? checkpoints[marker_].seconds
                        : kNever;
  return false;
}

// Whether the rest of this run is that of the base: the same ops wait for the same inputs, the same
// tasks and transfers are queued and under way in the same order, the same buffers have the same
// users. Numbers of transfers and sequence numbers may differ, their order may not.
bool Engine::Converged(const Checkpoint& checkpoint, double now) {
  const State& base = checkpoint.state;
  // Time, or what is left of something under way on an executor; sequence number; what it is.
  using Event = std::tuple<double, uint64_t, int32_t, int32_t, int32_t, int32_t, int32_t>;
  const auto identity = [this](const State& state, int32_t task) {
    if (task < model_.num_ops) return std::make_tuple(task, -1, -1, -1);
    const Transfer& transfer = state.transfers[(task - model_.num_ops) >> 1];
    return std::make_tuple(model_.num_ops + ((task - model_.num_ops) & 1), transfer.output,
                           transfer.src, transfer.dst);
  };
  for (int32_t d = 0; d < model_.num_devices; ++d) {
    const Device& a = devices_[d];
    const Device& b = base.devices[d];
    if (memory_[d].now != base.memory[d].now + shifts_[d]) return false;
    if ((a.task < 0) != (b.task < 0) || a.running.size() != b.running.size() ||
        a.ready.size() != b.ready.size()) {
      return false;
    }
    if (a.is_executor && !SameExecutor(executors_[d], base.executors[d])) return false;
    for (uint32_t i = 0; i < a.ready.size(); ++i) {
      if (identity(state_, a.ready[i]) != identity(base, b.ready[i])) return false;
    }
  }
  for (int32_t c = 0; c < model_.num_channels; ++c) {
    if (std::max(channel_free_[c], now) != std::max(base.channel_free[c], now) ||
        channel_wires_[c].size() != base.channel_wires[c].size()) {
      return false;
    }
  }
  if (free_wires_.size() != base.free_wires.size()) return false;
  const bool scanned =
      model_.num_devices + model_.num_channels + 1 <= ScannedLanes::kMaxLanes;
  const auto events = [&](const State& state) {
    std::vector<Event> list;
    const auto add = [&](double time, uint64_t sequence, int32_t task) {
      list.push_back(std::tuple_cat(std::make_tuple(time, sequence), identity(state, task),
                                    std::make_tuple(0)));
    };
    const auto wire = [&](const Wire& w) {
      const int32_t parts = w.transfer < 0 ? 1 : state.transfers[w.transfer].parts;
      list.emplace_back(w.end, w.sequence, model_.num_ops + 2, w.output, w.src, w.dst, parts);
    };
    for (int32_t d = 0; d < model_.num_devices; ++d) {
      const Device& device = state.devices[d];
      if (device.task >= 0) {
        if (scanned) add(state.scanned.time(d), state.scanned.sequence(d), device.task);
        else add(state.heap.time(d), state.heap.sequence(d), device.task);
      }
      for (const auto& entry : device.running.entries()) {
        add(entry.time, entry.sequence, entry.item);
      }
      if (!device.is_executor) continue;
      const Executor& executor = state.executors[d];
      for (size_t i = 0; i < executor.threads.size(); ++i) {
        const ExecutorThread& thread = executor.threads[i];
        if (thread.op < 0) continue;
        list.emplace_back(thread.left, thread.sequence, thread.op, static_cast<int32_t>(i), -1, -1,
                          0);
      }
      for (uint32_t i = 0; i < executor.transfers.size(); ++i) {
        const TransferWork& work = executor.transfers[i];
        const Transfer& transfer = state.transfers[work.transfer];
        list.emplace_back(work.left, work.sequence, model_.num_ops + 3 + (d == transfer.dst),
                          transfer.output, transfer.src, transfer.dst, transfer.parts);
      }
    }
    for (const Ring<Wire>& wires : state.channel_wires) {
      for (uint32_t i = 0; i < wires.size(); ++i) wire(wires[i]);
    }
    for (const auto& entry : state.free_wires.entries()) wire(entry.item);
    if (executors_.empty()) {
      std::sort(list.begin(), list.end());
    } else {
      // When each will end is not known yet, so all of them must have begun in the same order.
      std::sort(list.begin(), list.end(),
                [](const Event& a, const Event& b) { return std::get<1>(a) < std::get<1>(b); });
    }
    for (Event& event : list) std::get<1>(event) = 0;  // only the order counts
    return list;
  };
  if (events(state_) != events(base)) return false;
  int32_t differs = 0;
  for (int32_t id = 0; id < model_.num_ops; ++id) {
    differs |= ops_[id].waiting ^ base.ops[id].waiting;
  }
  if (differs != 0) return false;
  const int32_t* mask = model_.output_has_bytes.data();
  for (int32_t d = 0; d < model_.num_devices; ++d) {
    const int32_t* a = references_.data() + BufferSlot(d, 0);
    const int32_t* b = base.references.data() + BufferSlot(d, 0);
    for (int32_t o = 0; o < model_.num_outputs; ++o) differs |= (a[o] ^ b[o]) & mask[o];
    if (differs != 0) return false;
  }
  // What is a producer's own buffer in one run is a received copy in the other.
  for (const Move& move : moved_) {
    const int32_t end = model_.ranges[move.op + 1].output_begin;
    for (int32_t o = model_.ranges[move.op].output_begin; o < end; ++o) {
      if (model_.outputs[o].copy_bytes != model_.outputs[o].local_bytes &&
          (references_[BufferSlot(move.source, o)] != 0 ||
           references_[BufferSlot(move.target, o)] != 0)) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace placer
