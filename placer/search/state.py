"""Search: the state that every placer works on: evaluations, best placement, history, deadline."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
import pandas as pd

from placer.grouping.grouping import Grouping
from placer.problem import PlacementProblem
from placer.simulator import Evaluation

# Seeds are 0 to SEEDS - 1: signed 32-bit integers to TensorFlow and the graph partitioners.
SEEDS = 2**31
# How many good placements a search remembers, and in what part of the nodes they differ at least.
_KEPT = 8
_APART = 0.02


class Evaluator(Protocol):
    """What says how good placements are: the simulator, or real runs."""

    def evaluate(
        self,
        placements: np.ndarray,
        group_of: np.ndarray | None = None,
        *,
        cutoff: float | np.ndarray = float("inf"),
    ) -> Evaluation:
        """Evaluates int32[B, N], or int32[B, G] with group_of int32[N].

        Step times above the cutoff may come back as inf. Those of placements that there was no time
        to evaluate are nan.
        """


@dataclasses.dataclass(frozen=True)
class Budget:
    """When a search ends: seconds of wall-clock time, or a number of evaluated placements.

    A search limited by `evaluations` alone gives the same result on every run of one seed.
    """

    seconds: float = float("inf")
    evaluations: float = float("inf")


@dataclasses.dataclass(frozen=True)
class Improvement:
    """One row of the history: a new best placement.

    Attributes:
      seconds: wall-clock time since the search began.
      evaluations: placements evaluated so far.
      step_seconds: its step time; inf while none is feasible.
      source: which part of the search found it.
    """

    seconds: float
    evaluations: int
    step_seconds: float
    source: str


class Search:
    """One anytime search: placers evaluate proposals through it and it keeps the best.

    Attributes:
      problem: what to place.
      grouping: op groups that the policy and group-level placers work on.
      simulator: the evaluator of proposals: a Simulator, or real runs under the same face.
      seed: every placer derives its randomness from it.
      best: int32[N] best placement so far, feasible if any was; None before the first.
      best_seconds: its step time in seconds, inf if it is not feasible.
      evaluations: placements evaluated so far.
      improvements: each new best, in order.
    """

    def __init__(
        self,
        problem: PlacementProblem,
        grouping: Grouping,
        simulator: Evaluator,
        budget: Budget | None = None,
        seed: int = 0,
        on_progress: Callable[[Search], None] | None = None,
    ) -> None:
        self.problem = problem
        self.grouping = grouping
        self.simulator = simulator
        self.budget = budget or Budget()
        self.seed = seed
        self.best: np.ndarray | None = None
        self.best_seconds = float("inf")
        self.evaluations = 0
        self.improvements: list[Improvement] = []
        self._least_excess = float("inf")
        # Step times and placements, the fastest first; see `alternatives`.
        self._kept: list[tuple[float, np.ndarray]] = []
        self._on_progress = on_progress
        self._start = time.monotonic()
        self._memory_limit = problem.topology.memory_bytes

    @property
    def elapsed(self) -> float:
        """Seconds since the search began."""
        return time.monotonic() - self._start

    @property
    def remaining(self) -> float:
        """Seconds of the budget that are left; inf without a limit in seconds."""
        return self.budget.seconds - self.elapsed

    def stopped(self) -> bool:
        """Whether the budget is used up; placers ask between batches and return."""
        return self.remaining <= 0 or self.evaluations >= self.budget.evaluations

    def room(self, count: int) -> int:
        """How many of `count` placements the budget lets be evaluated."""
        return int(max(0, min(count, self.budget.evaluations - self.evaluations)))

    def evaluate(
        self,
        placements: np.ndarray,
        source: str,
        cutoff: float | np.ndarray = float("inf"),
        group_of: np.ndarray | None = None,
    ) -> Evaluation:
        """Simulates a batch, int32[B, N] or one int32[N], and keeps the best of it.

        Args:
          placements: legal placements (see PlacementProblem.repair).
          source: which part of the search proposes them, for the history.
          cutoff: step times above it need not be exact (inf is returned for them).
          group_of: int32[N]; then placements are of groups, int32[B, G] or int32[G].

        Returns:
          The evaluation; placements that the budget left no time for are infeasible, with an
          infinite step time, and do not count.
        """
        placements = np.atleast_2d(np.ascontiguousarray(placements, np.int32))
        evaluation = self.simulator.evaluate(placements, group_of, cutoff=cutoff)
        self.record(placements, evaluation, source, group_of)
        left_out = np.isnan(evaluation.step_seconds)
        if left_out.any():
            seconds = np.where(left_out, np.inf, evaluation.step_seconds)
            evaluation = dataclasses.replace(evaluation, step_seconds=seconds)
        return evaluation

    def record(
        self,
        placements: np.ndarray,
        evaluation: Evaluation,
        source: str,
        group_of: np.ndarray | None = None,
    ) -> None:
        """Counts placements that were evaluated elsewhere and keeps the best of them."""
        self.evaluations += int((~np.isnan(evaluation.step_seconds)).sum())
        seconds = np.where(evaluation.feasible, evaluation.step_seconds, np.inf)
        i = int(seconds.argmin())
        if self._worth_keeping(float(seconds[i])):
            self._keep(_expand(placements[i], group_of), float(seconds[i]))
        if seconds[i] < self.best_seconds:
            self._improve(_expand(placements[i], group_of), float(seconds[i]), source)
        elif self.best_seconds == float("inf"):
            # Nothing fits yet: keep what comes nearest.
            excess = np.maximum(evaluation.peak_bytes - self._memory_limit, 0).sum(axis=1)
            i = int(excess.argmin())
            if excess[i] < self._least_excess:
                self._least_excess = float(excess[i])
                self.best = _expand(placements[i], group_of)
        if self._on_progress is not None:
            self._on_progress(self)

    @property
    def best_key(self) -> tuple[float, float]:
        """Bytes above the memory limits, and step time, of the best: less is better."""
        return 0.0 if self.best_seconds < float("inf") else self._least_excess, self.best_seconds

    def add(
        self,
        placement: np.ndarray,
        seconds: float,
        evaluations: int,
        source: str,
        excess: float = float("inf"),
    ) -> None:
        """Counts evaluations made elsewhere, and keeps their best if it is the best so far.

        Args:
          placement: int32[N], the best of them.
          seconds: its step time; inf if it is not feasible.
          evaluations: how many there were.
          source: which part of the search made them.
          excess: bytes above the memory limits, of one that is not feasible.
        """
        self.evaluations += evaluations
        if self._worth_keeping(seconds):
            self._keep(np.array(placement, np.int32), seconds)
        if seconds < self.best_seconds:
            self._improve(np.array(placement, np.int32), seconds, source)
        elif self.best is None or (
            self.best_seconds == float("inf") and excess < self._least_excess
        ):
            self.best = np.array(placement, np.int32)
            self._least_excess = min(excess, self._least_excess)
        if self._on_progress is not None:
            self._on_progress(self)

    def child(self, budget: Budget) -> Search:
        """A search of the same problem with a history of its own; its seed follows from this one's.

        The child's budget is cut to what is left of this one's.
        """
        left = Budget(
            min(budget.seconds, self.remaining),
            min(budget.evaluations, self.budget.evaluations - self.evaluations),
        )
        return Search(self.problem, self.grouping, self.simulator, left, self.seed)

    def alternatives(self, count: int) -> list[np.ndarray]:
        """int32[N] each: the best feasible placement, then the next best, and so on.

        Each differs from those before it in some nodes in a hundred at least. They are of what
        `evaluate`, `record` and `add` brought: the best of each batch.
        """
        return [placement for _, placement in self._kept[:count]]

    def settle(self, placement: np.ndarray, seconds: float, source: str) -> None:
        """Makes a feasible placement, int32[N], the best, also if the best so far seemed faster.

        For step times, in seconds, that were found to be otherwise when they were measured again.
        """
        self._improve(np.array(placement, np.int32), seconds, source)
        if self._on_progress is not None:
            self._on_progress(self)

    def _improve(self, placement: np.ndarray, seconds: float, source: str) -> None:
        self.best = placement
        self.best_seconds = seconds
        self.improvements.append(Improvement(self.elapsed, self.evaluations, seconds, source))

    def _worth_keeping(self, seconds: float) -> bool:
        if len(self._kept) < _KEPT:
            return seconds < float("inf")
        return seconds < self._kept[-1][0]

    def _keep(self, placement: np.ndarray, seconds: float) -> None:
        """Takes a placement in among the kept, unless a faster one is much like it."""
        apart = []
        for known_seconds, known in self._kept:
            if np.count_nonzero(known != placement) >= _APART * len(placement):
                apart.append((known_seconds, known))
            elif known_seconds <= seconds:
                return
        self._kept = sorted([*apart, (seconds, placement)], key=lambda kept: kept[0])[:_KEPT]

    def resume(
        self,
        best: np.ndarray | None,
        best_seconds: float,
        evaluations: int,
        improvements: Iterable[tuple[float, int, float, str]],
        elapsed: float = 0.0,
    ) -> None:
        """Takes up what an interrupted search of the same problem had found.

        Args:
          best: int32[N] its best placement, or None.
          best_seconds: the step time of `best`, inf if it does not fit.
          evaluations: placements that it had evaluated; they count against the budget, instead of
            those that this search has, with which that one began too.
          improvements: its history, fields of Improvement; what this search has found goes behind
            it if it is better.
          elapsed: seconds that it had taken; they count against the budget.
        """
        self._start -= elapsed
        self.evaluations = max(self.evaluations, evaluations)
        own = [
            dataclasses.replace(i, seconds=i.seconds + elapsed)
            for i in self.improvements
            if i.step_seconds < best_seconds
        ]
        self.improvements = [*(Improvement(*row) for row in improvements), *own]
        if best is None or self.best_seconds < float("inf") <= best_seconds:
            return
        best = np.array(best, np.int32)
        if best_seconds == float("inf"):
            peak = self.simulator.evaluate(best[None]).peak_bytes
            excess = float(np.maximum(peak - self._memory_limit, 0).sum())
            if self.best is None or excess < self._least_excess:
                self.best, self._least_excess = best, excess
        elif best_seconds < self.best_seconds:
            self.best, self.best_seconds = best, best_seconds

    def history(self) -> pd.DataFrame:
        """The improvements as a frame: seconds, evaluations, step_seconds, source."""
        return pd.DataFrame(
            [dataclasses.astuple(i) for i in self.improvements],
            columns=["seconds", "evaluations", "step_seconds", "source"],
        )


def _expand(placement: np.ndarray, group_of: np.ndarray | None) -> np.ndarray:
    return np.array(placement if group_of is None else placement[group_of], np.int32)
