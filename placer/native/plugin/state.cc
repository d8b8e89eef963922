#include "placer/native/plugin/state.h"

#include <pthread.h>

#include <algorithm>
#include <cstdio>

namespace placer::plugin {
namespace {

void AppendString(const std::string& text, std::string* out) {
  out->push_back('"');
  for (const char c : text) {
    const unsigned char byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
    } else if (byte < 0x20 || byte >= 0x7f) {  // Node names are ASCII; anything else is noise.
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", byte);
      out->append(escaped);
    } else {
      out->push_back(c);
    }
  }
  out->push_back('"');
}

void AppendNumber(const char* key, double value, std::string* out) {
  char text[64];
  std::snprintf(text, sizeof(text), ",\"%s\":%.9g", key, value);
  out->append(text);
}

void AppendInt(const char* key, int64_t value, std::string* out) {
  out->append(",\"").append(key).append("\":").append(std::to_string(value));
}

void AppendRecord(const GraphRecord& record, std::string* out) {
  out->append("{\"outcome\":");
  AppendString(record.outcome, out);
  AppendInt("nodes", record.nodes, out);
  AppendInt("moved", record.moved, out);
  AppendInt("in_place", record.in_place, out);
  AppendNumber("share", record.share, out);
  AppendNumber("seconds", record.seconds, out);
  AppendNumber("predicted_before", record.predicted_before, out);
  AppendNumber("predicted_after", record.predicted_after, out);
  out->append(",\"placements\":[");
  for (size_t i = 0; i < record.placements.size(); ++i) {
    if (i > 0) out->push_back(',');
    out->append(std::to_string(record.placements[i]));
  }
  out->append("],\"left\":{");
  bool first = true;
  for (size_t reason = 0; reason < record.left.size(); ++reason) {
    bool opened = false;
    for (const auto& [name, why] : record.left_nodes) {
      if (static_cast<size_t>(why) != reason) continue;
      if (!opened) {
        if (!first) out->push_back(',');
        AppendString(ReasonName(why), out);
        out->append(":[");
      } else {
        out->push_back(',');
      }
      opened = true;
      first = false;
      AppendString(name, out);
    }
    if (opened) out->push_back(']');
  }
  out->append("}}");
}

}  // namespace

State& State::Get() {
  static State* const state = new State();  // Never destroyed: threads may outlive main.
  return *state;
}

State::State() {
  pthread_atfork([] { State::Get().mutex_.lock(); }, [] { State::Get().mutex_.unlock(); },
                 [] { State::Get().mutex_.unlock(); });
}

void State::UpdateBusy() {
  busy_.store(!active_->empty() || !heuristics_.empty(), std::memory_order_release);
}

int64_t State::Activate(std::shared_ptr<StoredPlacement> placement) {
  const std::lock_guard<std::mutex> lock(mutex_);
  placement->id = next_id_++;
  auto next = std::make_shared<PlacementList>(*active_);
  next->push_back(std::move(placement));
  const int64_t id = next->back()->id;
  active_ = std::move(next);
  UpdateBusy();
  return id;
}

int64_t State::ActivateHeuristic(double limit_seconds) {
  const std::lock_guard<std::mutex> lock(mutex_);
  heuristics_.emplace_back(next_id_, limit_seconds);
  UpdateBusy();
  return next_id_++;
}

bool State::Deactivate(int64_t id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto heuristic = std::find_if(heuristics_.begin(), heuristics_.end(),
                                      [id](const auto& entry) { return entry.first == id; });
  const auto placement = std::find_if(active_->begin(), active_->end(),
                                      [id](const auto& entry) { return entry->id == id; });
  if (heuristic != heuristics_.end()) {
    heuristics_.erase(heuristic);
  } else if (placement != active_->end()) {
    auto next = std::make_shared<PlacementList>(*active_);
    next->erase(next->begin() + (placement - active_->begin()));
    active_ = std::move(next);
  } else {
    return false;
  }
  UpdateBusy();
  return true;
}

std::shared_ptr<const PlacementList> State::Active() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return active_;
}

HeuristicOptions State::heuristic() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (heuristics_.empty()) return {};
  return {true, heuristics_.back().second};
}

void State::Record(GraphRecord record) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++graphs_;
  if (!record.placements.empty() || record.heuristic) ++matched_;
  moved_ += record.moved;
  seconds_ += record.seconds;
  records_.push_back(std::move(record));
  if (records_.size() > kMaxRecords) records_.pop_front();
}

std::string State::ReportJson() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::string out = "{\"version\":1";
  AppendInt("active", static_cast<int64_t>(active_->size()), &out);
  AppendInt("idle_graphs", idle_graphs_.load(std::memory_order_relaxed), &out);
  AppendInt("graphs", graphs_, &out);
  AppendInt("matched", matched_, &out);
  AppendInt("moved", moved_, &out);
  AppendNumber("seconds", seconds_, &out);
  out.append(",\"records\":[");
  for (size_t i = 0; i < records_.size(); ++i) {
    if (i > 0) out.push_back(',');
    AppendRecord(records_[i], &out);
  }
  out.append("]}");
  return out;
}

void State::ResetReport() {
  const std::lock_guard<std::mutex> lock(mutex_);
  graphs_ = matched_ = moved_ = 0;
  seconds_ = 0;
  idle_graphs_.store(0, std::memory_order_relaxed);
  records_.clear();
}

bool State::FirstTime(const std::string& message) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (said_.size() >= kMaxMessages) return false;
  return said_.insert(message).second;
}

}  // namespace placer::plugin
