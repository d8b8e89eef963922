#include "placer/native/plugin/plugin.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "placer/native/plugin/pass.h"
#include "placer/native/plugin/state.h"
#include "placer/native/plugin/tensorflow_api.h"

namespace placer::plugin {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<bool> registered{false};

void LogOnce(const std::string& message) {
  if (State::Get().FirstTime(message)) {
    std::fprintf(stderr, "placer plugin: %s\n", message.c_str());
  }
}

Knowledge TensorFlowKnowledge() { return {&TensorFlowOps(), &TensorFlowKernels}; }

// Runs the pass with what is active and says once what went wrong.
bool RunActive(std::string_view graph, const std::vector<std::string>& devices, std::string* out,
               GraphRecord* record) {
  State& state = State::Get();
  const std::shared_ptr<const PlacementList> active = state.Active();
  const Knowledge knowledge = TensorFlowKnowledge();
  if (knowledge.ops->empty()) {
    record->outcome = "error: TensorFlow did not tell its op types";
  }
  const bool changed =
      !knowledge.ops->empty() &&
      RunPass(graph, *active, state.heuristic(), devices, knowledge, out, record);
  if (record->outcome.compare(0, 6, "error:") == 0) {
    LogOnce("left a graph as it was: " + record->outcome.substr(7));
  } else if (record->outcome == "ambiguous") {
    LogOnce("left a graph as it was: placements of different graphs match it equally well");
  } else if (record->left[static_cast<size_t>(Reason::kNoDevice)] > 0) {
    LogOnce(
        "a placement names devices that the session does not have; the nodes meant for them stay "
        "where TensorFlow placed them");
  }
  return changed;
}

void Record(GraphRecord record, Clock::time_point start) {
  record.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  State::Get().Record(std::move(record));
}

bool CopyToBuffer(std::string_view bytes, TF_Buffer* buffer) {
  void* data = std::malloc(bytes.empty() ? 1 : bytes.size());
  if (data == nullptr) return false;
  std::memcpy(data, bytes.data(), bytes.size());
  buffer->data = data;
  buffer->length = bytes.size();
  buffer->data_deallocator = [](void* pointer, size_t) { std::free(pointer); };
  return true;
}

void Optimize(void*, const TF_Buffer* graph, const TF_GrapplerItem* item, TF_Buffer* optimized,
              TF_Status* status) {
  const std::string_view bytes(static_cast<const char*>(graph->data), graph->length);
  try {
    if (State::Get().idle()) {
      State::Get().CountIdle();
    } else {
      const Clock::time_point start = Clock::now();
      std::string out;
      GraphRecord record;
      const bool changed = RunActive(bytes, SessionDevices(item), &out, &record) &&
                           CopyToBuffer(out, optimized);
      Record(std::move(record), start);
      if (changed) return;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "placer plugin: left a graph as it was: %s\n", error.what());
  }
  if (!SetNothingDone(status)) CopyToBuffer(bytes, optimized);
}

std::vector<std::string> Lines(const char* text) {
  std::vector<std::string> lines;
  if (text == nullptr) return lines;
  std::string_view rest(text);
  while (!rest.empty()) {
    const size_t end = rest.find('\n');
    if (end != 0) lines.emplace_back(rest.substr(0, end));
    if (end == std::string_view::npos) break;
    rest.remove_prefix(end + 1);
  }
  return lines;
}

}  // namespace
}  // namespace placer::plugin

using placer::plugin::State;

extern "C" __attribute__((visibility("default"))) void TF_InitGraph(
    TP_OptimizerRegistrationParams* params, TF_Status* status) {
  if (placer::plugin::registered.exchange(true)) {
    // TensorFlow ends the process if a device type gets a second optimizer.
    placer::plugin::SetError(status, "Placer's plugin is loaded already");
    return;
  }
  params->struct_size = TP_OPTIMIZER_REGISTRATION_PARAMS_STRUCT_SIZE;
  params->device_type = "CPU";
  params->optimizer_configs->struct_size = TP_OPTIMIZER_CONFIGS_STRUCT_SIZE;
  params->optimizer->struct_size = TP_OPTIMIZER_STRUCT_SIZE;
  params->optimizer->optimize_func = placer::plugin::Optimize;
}

int32_t placer_plugin_version() { return 2; }

int32_t placer_plugin_registered() { return placer::plugin::registered.load() ? 1 : 0; }

int64_t placer_plugin_activate(const char* placement, size_t size, char* error,
                               size_t error_size) {
  std::string why;
  try {
    placer::plugin::TensorFlowOps();  // Read now rather than while a session waits.
    auto stored = std::make_shared<placer::plugin::StoredPlacement>();
    if (stored->Parse(std::string_view(placement, size), &why)) {
      return State::Get().Activate(std::move(stored));
    }
  } catch (const std::exception& exception) {
    why = exception.what();
  }
  if (error != nullptr && error_size > 0) std::snprintf(error, error_size, "%s", why.c_str());
  return 0;
}

int32_t placer_plugin_deactivate(int64_t id) {
  try {
    return State::Get().Deactivate(id) ? 1 : 0;
  } catch (const std::exception&) {
    return 0;
  }
}

int64_t placer_plugin_activate_heuristic(double limit_seconds) {
  try {
    return State::Get().ActivateHeuristic(limit_seconds);
  } catch (const std::exception&) {
    return 0;
  }
}

size_t placer_plugin_report(char* out, size_t capacity) {
  try {
    const std::string report = State::Get().ReportJson();
    if (out != nullptr && capacity > report.size()) {
      std::memcpy(out, report.c_str(), report.size() + 1);
    }
    return report.size() + 1;
  } catch (const std::exception&) {
    return 0;
  }
}

void placer_plugin_reset_report() { State::Get().ResetReport(); }

int64_t placer_plugin_rewrite(const char* graph, size_t size, const char* devices, char** out,
                              size_t* out_size) {
  *out = nullptr;
  *out_size = 0;
  try {
    const auto start = std::chrono::steady_clock::now();
    std::string rewritten;
    placer::plugin::GraphRecord record;
    const bool changed = placer::plugin::RunActive(
        std::string_view(graph, size), placer::plugin::Lines(devices), &rewritten, &record);
    const bool failed = record.outcome.compare(0, 6, "error:") == 0;
    const int64_t moved = record.moved;
    placer::plugin::Record(std::move(record), start);
    if (!changed) return failed ? -1 : 0;
    *out = static_cast<char*>(std::malloc(rewritten.size()));
    if (*out == nullptr) return -1;
    std::memcpy(*out, rewritten.data(), rewritten.size());
    *out_size = rewritten.size();
    return moved;
  } catch (const std::exception&) {
    return -1;
  }
}

void placer_plugin_free(char* buffer) { std::free(buffer); }
