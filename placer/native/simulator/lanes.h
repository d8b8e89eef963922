// Queues of the event loop: rings that keep their memory, and the set of next events.
#ifndef PLACER_NATIVE_SIMULATOR_LANES_H_
#define PLACER_NATIVE_SIMULATOR_LANES_H_

#include <cstdint>
#include <limits>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace placer {

constexpr double kNever = std::numeric_limits<double>::infinity();

// A double-ended queue whose memory is kept from run to run.
template <typename T>
class Ring {
 public:
  bool empty() const { return head_ == tail_; }
  uint32_t size() const { return tail_ - head_; }
  void clear() { head_ = tail_ = 0; }
  T& front() { return items_[head_ & mask_]; }
  const T& operator[](uint32_t i) const { return items_[(head_ + i) & mask_]; }
  T& back() { return items_[(tail_ - 1) & mask_]; }
  void pop() { ++head_; }
  void pop_back() { --tail_; }
  void push(const T& item) {
    if (tail_ - head_ == items_.size()) Grow();
    items_[tail_++ & mask_] = item;
  }
  void push_front(const T& item) {
    if (tail_ - head_ == items_.size()) Grow();
    items_[--head_ & mask_] = item;
  }

  Ring() = default;
  Ring(const Ring& other) { *this = other; }
  Ring& operator=(const Ring& other) {  // copies what is in the queue, not what it could hold
    if (this == &other) return *this;
    clear();
    for (uint32_t i = 0; i < other.size(); ++i) push(other[i]);
    return *this;
  }

 private:
  __attribute__((noinline)) void Grow() {
    const size_t size = items_.size();
    std::vector<T> wider(size == 0 ? 64 : 2 * size);
    for (uint32_t i = 0; i < size; ++i) wider[i] = items_[(head_ + i) & mask_];
    items_.swap(wider);
    head_ = 0;
    tail_ = static_cast<uint32_t>(size);
    mask_ = static_cast<uint32_t>(items_.size() - 1);
  }

  std::vector<T> items_;
  uint32_t head_ = 0, tail_ = 0, mask_ = 0;
};

// Every lane (a device, a channel, the links without channels) has at most one next event. Pick()
// returns the lane with the least (time, sequence), or -1 when none is left.
//
// A handful of lanes is scanned; that is faster than a heap up to several dozens.
class ScannedLanes {
 public:
  void Reset(int32_t lanes) {
    lanes_ = (lanes + 3) / 4 * 4;
    times_.assign(lanes_, kNever);
    sequence_.assign(lanes_, 0);
  }
  double time(int32_t lane) const { return times_[lane]; }
  uint64_t sequence(int32_t lane) const { return sequence_[lane]; }
  void Set(int32_t lane, double time, uint64_t sequence) {
    times_[lane] = time;
    sequence_[lane] = sequence;
  }
  void Clear(int32_t lane) { times_[lane] = kNever; }

  int32_t Pick() const {
    const double* times = times_.data();
#if defined(__SSE2__)
    __m128d low = _mm_loadu_pd(times), high = _mm_loadu_pd(times + 2);
    for (int32_t i = 4; i < lanes_; i += 4) {
      low = _mm_min_pd(low, _mm_loadu_pd(times + i));
      high = _mm_min_pd(high, _mm_loadu_pd(times + i + 2));
    }
    low = _mm_min_pd(low, high);
    low = _mm_min_pd(low, _mm_unpackhi_pd(low, low));
    low = _mm_unpacklo_pd(low, low);
    const double least = _mm_cvtsd_f64(low);
    if (least == kNever) return -1;
    uint64_t equal = 0;
    for (int32_t i = 0; i < lanes_; i += 4) {
      const int a = _mm_movemask_pd(_mm_cmpeq_pd(low, _mm_loadu_pd(times + i)));
      const int b = _mm_movemask_pd(_mm_cmpeq_pd(low, _mm_loadu_pd(times + i + 2)));
      equal |= static_cast<uint64_t>(a | b << 2) << i;
    }
    int32_t best = __builtin_ctzll(equal);
    for (equal &= equal - 1; equal != 0; equal &= equal - 1) {
      const int32_t lane = __builtin_ctzll(equal);
      if (sequence_[lane] < sequence_[best]) best = lane;
    }
    return best;
#else
    int32_t best = 0;
    for (int32_t i = 1; i < lanes_; ++i) {
      if (times[i] < times[best] ||
          (times[i] == times[best] && sequence_[i] < sequence_[best])) {
        best = i;
      }
    }
    return times[best] == kNever ? -1 : best;
#endif
  }

  static constexpr int32_t kMaxLanes = 64;

 private:
  int32_t lanes_ = 0;
  std::vector<double> times_;
  std::vector<uint64_t> sequence_;
};

// Many lanes: a binary heap of those that have an event.
class HeapLanes {
 public:
  void Reset(int32_t lanes) {
    times_.assign(lanes, kNever);
    sequence_.assign(lanes, 0);
    position_.assign(lanes, -1);
    heap_.clear();
    heap_.reserve(lanes);
  }
  double time(int32_t lane) const { return times_[lane]; }
  uint64_t sequence(int32_t lane) const { return sequence_[lane]; }
  int32_t Pick() const { return heap_.empty() ? -1 : heap_[0]; }
  void Set(int32_t lane, double time, uint64_t sequence) {
    times_[lane] = time;
    sequence_[lane] = sequence;
    int32_t at = position_[lane];
    if (at < 0) {
      at = static_cast<int32_t>(heap_.size());
      heap_.push_back(lane);
    }
    Settle(at, lane);
  }
  void Clear(int32_t lane) {
    const int32_t at = position_[lane];
    times_[lane] = kNever;
    if (at < 0) return;
    position_[lane] = -1;
    const int32_t moved = heap_.back();
    heap_.pop_back();
    if (moved != lane) Settle(at, moved);
  }

 private:
  bool Before(int32_t a, int32_t b) const {
    return times_[a] < times_[b] || (times_[a] == times_[b] && sequence_[a] < sequence_[b]);
  }
  void Settle(int32_t at, int32_t lane) {
    while (at > 0) {
      const int32_t parent = (at - 1) / 2;
      if (!Before(lane, heap_[parent])) break;
      heap_[at] = heap_[parent];
      position_[heap_[at]] = at;
      at = parent;
    }
    const int32_t size = static_cast<int32_t>(heap_.size());
    for (int32_t child = 2 * at + 1; child < size; child = 2 * at + 1) {
      if (child + 1 < size && Before(heap_[child + 1], heap_[child])) ++child;
      if (!Before(heap_[child], lane)) break;
      heap_[at] = heap_[child];
      position_[heap_[at]] = at;
      at = child;
    }
    heap_[at] = lane;
    position_[lane] = at;
  }

  std::vector<double> times_;
  std::vector<uint64_t> sequence_;
  std::vector<int32_t> position_, heap_;
};

// Events that end in no particular order: tasks of a device that runs several, wires of links that
// carry any number of transfers.
template <typename T>
class EventHeap {
 public:
  struct Entry {
    double time;
    uint64_t sequence;
    T item;
    bool After(const Entry& other) const {
      return time > other.time || (time == other.time && sequence > other.sequence);
    }
  };
  bool empty() const { return entries_.empty(); }
  size_t size() const { return entries_.size(); }
  void clear() { entries_.clear(); }
  const Entry& top() const { return entries_[0]; }
  const std::vector<Entry>& entries() const { return entries_; }
  void push(const Entry& entry) {
    size_t at = entries_.size();
    entries_.push_back(entry);
    for (; at > 0 && entries_[(at - 1) / 2].After(entry); at = (at - 1) / 2) {
      entries_[at] = entries_[(at - 1) / 2];
    }
    entries_[at] = entry;
  }
  void pop() {
    const Entry last = entries_.back();
    entries_.pop_back();
    const size_t size = entries_.size();
    if (size == 0) return;
    size_t at = 0;
    for (size_t child = 1; child < size; child = 2 * at + 1) {
      if (child + 1 < size && entries_[child].After(entries_[child + 1])) ++child;
      if (!last.After(entries_[child])) break;
      entries_[at] = entries_[child];
      at = child;
    }
    entries_[at] = last;
  }

 private:
  std::vector<Entry> entries_;
};

}  // namespace placer

#endif  // PLACER_NATIVE_SIMULATOR_LANES_H_
