"""View: what a simulated run tells about where moves may pay."""

from __future__ import annotations

import dataclasses

import numpy as np

from placer.grouping import Grouping
from placer.simulator import Reason, SpanKind, Trace

_BINS = 128


@dataclasses.dataclass(frozen=True, eq=False)
class View:
    """What guides the moves of one placement of A atoms on D devices.

    Attributes:
      start: float64[A] when each atom's first op starts, in seconds; 0 if it is not executed.
      critical_share: float64[M] cumulative time of the movable atoms on the critical path.
      wire_producer, wire_reader: int64[W] atoms at the ends of the critical path's transfers.
      wire_share: float64[W] cumulative time of these transfers.
      blockers: int64[L] movable atoms of the critical path that ran while the next op of the path
        was ready and waited for their device, in order of time.
      idle: float64[D, bins] share of each stretch of the step that a device does nothing.
      bin_seconds: length of a stretch.
    """

    start: np.ndarray
    critical_share: np.ndarray
    wire_producer: np.ndarray
    wire_reader: np.ndarray
    wire_share: np.ndarray
    blockers: np.ndarray
    idle: np.ndarray
    bin_seconds: float

    @classmethod
    def of_trace(cls, trace: Trace, atoms: Grouping, movable: np.ndarray) -> View:
        """Reads a trace of the placement; movable are int64[M] atoms."""
        group_of = atoms.group_of
        start = np.full(atoms.num_groups, np.inf)
        np.fmin.at(start, group_of, trace.op_start)
        start[~np.isfinite(start)] = 0.0
        spans = trace.spans
        path = np.array(trace.critical_spans(), np.int64)
        atom = group_of[spans.op[path]].astype(np.int64)
        seconds = (spans.end - spans.start)[path]
        length = np.bincount(atom, seconds, atoms.num_groups)[movable]
        on_path = length > 0
        share = np.cumsum(length + 1e-2 * length.sum() / max(on_path.sum(), 1) * on_path)
        can_move = np.zeros(atoms.num_groups, bool)
        can_move[movable] = True
        wires = np.flatnonzero(spans.kind[path[:-1]] == SpanKind.WIRE)
        waits = np.flatnonzero(
            (spans.reason[path[1:]] == Reason.DEVICE_BUSY) & (spans.kind[path[:-1]] == SpanKind.OP)
        )
        blockers = atom[waits]
        idle, width = _idle(trace, atoms.allowed.shape[1])
        return cls(
            start=start,
            critical_share=share if len(share) else np.zeros(1),
            wire_producer=atom[wires],
            wire_reader=atom[wires + 1],
            wire_share=np.cumsum(seconds[wires]),
            blockers=blockers[can_move[blockers]],
            idle=idle,
            bin_seconds=width,
        )

    def pick_wire(self, rng: np.random.Generator) -> int | None:
        """A transfer of the critical path, by its time; None if there is none."""
        if not len(self.wire_share) or self.wire_share[-1] <= 0:
            return None
        return int(np.searchsorted(self.wire_share, rng.random() * self.wire_share[-1]))

    def idle_at(self, seconds: float) -> np.ndarray:
        """float64[D]: how idle each device is around a time."""
        return self.idle[:, min(int(seconds / self.bin_seconds), _BINS - 1)]


def _uncovered(
    device: np.ndarray, begin: np.ndarray, end: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Spans less what earlier ones on their device cover: begins and ends that do not overlap."""
    offset = 4.0 * _BINS * device  # keeps the devices apart
    order = np.lexsort((begin, device))
    reach = np.maximum.accumulate((end + offset)[order])
    before = np.empty_like(begin)
    before[order] = np.concatenate([[-np.inf], reach[:-1]])
    # Only what overlaps is changed: rounding would move the rest by a little.
    overlaps = before > begin + offset
    covered = np.where(overlaps, before - offset, begin)
    return covered, np.maximum(end, covered)


def _idle(trace: Trace, num_devices: int) -> tuple[np.ndarray, float]:
    width = max(trace.step_seconds, 1e-12) / _BINS
    spans = trace.spans
    ran = spans.kind == SpanKind.OP
    device, begin, end = spans.src[ran], spans.start[ran] / width, spans.end[ran] / width
    begin, end = _uncovered(device, begin, end)
    # Busy time up to each bin's edge is a sum of ramps, one up a span's begin and one down its end.
    busy = np.zeros((num_devices, _BINS + 1))
    for sign, at in ((1.0, begin), (-1.0, end)):
        low = np.minimum(at.astype(np.int64), _BINS - 1)
        # A ramp of slope 1 from `at`: the bin of `at` gets the rest of it, all later ones 1.
        np.add.at(busy, (device, low), sign * (low + 1 - at))
        np.add.at(busy, (device, low + 1), sign * (at - low))
    filled = np.cumsum(busy, axis=1)[:, :_BINS]
    return np.clip(1.0 - filled, 0.0, 1.0), width
