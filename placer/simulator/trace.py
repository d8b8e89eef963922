"""Everything that happened in one simulated step."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import numpy as np
import numpy.typing as npt

from placer.simulator.inputs import SimulatorInputs

__all__ = [
    "LiveTensor",
    "MemoryCurve",
    "OutOfMemory",
    "PathStep",
    "Reason",
    "SpanKind",
    "Spans",
    "Trace",
]


class SpanKind(enum.IntEnum):
    """What a stretch of time was spent on."""

    OP = 0
    SEND = 1  # CPU time of a transfer on the sending device
    WIRE = 2
    RECV = 3  # CPU time of a transfer on the receiving device


class Reason(enum.IntEnum):
    """What a span waited for last before it started."""

    START = 0  # nothing: it started at time 0
    DATA = 1  # a tensor
    CONTROL = 2  # a control edge
    DEVICE_BUSY = 3  # it was ready, its device was not
    LINK_BUSY = 4  # it was requested, a channel of its link was taken


@dataclasses.dataclass(frozen=True, eq=False)
class Spans:
    """S spans in the order in which they were scheduled; columns of equal length.

    Attributes:
      kind: int32[S], `SpanKind`.
      op: int32[S], the op that runs, or whose output is sent.
      tensor: int32[S], the tensor that is sent; -1 for ops and for control transfers.
      src, dst: int32[S], devices; equal for ops.
      bytes: int64[S], size of the transfer.
      transfer: int32[S], number of the transfer that sends, wires and receives share; -1 for ops.
      ready: float64[S], when it became ready, or was requested, seconds.
      start, end: float64[S], seconds.
      reason: int32[S], `Reason`.
      cause: int32[S], the span whose end let this one start at once (its end is this one's
        start); -1 at time 0.
    """

    kind: npt.NDArray[np.int32]
    op: npt.NDArray[np.int32]
    tensor: npt.NDArray[np.int32]
    src: npt.NDArray[np.int32]
    dst: npt.NDArray[np.int32]
    bytes: npt.NDArray[np.int64]
    transfer: npt.NDArray[np.int32]
    ready: npt.NDArray[np.float64]
    start: npt.NDArray[np.float64]
    end: npt.NDArray[np.float64]
    reason: npt.NDArray[np.int32]
    cause: npt.NDArray[np.int32]


@dataclasses.dataclass(frozen=True)
class PathStep:
    """One span of the critical path; see `Spans` for the fields."""

    kind: SpanKind
    reason: Reason
    op: int
    tensor: int
    src: int
    dst: int
    bytes: int
    start: float
    end: float
    span: int


@dataclasses.dataclass(frozen=True, eq=False)
class MemoryCurve:
    """Bytes alive on one device: bytes[i] from seconds[i] on. Points of one time are in order."""

    seconds: npt.NDArray[np.float64]
    bytes: npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class LiveTensor:
    """Bytes that were alive at a peak.

    Attributes:
      kind: "persistent", "output", "copy" (received from another device) or "temporary".
      op: the op that holds or produced it.
      tensor: the tensor; -1 for persistent and temporary bytes.
      bytes: its size.
    """

    kind: str
    op: int
    tensor: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class OutOfMemory:
    """A device whose peak exceeds its limit, with the largest tensors alive at the peak."""

    device: int
    seconds: float
    peak_bytes: int
    limit_bytes: int
    largest: tuple[LiveTensor, ...]


_BUFFER_KINDS = ("output", "copy", "temporary")


@dataclasses.dataclass(frozen=True, eq=False)
class Trace:
    """One simulated step of N ops on D devices.

    Attributes:
      step_seconds: the step time.
      devices: int32[N], the device of each op.
      op_start, op_end: float64[N], seconds; NaN for ops that are not executed.
      spans: ops and transfers.
      peak_bytes: int64[D].
      peak_seconds: float64[D], when the peak was first reached.
      memory_limit: int64[D].
      busy_seconds, transfer_seconds: float64[D], transfer_bytes: int64[D], as in `Evaluation`.
    """

    step_seconds: float
    devices: npt.NDArray[np.int32]
    op_start: npt.NDArray[np.float64]
    op_end: npt.NDArray[np.float64]
    spans: Spans
    peak_bytes: npt.NDArray[np.int64]
    peak_seconds: npt.NDArray[np.float64]
    memory_limit: npt.NDArray[np.int64]
    busy_seconds: npt.NDArray[np.float64]
    transfer_seconds: npt.NDArray[np.float64]
    transfer_bytes: npt.NDArray[np.int64]
    _memory: tuple[npt.NDArray[np.int32], npt.NDArray[np.float64], npt.NDArray[np.int64]]
    _buffers: npt.NDArray[np.int64]
    _persistent_bytes: npt.NDArray[np.int64]

    @classmethod
    def from_record(
        cls, record: dict[str, Any], inputs: SimulatorInputs, devices: npt.NDArray[np.int32]
    ) -> Trace:
        """Wraps what the native simulator recorded."""
        fields = [field.name for field in dataclasses.fields(Spans)]
        spans = Spans(**{name: record[f"span_{name}"] for name in fields})
        op_start = np.full(inputs.num_ops, np.nan)
        op_end = np.full(inputs.num_ops, np.nan)
        ran = spans.kind == SpanKind.OP
        op_start[spans.op[ran]] = spans.start[ran]
        op_end[spans.op[ran]] = spans.end[ran]
        return cls(
            step_seconds=record["step_seconds"],
            devices=devices,
            op_start=op_start,
            op_end=op_end,
            spans=spans,
            peak_bytes=record["peak_bytes"],
            peak_seconds=record["peak_seconds"],
            memory_limit=inputs.memory_limit,
            busy_seconds=record["busy_seconds"],
            transfer_seconds=record["transfer_seconds"],
            transfer_bytes=record["transfer_bytes"],
            _memory=(record["memory_device"], record["memory_seconds"], record["memory_bytes"]),
            _buffers=record["buffers"],
            _persistent_bytes=inputs.persistent_bytes,
        )

    @property
    def feasible(self) -> bool:
        """Whether every peak is within its device's limit."""
        return bool((self.peak_bytes <= self.memory_limit).all())

    def memory_curve(self, device: int) -> MemoryCurve:
        """Bytes alive on a device over time; the first point is the persistent bytes at 0."""
        owner, seconds, nbytes = self._memory
        mine = owner == device
        return MemoryCurve(seconds[mine], nbytes[mine])

    def live_at_peak(self, device: int, count: int | None = 10) -> tuple[LiveTensor, ...]:
        """What was alive when the device's peak was first reached, largest first.

        Args:
          device: the device.
          count: how many to return; None for all, whose bytes add up to the peak.
        """
        owner, _, nbytes = self._memory
        mine = np.flatnonzero(owner == device)
        # The allocation that makes the peak is the first point of its height.
        point = int(mine[np.argmax(nbytes[mine])])
        kind, where, op, tensor, size, begin, end = self._buffers.T
        alive = np.flatnonzero((where == device) & (begin <= point) & (point < end))
        tensors = [
            LiveTensor(_BUFFER_KINDS[kind[i]], int(op[i]), int(tensor[i]), int(size[i]))
            for i in alive
        ]
        held = np.flatnonzero((self.devices == device) & (self._persistent_bytes > 0))
        tensors += [
            LiveTensor("persistent", int(i), -1, int(self._persistent_bytes[i])) for i in held
        ]
        tensors.sort(key=lambda live: (-live.bytes, live.op, live.tensor))
        return tuple(tensors if count is None else tensors[:count])

    def out_of_memory(self, count: int = 10) -> tuple[OutOfMemory, ...]:
        """The devices whose peak exceeds their limit, in order; empty if there are none."""
        return tuple(
            OutOfMemory(
                device=int(device),
                seconds=float(self.peak_seconds[device]),
                peak_bytes=int(self.peak_bytes[device]),
                limit_bytes=int(self.memory_limit[device]),
                largest=self.live_at_peak(int(device), count),
            )
            for device in np.flatnonzero(self.peak_bytes > self.memory_limit)
        )

    def critical_path(self) -> tuple[PathStep, ...]:
        """The spans that the step time consists of.

        The first starts at 0, each starts when the one before it ends, and the last ends at the
        step time. Follows each span's `cause` back from the op that ended last.
        """
        spans = self.spans
        return tuple(
            PathStep(
                kind=SpanKind(spans.kind[at]),
                reason=Reason(spans.reason[at]),
                op=int(spans.op[at]),
                tensor=int(spans.tensor[at]),
                src=int(spans.src[at]),
                dst=int(spans.dst[at]),
                bytes=int(spans.bytes[at]),
                start=float(spans.start[at]),
                end=float(spans.end[at]),
                span=at,
            )
            for at in self.critical_spans()
        )

    def critical_spans(self) -> list[int]:
        """Numbers of the spans of `critical_path`."""
        spans = self.spans
        ops = np.flatnonzero(spans.kind == SpanKind.OP)
        cause = spans.cause.tolist()
        at = int(ops[np.argmax(spans.end[ops])]) if ops.size else -1
        path = []
        while at >= 0:
            path.append(at)
            at = cause[at]
        return path[::-1]
