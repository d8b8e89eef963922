// The bound follows Papadimitriou and Yannakakis, "Towards an architecture-independent analysis of
// parallel algorithms" (SIAM J. Computing 19, 1990), for devices of several kinds, transfers of
// several sizes and no duplication of work. Say an op starts on a device at time T. An ancestor
// whose result, made on any other device, would reach it later than T must be on the same device.
// All such ancestors run there one after another (or `concurrency` at once) before T; the least T
// that leaves room for them is a bound of the start. Bounds of ancestors enter those of later ops.
// Time reversed, the same gives the least time from an op's end to the end of the step.
#include "transfer_bound.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <queue>
#include <utility>

namespace placer {
namespace {

constexpr double kNotAllowed = std::numeric_limits<double>::infinity();
// Ancestors of one op that are looked at, the nearest; fewer in large graphs, to end in a second.
constexpr int64_t kMostAncestors = 256;
constexpr int64_t kMostSteps = 400'000'000;

// Devices that differ in their links and in what may run on them only.
struct DeviceClass {
  int32_t kind = 0, concurrency = 1;
  std::vector<int32_t> devices;
};

// What a transfer between different devices of two classes takes at least: its longest part, since
// the sender's and the receiver's may overlap with the wire.
struct LeastTransfer {
  struct Part {
    double seconds = kNotAllowed, seconds_per_byte = 0;
    void Include(double fixed, double per_byte) {
      const bool first = !(seconds < kNotAllowed);
      seconds = std::min(seconds, fixed);
      seconds_per_byte = first ? per_byte : std::min(seconds_per_byte, per_byte);
    }
    double Of(double bytes) const { return seconds + bytes * seconds_per_byte; }
  };
  Part wire, sender, receiver;
  double Of(double bytes) const {
    return std::max({wire.Of(bytes), sender.Of(bytes), receiver.Of(bytes)});
  }
};

struct Edge {
  int32_t from;
  double bytes;
};

class Heads {
 public:
  // The graph of the model, or if `reversed` that with time running backwards.
  Heads(const Model& model, const std::vector<char>& usable, const std::vector<int32_t>& group,
        bool reversed);

  void Compute();
  size_t num_classes() const { return classes_.size(); }
  // Bound of the start of an op on any device of a class, infinite where it may not run.
  double Of(int32_t op, size_t c) const { return head_[op * classes_.size() + c]; }
  double Seconds(int32_t op, size_t c) const { return seconds_[op * classes_.size() + c]; }

 private:
  void MakeClasses(const std::vector<char>& usable);
  void MakeEdges();
  int32_t Next(int32_t i) const { return reversed_ ? model_.num_ops - 1 - i : i; }
  double Start(int32_t op, size_t c);
  void Gather(int32_t op, size_t c);
  double Sequence(size_t forced, size_t c) const;

  // States of an ancestor: 0 on the op's own device, 1 + k on another of class k.
  double Transfer(size_t from, size_t to, size_t own, double bytes) const {
    if (from == to) return 0;  // may be one device
    const size_t a = from == 0 ? own : from - 1, b = to == 0 ? own : to - 1;
    return transfers_[a * classes_.size() + b].Of(bytes);
  }
  // Infinite where no such device may run the op.
  double StateSeconds(int32_t op, size_t state, size_t own) const {
    if (state == 0) return Seconds(op, own);
    if (state - 1 == own && classes_[own].devices.size() < 2) return kNotAllowed;
    return Seconds(op, state - 1);
  }

  const Model& model_;
  const std::vector<int32_t>& group_;
  const bool reversed_;
  size_t most_ancestors_ = 0;
  std::vector<DeviceClass> classes_;
  std::vector<LeastTransfer> transfers_;  // [classes, classes]
  std::vector<double> seconds_, head_;    // [num_ops, classes]
  std::vector<int64_t> edge_begin_;       // [num_ops + 1]
  std::vector<Edge> edges_;               // from those that come before in time

  // The ancestors of the op at hand.
  struct Ancestor {
    double head = 0, seconds = 0, tail = 0;  // on the op's device
    double elsewhere = 0;                    // when the op can start if this is on another device
    size_t rank = 0;                         // in order of falling `elsewhere`
  };
  std::vector<Ancestor> ancestors_;
  std::vector<size_t> by_head_, by_tail_, by_elsewhere_;  // falling
  std::vector<int32_t> row_;                              // [num_ops] of tails_, or -1
  std::vector<double> tails_;                             // [rows, states] to the op's start
};

Heads::Heads(const Model& model, const std::vector<char>& usable,
             const std::vector<int32_t>& group, bool reversed)
    : model_(model), group_(group), reversed_(reversed), row_(model.num_ops, -1) {
  MakeClasses(usable);
  MakeEdges();
  head_.assign(model.num_ops * classes_.size(), kNotAllowed);
  const int64_t states = static_cast<int64_t>(classes_.size()) + 1;
  const int64_t degree = 1 + static_cast<int64_t>(edges_.size()) / std::max(1, model.num_ops);
  const int64_t steps = std::max(1, model.num_ops) * (states - 1) * degree * states * states;
  most_ancestors_ = static_cast<size_t>(std::min(kMostAncestors, kMostSteps / steps));
}

void Heads::MakeClasses(const std::vector<char>& usable) {
  const int32_t devices = model_.num_devices;
  for (int32_t d = 0; d < devices; ++d) {
    const int32_t kind = model_.kind_of_device[d], concurrency = model_.concurrency[d];
    auto same = std::find_if(classes_.begin(), classes_.end(), [&](const DeviceClass& c) {
      return c.kind == kind && c.concurrency == concurrency;
    });
    if (same == classes_.end()) same = classes_.insert(same, {kind, concurrency, {}});
    same->devices.push_back(d);
  }
  const size_t count = classes_.size();
  transfers_.resize(count * count);
  for (size_t a = 0; a < count; ++a) {
    for (size_t b = 0; b < count; ++b) {
      LeastTransfer& least = transfers_[a * count + b];
      for (int32_t i : classes_[a].devices) {
        for (int32_t j : classes_[b].devices) {
          if (i == j) continue;
          const Link& link = model_.links[reversed_ ? j * devices + i : i * devices + j];
          least.wire.Include(link.latency, link.seconds_per_byte);
          least.sender.Include(link.send_seconds, link.send_seconds_per_byte);
          least.receiver.Include(link.recv_seconds, link.recv_seconds_per_byte);
        }
      }
    }
  }
  seconds_.assign(model_.num_ops * count, kNotAllowed);
  for (int32_t op = 0; op < model_.num_ops; ++op) {
    for (size_t c = 0; c < count; ++c) {
      for (int32_t d : classes_[c].devices) {
        if (usable[static_cast<size_t>(op) * devices + d]) {
          seconds_[op * count + c] = model_.costs[classes_[c].kind][op].seconds;
        }
      }
    }
  }
}

void Heads::MakeEdges() {
  const auto each = [this](auto&& visit) {
    for (int32_t op = 0; op < model_.num_ops; ++op) {
      for (int32_t o = model_.ranges[op].output_begin; o < model_.ranges[op + 1].output_begin;
           ++o) {
        const Output& output = model_.outputs[o];
        for (int32_t j = output.consumer_begin; j < output.consumer_end; ++j) {
          const int32_t reader = model_.consumers[j];
          visit(reversed_ ? reader : op, reversed_ ? op : reader,
                static_cast<double>(output.copy_bytes));
        }
      }
    }
  };
  edge_begin_.assign(model_.num_ops + 1, 0);
  each([this](int32_t, int32_t to, double) { ++edge_begin_[to + 1]; });
  std::partial_sum(edge_begin_.begin(), edge_begin_.end(), edge_begin_.begin());
  edges_.resize(edge_begin_.back());
  std::vector<int64_t> next(edge_begin_.begin(), edge_begin_.end() - 1);
  each([&](int32_t from, int32_t to, double bytes) { edges_[next[to]++] = {from, bytes}; });
}

void Heads::Compute() {
  for (int32_t i = 0; i < model_.num_ops; ++i) {
    const int32_t op = Next(i);
    for (size_t c = 0; c < classes_.size(); ++c) {
      if (Seconds(op, c) < kNotAllowed) head_[op * classes_.size() + c] = Start(op, c);
    }
  }
}

// The nearest ancestors of `op`, which is on a device of class `c`: when each can end at best, and
// the least time from its end to the op's start, by the device it is on.
void Heads::Gather(int32_t op, size_t c) {
  const size_t states = classes_.size() + 1;
  const auto position = [this](int32_t id) { return reversed_ ? model_.num_ops - 1 - id : id; };
  std::priority_queue<int32_t> open;  // positions: every op comes before its ancestors
  std::vector<int32_t> touched;
  std::vector<double> behind(states);
  tails_.clear();
  ancestors_.clear();
  const auto relax = [&](const Edge& edge, bool direct) {
    int32_t& row = row_[edge.from];
    if (row < 0) {
      row = static_cast<int32_t>(touched.size());
      touched.push_back(edge.from);
      tails_.resize(tails_.size() + states, 0.0);
      open.push(position(edge.from));
    }
    for (size_t s = 0; s < states; ++s) {
      double least = kNotAllowed;
      if (direct) {
        least = Transfer(s, 0, c, edge.bytes);
      } else {
        for (size_t t = 0; t < states; ++t) {
          if (behind[t] < least) {
            least = std::min(least, behind[t] + Transfer(s, t, c, edge.bytes));
          }
        }
      }
      double& tail = tails_[row * states + s];
      tail = std::max(tail, least);
    }
  };
  const auto relax_all = [&](int32_t reader, bool direct) {
    for (int64_t e = edge_begin_[reader]; e < edge_begin_[reader + 1]; ++e) {
      relax(edges_[e], direct);
    }
  };
  relax_all(op, true);
  const size_t direct = touched.size();  // all of these are needed
  while (!open.empty() && ancestors_.size() < std::max(most_ancestors_, direct)) {
    const int32_t id = Next(open.top());
    open.pop();
    const size_t row = row_[id];
    Ancestor ancestor;
    ancestor.head = Of(id, c);
    ancestor.seconds = Seconds(id, c);
    ancestor.tail = tails_[row * states];
    ancestor.elsewhere = kNotAllowed;
    for (size_t s = 0; s < states; ++s) {
      behind[s] = StateSeconds(id, s, c) + tails_[row * states + s];
      if (s > 0 && (group_[id] < 0 || group_[id] != group_[op])) {
        ancestor.elsewhere = std::min(ancestor.elsewhere, behind[s] + Of(id, s - 1));
      }
    }
    ancestors_.push_back(ancestor);
    if (ancestors_.size() < most_ancestors_) relax_all(id, false);
  }
  for (int32_t id : touched) row_[id] = -1;
}

// Bound of the start if the `forced` ancestors of latest `elsewhere` are on the op's device.
double Heads::Sequence(size_t forced, size_t c) const {
  const double capacity = classes_[c].concurrency;
  double best = 0;
  // Those that start late, or leave much to do, are in the way of each other most.
  for (const bool heads : {true, false}) {
    double sum = 0, least = kNotAllowed;
    for (size_t i : heads ? by_head_ : by_tail_) {
      const Ancestor& a = ancestors_[i];
      if (a.rank >= forced) continue;
      if (!(a.seconds < kNotAllowed)) return kNotAllowed;
      sum += a.seconds;
      least = std::min(least, heads ? a.tail : a.head);
      best = std::max(best, sum / capacity + least + (heads ? a.head : a.tail));
    }
  }
  return best;
}

double Heads::Start(int32_t op, size_t c) {
  Gather(op, c);
  const size_t count = ancestors_.size();
  // Every ancestor is on the op's device or elsewhere.
  double least = 0;
  for (const Ancestor& a : ancestors_) {
    least = std::max(least, std::min(a.head + a.seconds + a.tail, a.elsewhere));
  }
  const auto falling = [&](std::vector<size_t>* order, double Ancestor::*key) {
    order->resize(count);
    std::iota(order->begin(), order->end(), size_t{0});
    std::sort(order->begin(), order->end(), [&](size_t x, size_t y) {
      return std::make_pair(-(ancestors_[x].*key), x) < std::make_pair(-(ancestors_[y].*key), y);
    });
  };
  falling(&by_elsewhere_, &Ancestor::elsewhere);
  falling(&by_head_, &Ancestor::head);
  falling(&by_tail_, &Ancestor::tail);
  for (size_t i = 0; i < count; ++i) ancestors_[by_elsewhere_[i]].rank = i;
  // A start from next(k) on forces no more than k ancestors; a start before it forces one more. So
  // the start is at least max(next(k), Sequence(k)) for one k, and at least the least of these.
  // The first falls with k and the second rises: look for where they cross.
  const auto next = [&](size_t k) {
    return k < count ? ancestors_[by_elsewhere_[k]].elsewhere : 0.0;
  };
  size_t low = 0, high = count;  // the first k with next(k) <= Sequence(k)
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (next(middle) <= Sequence(middle, c)) high = middle;
    else low = middle + 1;
  }
  double start = std::max(next(low), Sequence(low, c));
  if (low > 0) start = std::min(start, next(low - 1));
  return std::max(least, start);
}

}  // namespace

TransferBound ComputeTransferBound(const Model& model, const std::vector<char>& usable,
                                   const std::vector<int32_t>& group) {
  TransferBound bound;
  bound.heads.assign(model.num_ops, kNotAllowed);
  bound.tails.assign(model.num_ops, kNotAllowed);
  Heads heads(model, usable, group, false), tails(model, usable, group, true);
  heads.Compute();
  tails.Compute();
  for (int32_t op = 0; op < model.num_ops; ++op) {
    double least = kNotAllowed;
    for (size_t c = 0; c < heads.num_classes(); ++c) {
      bound.heads[op] = std::min(bound.heads[op], heads.Of(op, c));
      bound.tails[op] = std::min(bound.tails[op], tails.Of(op, c));
      least = std::min(least, heads.Of(op, c) + heads.Seconds(op, c) + tails.Of(op, c));
    }
    bound.seconds = std::max(bound.seconds, least);
  }
  return bound;
}

}  // namespace placer
