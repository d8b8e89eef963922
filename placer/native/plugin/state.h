// What is active in this process and what the pass has done so far; safe from any thread.
#ifndef PLACER_NATIVE_PLUGIN_STATE_H_
#define PLACER_NATIVE_PLUGIN_STATE_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "placer/native/plugin/pass.h"
#include "placer/native/plugin/placements.h"

namespace placer::plugin {

class State {
 public:
  // One per process. Its lock is held across fork, so that a child finds it free.
  static State& Get();

  // Adds a placement and returns its id.
  int64_t Activate(std::shared_ptr<StoredPlacement> placement);
  // Switches the heuristic on until the id that it returns is deactivated; of several, the limit
  // of the last counts.
  int64_t ActivateHeuristic(double limit_seconds);
  // False if nothing of that id is active.
  bool Deactivate(int64_t id);

  // Whether the pass has anything to do. One atomic load.
  bool idle() const { return !busy_.load(std::memory_order_acquire); }
  // What is active now. Later changes do not touch what was returned.
  std::shared_ptr<const PlacementList> Active() const;
  HeuristicOptions heuristic() const;

  void CountIdle() { idle_graphs_.fetch_add(1, std::memory_order_relaxed); }
  void Record(GraphRecord record);
  std::string ReportJson() const;
  void ResetReport();

  // Whether `message` is said for the first time.
  bool FirstTime(const std::string& message);

 private:
  State();
  void UpdateBusy();  // With mutex_ held.

  static constexpr size_t kMaxRecords = 32;
  static constexpr size_t kMaxMessages = 1000;

  mutable std::mutex mutex_;
  std::shared_ptr<const PlacementList> active_ = std::make_shared<PlacementList>();
  std::vector<std::pair<int64_t, double>> heuristics_;  // Id and limit; the last counts.
  int64_t next_id_ = 1;
  std::atomic<bool> busy_{false};
  std::atomic<int64_t> idle_graphs_{0};
  int64_t graphs_ = 0;
  int64_t matched_ = 0;
  int64_t moved_ = 0;
  double seconds_ = 0;
  std::deque<GraphRecord> records_;  // The latest.
  std::set<std::string> said_;
};

}  // namespace placer::plugin

#endif  // PLACER_NATIVE_PLUGIN_STATE_H_
