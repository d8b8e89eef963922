"""MeasuredEvaluator: real runs under the face of the simulator."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from placer.runtime import Measurement, MeasurementProtocol, Runner
from placer.simulator import Evaluation, Simulator


@dataclasses.dataclass(frozen=True, eq=False)
class MeasuredPlacement:
    """A placement that was run: int32[N] and what came of it."""

    placement: np.ndarray
    measurement: Measurement


class MeasuredEvaluator:
    """Evaluates placements by running them; a placement seen before is not run again.

    Peak memory and transfers are the simulator's; step times and feasibility are the runner's.

    Attributes:
      measured: every placement that was run, in order.
    """

    def __init__(
        self,
        runner: Runner,
        simulator: Simulator,
        protocol: MeasurementProtocol,
        on_measurement: Callable[[MeasuredPlacement], None] | None = None,
    ) -> None:
        self.measured: list[MeasuredPlacement] = []
        self._runner = runner
        self._simulator = simulator
        self._protocol = protocol
        self._known: dict[bytes, Measurement] = {}
        self._on_measurement = on_measurement
        # Set by the search's owner: asked before every run, so that a batch ends with the budget.
        self.stopped: Callable[[], bool] = lambda: False

    @property
    def best_seconds(self) -> float:
        """Step time of the fastest placement so far; inf before the first."""
        return min(
            (m.measurement.seconds for m in self.measured if m.measurement.failure is None),
            default=float("inf"),
        )

    def measure(self, placement: np.ndarray) -> Measurement:
        """Runs one placement, int32[N], unless it was run before."""
        key = np.ascontiguousarray(placement, np.int32).tobytes()
        if key not in self._known:
            best = self.best_seconds
            measurement = self._runner.measure(
                placement, self._protocol, best_so_far=None if best == float("inf") else best
            )
            self._known[key] = measurement
            self.measured.append(MeasuredPlacement(np.array(placement), measurement))
            if self._on_measurement is not None:
                self._on_measurement(self.measured[-1])
        return self._known[key]

    def replace(self, placement: np.ndarray, measurement: Measurement) -> None:
        """Takes a new measurement of a placement, int32[N], that was run, in place of the old."""
        self._known[np.ascontiguousarray(placement, np.int32).tobytes()] = measurement
        self.measured = [
            dataclasses.replace(run, measurement=measurement)
            if np.array_equal(run.placement, placement)
            else run
            for run in self.measured
        ]

    def known(self, placement: np.ndarray) -> Measurement | None:
        """What came of running a placement, int32[N]; None if it was not run."""
        return self._known.get(np.ascontiguousarray(placement, np.int32).tobytes())

    def evaluate(
        self,
        placements: np.ndarray,
        group_of: np.ndarray | None = None,
        *,
        cutoff: float | np.ndarray = float("inf"),
    ) -> Evaluation:
        """Evaluates int32[B, N], or int32[B, G] with group_of, one after the other.

        Rows left over when the budget ends are infeasible, with nan for a step time.
        """
        if group_of is not None:
            placements = np.ascontiguousarray(placements[:, group_of])
        simulated = self._simulator.evaluate(placements)
        seconds = np.full(len(placements), np.nan)
        for i, placement in enumerate(placements):
            if self.stopped():
                break
            measurement = self.measure(placement)
            seconds[i] = measurement.seconds if measurement.failure is None else np.inf
        limit = np.broadcast_to(np.asarray(cutoff, float), seconds.shape)
        return dataclasses.replace(
            simulated,
            step_seconds=np.where(seconds > limit, np.inf, seconds),
            feasible=np.isfinite(seconds),
        )
