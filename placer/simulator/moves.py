"""Evaluating small changes of one placement without simulating all of it again."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from placer.simulator.inputs import as_array, default_threads

__all__ = ["MoveEvaluation", "MoveEvaluator"]


@dataclasses.dataclass(frozen=True, eq=False)
class MoveEvaluation:
    """Results of B candidates on D devices, equal to those of full runs.

    Attributes:
      step_seconds: float64[B]; infinite exactly where the step time exceeds the cutoff.
      peak_bytes: int64[B, D]; of the simulated part where a run was cut.
      feasible: bool[B], whether every peak is within its limit; False where a run was cut.
    """

    step_seconds: npt.NDArray[np.float64]
    peak_bytes: npt.NDArray[np.int64]
    feasible: npt.NDArray[np.bool_]


class MoveEvaluator:
    """Candidates that differ from one base placement in a few ops or groups.

    Made by `Simulator.moves_from`. Exact: a candidate runs from the last checkpoint of the base's
    run before a moved op can matter, and stops where its state equals the base's again after the
    moved ops have ended. It is cheapest when little of the run differs; it is never much dearer
    than a full run.
    """

    def __init__(self, native: Any, base: Any) -> None:
        self._native = native
        self._base = base

    @property
    def step_seconds(self) -> float:
        """Step time of the base."""
        return float(self._base.step_seconds)

    @property
    def peak_bytes(self) -> npt.NDArray[np.int64]:
        """int64[D], peaks of the base."""
        peaks: npt.NDArray[np.int64] = self._base.peak_bytes
        return peaks

    def evaluate(
        self,
        slots: npt.ArrayLike,
        devices: npt.ArrayLike,
        move_ptr: npt.ArrayLike | None = None,
        *,
        cutoff: npt.ArrayLike = np.inf,
        threads: int | None = None,
    ) -> MoveEvaluation:
        """Evaluates B candidates.

        Args:
          slots: int[M], the op, or group where the base was given by group, that moves.
          devices: int[M], where to.
          move_ptr: int[B + 1]; candidate b makes the moves move_ptr[b] to move_ptr[b + 1] - 1. By
            default every candidate makes one.
          cutoff: seconds, a number or [B], as in `Simulator.evaluate`.
          threads: as in `Simulator.evaluate`.

        Raises:
          ValueError: for slots or devices out of range, a slot that a candidate moves twice, or
            lengths that do not fit.
        """
        which = as_array("slots", slots, np.int32)
        where = as_array("devices", devices, np.int32)
        if move_ptr is None:
            ptr = np.arange(which.size + 1, dtype=np.int64)
        else:
            ptr = as_array("move_ptr", move_ptr, np.int64)
        if ptr.ndim != 1 or ptr.size < 1:
            raise ValueError(f"move_ptr has shape {ptr.shape}: must be [B + 1]")
        limits = as_array("cutoff", cutoff, np.float64)
        if limits.ndim == 0:
            limits = np.full(ptr.size - 1, limits, np.float64)
        if np.isnan(limits).any():
            raise ValueError("cutoff holds NaN")
        count = default_threads() if threads is None else int(threads)
        step, feasible, peak = self._native.evaluate_moves(
            self._base, ptr, which, where, limits, count
        )
        return MoveEvaluation(step, peak, feasible)
