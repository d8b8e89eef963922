// What the engine writes down when it traces a run.
#include "engine.h"

namespace placer {

void Engine::TraceStart(int32_t task, int32_t d, double now, double end) {
  Span span{};
  const int32_t index = static_cast<int32_t>(log_->spans.size());
  span.src = span.dst = d;
  span.start = now;
  span.end = end;
  span.transfer = span.tensor = -1;
  if (task < model_.num_ops) {
    span.kind = kOpSpan;
    span.op = model_.op_of[task];
    span.ready = log_->op_ready[task];
    span.reason = log_->op_reason[task];
    span.cause = log_->op_cause[task];
    log_->op_span[task] = index;
  } else {
    const int32_t id = (task - model_.num_ops) >> 1;
    const bool send = ((task - model_.num_ops) & 1) == 0;
    const Transfer& transfer = transfers_[id];
    TraceLog::Stage& stage = log_->stages[id];
    span.kind = send ? kSendSpan : kRecvSpan;
    span.op = model_.op_of[model_.outputs[transfer.output].producer];
    span.tensor = model_.output_tensor[transfer.output];
    span.bytes = model_.outputs[transfer.output].copy_bytes;
    span.src = transfer.src;
    span.dst = transfer.dst;
    span.transfer = id;
    span.ready = stage.ready;
    span.reason = stage.reason;
    span.cause = stage.cause;
    (send ? stage.send : stage.recv) = index;
  }
  if (now > span.ready) {
    // Every slot of the device was taken until the task that has just ended.
    span.reason = kDeviceBusy;
    span.cause = log_->cause;
  }
  log_->spans.push_back(span);
}

void Engine::TraceOpBuffers(int32_t op, int32_t d) {
  const int64_t point = static_cast<int64_t>(log_->memory.size());
  const int64_t temporary =
      model_.temporary_bytes[static_cast<size_t>(model_.kind_of_device[d]) * model_.num_ops + op];
  if (temporary > 0) {
    log_->temporary_buffer[op] = static_cast<int64_t>(log_->buffers.size());
    log_->buffers.push_back(
        {kTemporaryBuffer, d, model_.op_of[op], -1, temporary, point, INT64_MAX});
  }
  for (int64_t j = model_.owned_begin[op]; j < model_.owned_begin[op + 1]; ++j) {
    if (model_.owned[j].second == 0) continue;
    log_->owned_buffer[j] = static_cast<int64_t>(log_->buffers.size());
    if (model_.owned_output[j] >= 0) {
      log_->slot_buffer[BufferSlot(d, model_.owned_output[j])] =
          static_cast<int64_t>(log_->buffers.size());
    }
    log_->buffers.push_back({kOutputBuffer, d, model_.op_of[op], model_.owned[j].first,
                             model_.owned[j].second, point, INT64_MAX});
  }
}

}  // namespace placer
