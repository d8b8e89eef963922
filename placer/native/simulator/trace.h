// What one run leaves behind when it is asked to record itself.
#ifndef PLACER_NATIVE_SIMULATOR_TRACE_H_
#define PLACER_NATIVE_SIMULATOR_TRACE_H_

#include <cstdint>
#include <vector>

namespace placer {

enum SpanKind : int32_t { kOpSpan = 0, kSendSpan = 1, kWireSpan = 2, kRecvSpan = 3 };
enum SpanReason : int32_t {
  kAtStart = 0,      // ready at time 0 and started at once
  kData = 1,         // waited for a tensor
  kControl = 2,      // waited for a control edge
  kDeviceBusy = 3,   // was ready, waited for the device
  kLinkBusy = 4,     // was requested, waited for a channel
};
enum BufferKind : int32_t { kOutputBuffer = 0, kCopyBuffer = 1, kTemporaryBuffer = 2 };

// A stretch of time of an op, a wire, or the CPU time that a transfer takes at either end.
struct Span {
  int32_t kind, reason;
  int32_t op;      // caller's op: the one that runs, or the one whose output is sent
  int32_t tensor;  // caller's tensor that is sent; -1 for ops and control transfers
  int32_t src, dst;
  int32_t cause;   // span that ends when this one starts, -1 at time 0
  int32_t transfer;  // number of the transfer, -1 for ops
  int64_t bytes;
  double ready, start, end;
};

struct MemoryPoint {
  int32_t device;
  double time;
  int64_t bytes;
};

// Alive from point `begin` of the memory history (included) to point `end` (excluded).
struct BufferLife {
  int32_t kind, device;
  int32_t op, tensor;
  int64_t bytes;
  int64_t begin, end;
};

struct TraceLog {
  std::vector<Span> spans;
  std::vector<MemoryPoint> memory;
  std::vector<BufferLife> buffers;

  // Bookkeeping while the run goes on.
  int32_t cause = -1;                 // span of the event being processed
  std::vector<double> op_ready;       // [ops]
  std::vector<int32_t> op_cause, op_reason, op_span;
  struct Stage {
    double ready;
    int32_t cause, reason, send, wire, recv;
  };
  std::vector<Stage> stages;             // per transfer
  std::vector<int32_t> channel_span;     // last wire on each channel
  std::vector<int64_t> slot_buffer;      // [devices, outputs] BufferLife of a buffer
  std::vector<int64_t> temporary_buffer;  // [ops]
  std::vector<int64_t> owned_buffer;      // parallel to Model::owned
};

}  // namespace placer

#endif  // PLACER_NATIVE_SIMULATOR_TRACE_H_
