"""Event-driven simulation of one step of a placed graph.

`Simulator` takes plain arrays (`SimulatorInputs`) and returns step times, busy and transfer times
and peak memory for batches of placements (`Simulator.evaluate`), or the whole timeline of one
(`Simulator.simulate`). Times are seconds in float64, sizes are bytes in int64. The rules below are
complete: two programs that follow them agree to the last bit, whatever the batch order and the
number of threads.

Events
  The simulation is a loop over events: the end of a task on a device, the end of a transfer on the
  wire, the end of an executor's work on a transfer. Each is given the next sequence number when it
  is scheduled, that is when the task is started or the wire or work is requested. Events are
  processed by time, then by sequence number. After each event, the one device that it may have
  given work (the device of the task, the receiver of a transfer that arrives) starts tasks while it
  has a free slot and a ready task. At time 0 all executed ops without executed predecessors are
  made ready in index order, then every device, in index order, starts tasks. Edges from or to ops
  that are not executed do not exist.

Devices
  A device runs at most `concurrency` tasks at once. Ready tasks wait in one queue for each device
  and are started first ready, first run; several that become ready in one event queue in the order
  in which the rules below make them ready. An op takes op_seconds[class, op] + launch_seconds of
  its device. It is ready when every data edge has delivered and every control edge is satisfied.

Executors
  A device with `executor_threads` is a TensorFlow worker on one core. Each of these threads has an
  inline queue and a stack, and when it is free takes its next op from the front of the first,
  else from the top of the second, else steals it from the bottom of the first stack (by number of
  the thread) that is not empty. When such a device starts ops, its free threads do so by number. Of
  the ops that one ending there makes ready on its own device, in order, those with `inline_op` set
  go behind the inline queue of its thread; of the others each but the last goes on top of its
  stack when the next is met, and the last, when the op has ended, behind the inline queue if that
  is empty and on top of the stack if not. Ops that are ready at time 0 or that a transfer makes
  ready go to the bottom of the shortest stack, the first of equals.
  One more thread works on transfers (see there), first requested, first done.
  The n threads with something under way share the core (processor sharing): a second of work takes
  each of them `slowdown` seconds, n times the sum of 1 and, in order of e, of contention[d, e] for
  each other executor e with anything under way. `left` is what is left of each as of `since`.
  Before the first change of an event to an executor (something starts, ends or is requested there)
  `left` of all that is under way is lessened by (now - since) / slowdown, and since becomes now. If
  in an event an executor begins or ceases to have anything under way, and any contention between
  executors is not 0, so it is at the end of the event for all others with anything under way. Then
  these and the changed ones have their slowdown found anew. The next event of an executor is the
  end of what has the least `left`, among equals the least sequence number, and comes at
  since + max(left, 0) * slowdown.

When an op ends
  Its outputs, in order, each walk their data edges in order of (consumer, input position). An edge
  to a consumer on the same device is delivered at once; the first edge to a consumer on another
  device requests a transfer of this tensor to that device, of tensor_bytes: a tensor crosses to a
  device once. Then the control edges of the op are walked in the order of the arrays in the same
  way, with one transfer of zero bytes for each other device.

Transfers
  1. If send_cpu_seconds or send_cpu_seconds_per_byte of the link is not zero, a task of
     send_cpu_seconds + bytes * send_cpu_seconds_per_byte queues on the sender. When it ends, the
     wire is requested; without such a task it is requested at once.
  2. The wire starts at the latest of now and the times at which its channels become free, lasts
     latency + bytes * seconds_per_byte, and its channels are busy until its end. Channels are
     reserved in the order of requests; each channel then carries wires in that order.
  3. When the wire ends, and if recv_cpu_seconds or recv_cpu_seconds_per_byte is not zero, a task of
     that time queues on the receiver. At its end, or without one at once, the edges of the tensor
     to consumers on the receiver are delivered in their order.

  Where sender or receiver is an executor, its part is no task but work for its thread of transfers
  that overlaps with the wire: wire, sender's part and receiver's part are requested in this order
  and at once. What is said of the end of the wire below and above (of copies, buffers and edges)
  happens when the last part has ended: then the transfer arrives.

Memory
  A device starts with the persistent bytes of all its ops, executed or not. When an op starts, its
  temporary bytes and the buffers of its outputs are allocated, together. An output whose
  tensor_alias names an input (of an executed op) has no buffer of its own but shares that of the
  input on this device: the producer's, or the received copy. When the wire of a transfer ends, the
  receiver allocates a copy of tensor_bytes (none for control edges). When an op ends, its
  temporaries are freed. A buffer is freed when nothing holds it: the op that produces it while it
  runs, the consumers on this device of the tensors that share it until they end, and the transfers
  of these tensors from this device until their wires end. Within an event frees at the end of an
  op come before the starts of the next; a copy is allocated before the sender lets go. The peak of
  a device is the most bytes after any allocation, the start included; a placement is feasible if
  no peak exceeds its memory_limit. A run that does not fit still completes.

The step time is the time of the last event (0 if no op is executed).
"""

from placer.simulator.inputs import SimulatorInputs
from placer.simulator.moves import MoveEvaluation, MoveEvaluator
from placer.simulator.simulator import Evaluation, LowerBound, Simulator
from placer.simulator.trace import (
    LiveTensor,
    MemoryCurve,
    OutOfMemory,
    PathStep,
    Reason,
    SpanKind,
    Spans,
    Trace,
)

__all__ = [
    "Evaluation",
    "LiveTensor",
    "LowerBound",
    "MemoryCurve",
    "MoveEvaluation",
    "MoveEvaluator",
    "OutOfMemory",
    "PathStep",
    "Reason",
    "Simulator",
    "SimulatorInputs",
    "SpanKind",
    "Spans",
    "Trace",
]
