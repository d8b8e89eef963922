// A device that is a TensorFlow worker on one core: the threads of its executor, with the queues
// that they take ops from and steal from each other, and one more that works on transfers.
//
// All that is under way shares the core (processor sharing): with n of them, each advances at 1/n of
// its speed, slower by what working neighbours cost. What is left of each is kept as of `since`, and
// brought up to date (Advance) before anything of it changes.
#ifndef PLACER_NATIVE_SIMULATOR_EXECUTOR_H_
#define PLACER_NATIVE_SIMULATOR_EXECUTOR_H_

#include <cstdint>
#include <vector>

#include "lanes.h"

namespace placer {

// Work on one transfer at one of its ends.
struct TransferWork {
  double left;  // seconds
  uint64_t sequence;
  int32_t transfer;
};

struct ExecutorThread {
  int32_t op = -1;  // when it runs one
  double left = 0;  // seconds
  uint64_t sequence = 0;
  Ring<int32_t> inlined;  // ops that it runs next, one after another
  Ring<int32_t> stack;    // its queue of the pool, from the top (front) to the bottom (back)
};

struct Executor {
  std::vector<ExecutorThread> threads;
  Ring<TransferWork> transfers;  // the first is under way
  double since = 0;
  double slowdown = 1;   // seconds that one second of work takes
  bool working = false;  // whether anything was under way at the end of the last event
  bool changed = false;  // whether what is under way, or how fast, changes in this event
  int32_t next = -1;     // what ends first: a thread, or threads.size() for work on a transfer
  int32_t ending = 0;    // thread whose op ends now
  int32_t newest = -1;   // last op that it made ready for the pool

  void Reset() {
    for (ExecutorThread& thread : threads) {
      thread.op = -1;
      thread.inlined.clear();
      thread.stack.clear();
    }
    transfers.clear();
    since = 0;
    slowdown = 1;
    working = changed = false;
    next = newest = -1;
    ending = 0;
  }

  // An op that is ready at time 0 or by a transfer. (TensorFlow draws the thread at random.)
  void FromElsewhere(int32_t op) {
    ExecutorThread* shortest = &threads[0];
    for (ExecutorThread& thread : threads) {
      if (thread.stack.size() < shortest->stack.size()) shortest = &thread;
    }
    shortest->stack.push(op);
  }
  // An op that the one ending here makes ready.
  void FromOwnOp(int32_t op, bool runs_inline) {
    if (runs_inline) {
      threads[ending].inlined.push(op);
    } else {
      if (newest >= 0) threads[ending].stack.push_front(newest);
      newest = op;
    }
  }
  // The op that ends has made ready all that it does.
  void EndOfOutputs() {
    if (newest < 0) return;
    ExecutorThread& thread = threads[ending];
    if (thread.inlined.empty()) thread.inlined.push(newest);
    else thread.stack.push_front(newest);
    newest = -1;
  }
  // Takes the op that a thread without one runs next, or -1: its own, or one stolen.
  int32_t Take(size_t thread) {
    ExecutorThread& own = threads[thread];
    int32_t op = -1;
    if (!own.inlined.empty()) {
      op = own.inlined.front();
      own.inlined.pop();
    } else if (!own.stack.empty()) {
      op = own.stack.front();
      own.stack.pop();
    } else {
      for (ExecutorThread& other : threads) {
        if (other.stack.empty()) continue;
        op = other.stack.back();
        other.stack.pop_back();
        break;
      }
    }
    return op;
  }

  int32_t UnderWay() const {
    int32_t count = transfers.empty() ? 0 : 1;
    for (const ExecutorThread& thread : threads) count += thread.op >= 0;
    return count;
  }
  void Advance(double now) {
    const double done = (now - since) / slowdown;
    for (ExecutorThread& thread : threads) {
      if (thread.op >= 0) thread.left -= done;
    }
    if (!transfers.empty()) transfers.front().left -= done;
    since = now;
  }
  // Finds what ends first, of those with equal times what was started first. Returns whether there
  // is anything, when it ends and its sequence number.
  bool Next(double* end, uint64_t* sequence) {
    next = -1;
    double left = kNever;
    *sequence = 0;
    const auto consider = [&](int32_t index, double its_left, uint64_t its_sequence) {
      if (its_left > left || (its_left == left && its_sequence > *sequence)) return;
      next = index;
      left = its_left;
      *sequence = its_sequence;
    };
    const int32_t count = static_cast<int32_t>(threads.size());
    for (int32_t i = 0; i < count; ++i) {
      if (threads[i].op >= 0) consider(i, threads[i].left, threads[i].sequence);
    }
    if (!transfers.empty()) {
      consider(count, transfers.front().left, transfers.front().sequence);
    }
    // Rounding may leave a little less than nothing.
    *end = since + (left > 0 ? left : 0) * slowdown;
    return next >= 0;
  }
};

}  // namespace placer

#endif  // PLACER_NATIVE_SIMULATOR_EXECUTOR_H_
