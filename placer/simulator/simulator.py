"""The Python face of the native simulator."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from placer.simulator import _native
from placer.simulator.inputs import SimulatorInputs, as_array, default_threads
from placer.simulator.moves import MoveEvaluator
from placer.simulator.trace import Trace

__all__ = ["Evaluation", "LowerBound", "Simulator"]


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
    """Results of a batch of B placements on D devices.

    Attributes:
      step_seconds: float64[B]; infinite exactly where the step time exceeds the cutoff. The other
        figures of such a run are those of the part that was simulated.
      peak_bytes: int64[B, D], most bytes alive at once.
      feasible: bool[B], whether every peak is within its device's limit; False where the run was
        cut.
      busy_seconds: float64[B, D], time that tasks took of the device, summed over its slots; of an
        executor, the time in which anything was under way.
      transfer_seconds: float64[B, D], time on the wire, by sender.
      transfer_bytes: int64[B, D], bytes on the wire, by sender.
    """

    step_seconds: npt.NDArray[np.float64]
    peak_bytes: npt.NDArray[np.int64]
    feasible: npt.NDArray[np.bool_]
    busy_seconds: npt.NDArray[np.float64]
    transfer_seconds: npt.NDArray[np.float64]
    transfer_bytes: npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class LowerBound:
    """A step time that no placement beats.

    Attributes:
      critical_path_seconds: the longest chain of ops, each on the fastest device it may use;
        transfers count as free.
      transfer_seconds: the same with transfers between the devices of a chain, and with the work of
        ops that have to share a device since their transfers would come too late.
      work_seconds: all work split over the devices in the best way, even within an op (a dual
        bound of the fractional assignment problem).
      window_seconds: the most of head + tail + work bound of the ops that cannot start before
        `head` and leave at least `tail` to do after them, with transfers in heads and tails.
      colocation_seconds: the colocation group that takes longest on the device that suits it best.
      memory_problem: why no placement fits into memory, as far as sizes that every placement has
        to hold tell; None if they do not.
    """

    critical_path_seconds: float
    transfer_seconds: float
    work_seconds: float
    window_seconds: float
    colocation_seconds: float
    memory_problem: str | None

    @property
    def step_seconds(self) -> float:
        """The greatest of the bounds."""
        return max(
            self.critical_path_seconds,
            self.transfer_seconds,
            self.work_seconds,
            self.window_seconds,
            self.colocation_seconds,
        )


class Simulator:
    """Simulates one graph on one set of devices; the rules are in `placer.simulator`.

    May be used by several threads at once.
    """

    def __init__(self, inputs: SimulatorInputs) -> None:
        """Builds the simulator.

        Raises:
          ValueError: naming the array, the index and what is wrong: shapes that do not fit, costs
            that are negative or not finite, indices out of range, a cycle of executed ops.
        """
        self._inputs = inputs
        self._native = _native.Simulator(inputs)

    @property
    def inputs(self) -> SimulatorInputs:
        """The arrays it was built from."""
        return self._inputs

    @property
    def num_ops(self) -> int:
        """N, executed or not."""
        return self._inputs.num_ops

    @property
    def num_devices(self) -> int:
        """D."""
        return self._inputs.num_devices

    def evaluate(
        self,
        placements: npt.ArrayLike,
        group_of: npt.ArrayLike | None = None,
        *,
        threads: int | None = None,
        cutoff: npt.ArrayLike = np.inf,
    ) -> Evaluation:
        """Simulates a batch of placements.

        Args:
          placements: integers [B, N], the device of each op; or [B, G] with `group_of`.
          group_of: integers [N], the group of each op.
          threads: how many to use; by default as many as the process may run on. The results do
            not depend on it.
          cutoff: seconds, a number or [B]. Runs that take longer return infinity, usually early.

        Raises:
          ValueError: if a device or group is out of range, or a shape does not fit.
        """
        rows, groups = self._placements(placements, group_of)
        limits = as_array("cutoff", cutoff, np.float64)
        if limits.ndim == 0:
            limits = np.full(rows.shape[0], limits, np.float64)
        if np.isnan(limits).any():
            raise ValueError("cutoff holds NaN")
        step, feasible, peak, busy, seconds, nbytes = self._native.evaluate(
            rows, groups, limits, default_threads() if threads is None else int(threads)
        )
        return Evaluation(step, peak, feasible, busy, seconds, nbytes)

    def simulate(self, placement: npt.ArrayLike, group_of: npt.ArrayLike | None = None) -> Trace:
        """Simulates one placement, int[N] or int[G] with `group_of`, and records all of it."""
        row = as_array("placement", placement, np.int32)
        if row.ndim != 1:
            raise ValueError(f"placement has shape {row.shape}: must have one dimension")
        rows, groups = self._placements(row[np.newaxis], group_of)
        record = self._native.simulate(rows, groups)
        devices = rows[0] if groups is None else rows[0][groups]
        return Trace.from_record(record, self._inputs, devices)

    def lower_bound(
        self,
        allowed: npt.ArrayLike | None = None,
        colocation: npt.ArrayLike | None = None,
    ) -> LowerBound:
        """A step time that no placement within the constraints beats.

        Args:
          allowed: bool[N, D], devices that each op may use; by default all.
          colocation: int[N], ops of equal non-negative number share a device; by default none do.

        Raises:
          ValueError: if an op, with those colocated with it, may use no device.
        """
        mask = None if allowed is None else as_array("allowed", allowed, np.bool_)
        groups = None if colocation is None else as_array("colocation", colocation, np.int32)
        path, transfer, work, window, group, problem = self._native.lower_bound(mask, groups)
        return LowerBound(path, transfer, work, window, group, problem or None)

    def moves_from(
        self, placement: npt.ArrayLike, group_of: npt.ArrayLike | None = None
    ) -> MoveEvaluator:
        """Prepares the evaluation of small changes of a placement, int[N] or int[G].

        It costs about two full runs and up to 256 MiB of checkpoints.
        """
        row = as_array("placement", placement, np.int32)
        if row.ndim != 1:
            raise ValueError(f"placement has shape {row.shape}: must have one dimension")
        rows, groups = self._placements(row[np.newaxis], group_of)
        return MoveEvaluator(self._native, self._native.move_base(rows, groups))

    def _placements(
        self, placements: npt.ArrayLike, group_of: npt.ArrayLike | None
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32] | None]:
        rows: npt.NDArray[Any] = as_array("placements", placements, np.int32)
        groups = None if group_of is None else as_array("group_of", group_of, np.int32)
        return rows, groups
