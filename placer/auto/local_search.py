"""Local search: an annealed walk over moves of many scales."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from placer.auto.neighbourhood import OPERATORS, Neighbourhood
from placer.auto.view import View
from placer.simulator import MoveEvaluator, Simulator

# After so many refusals in a row the rest of the run of the current placement is worth keeping
# (Simulator.moves_from costs about three runs and saves about a quarter of each).
_REFUSALS_BEFORE_BASE = 24
# Accepted moves until start times and critical path are looked at again.
_MOVES_BETWEEN_VIEWS = 24
# Choices that led to no move in a row, after which each counts as an evaluation.
_MOST_CHOICES = 100


@dataclasses.dataclass(frozen=True)
class Segment:
    """How a walk goes on.

    Attributes:
      evaluations: placements to evaluate.
      temperature: relative increase of the step time that is accepted with probability 1/e.
      transfer_penalty: what a second of transfers, averaged over devices, costs in seconds of the
        step time.
      stopped: asked before each proposal; the segment ends early once it says so.
    """

    evaluations: int
    temperature: float
    transfer_penalty: float = 0.0
    stopped: Callable[[], bool] = lambda: False


class Walk:
    """One annealed walk, with its own random numbers; several may run in threads of their own.

    Every proposal gets its threshold first (Metropolis: current step time times one plus
    temperature times an exponential deviate) and is simulated up to it, so that most refusals are
    cut off early. What wins is credited to its operator, and operators that win are chosen more.

    With a transfer penalty, a move must also not make the sum of step time and penalty worse by
    more than the threshold allows. Most moves change what crosses the links but not the step time,
    which is that of the critical path alone: the penalty tells them apart.

    Attributes:
      current, best: int32[A] placements of atoms.
      current_seconds, best_seconds: their step times; inf while nothing fits into memory.
      evaluations: placements evaluated so far.
      mates: other good placements of atoms, whose parts it may take over.
      penalized: whether its segments are to have a transfer penalty; the walk itself does not look.
    """

    def __init__(
        self,
        neighbourhood: Neighbourhood,
        simulator: Simulator,
        start: np.ndarray,
        rng: np.random.Generator,
        penalized: bool = False,
    ) -> None:
        self.neighbourhood = neighbourhood
        self.penalized = penalized
        self.evaluations = 0
        self.mates: tuple[np.ndarray, ...] = ()
        self._moves = 0
        self._view: View | None = None
        self._base: MoveEvaluator | None = None
        self._simulator = simulator
        self._rng = rng
        self._limit = simulator.inputs.memory_limit
        self._scores = np.full(len(OPERATORS), 1e-4)
        self.best = np.array(start, np.int32)
        self.best_seconds = float("inf")
        self.best_excess = float("inf")
        self._current_transfers: float | None = None
        self.move_to(start)

    def move_to(self, placement: np.ndarray) -> None:
        """Goes on from another placement, int32[A]."""
        self._set(np.array(placement, np.int32), *self._evaluate(placement, np.inf))
        self._view = None

    def run(self, segment: Segment) -> None:
        """Evaluates as many proposals as the segment says, at most."""
        rng, neighbourhood = self._rng, self.neighbourhood
        last = self.evaluations + segment.evaluations
        nowhere = 0
        while self.evaluations < last and not segment.stopped():
            if self._view is None or self._moves >= _MOVES_BETWEEN_VIEWS:
                self._view = neighbourhood.view(self._simulator, self.current)
                self._moves = 0
            operator = self._pick_operator()
            move = neighbourhood.propose(
                OPERATORS[operator], self.current, self._view, rng, self.mates
            )
            if move is None:
                nowhere += 1
                if nowhere > _MOST_CHOICES:
                    # Counted, so that a graph with nowhere to go ends too.
                    self.evaluations += 1
                continue
            nowhere = 0
            self._try(operator, *move, segment)

    def _try(self, operator: int, atoms: np.ndarray, devices: np.ndarray, segment: Segment) -> None:
        fits_now = np.isfinite(self.current_seconds)
        threshold = np.inf
        if fits_now:
            threshold = self.current_seconds * (1 + segment.temperature * self._rng.exponential())
        proposal = self.current.copy()
        proposal[atoms] = devices
        transfers: float | None = None
        if self._refusals >= _REFUSALS_BEFORE_BASE and fits_now:
            if self._base is None:
                self._base = self._simulator.moves_from(self.current, self._group_of)
            moved = self._base.evaluate(
                atoms, devices, [0, len(atoms)], cutoff=threshold, threads=1
            )
            seconds, feasible = float(moved.step_seconds[0]), bool(moved.feasible[0])
            excess = 0.0 if feasible else np.inf
            self.evaluations += 1
        else:
            seconds, excess, transfers = self._evaluate(proposal, threshold)
        accepted = excess == 0 and seconds <= threshold
        if not fits_now:
            accepted = excess <= self._current_excess
        elif accepted and segment.transfer_penalty > 0:
            if transfers is None:
                transfers = self._transfers(proposal)
            more = segment.transfer_penalty * (transfers - self._transfers_now())
            accepted = seconds + more <= threshold
        gain = 0.0
        if accepted:
            if fits_now:
                gain = max(0.0, 1.0 - seconds / max(self.current_seconds, 1e-30))
            self._set(proposal, seconds, excess, transfers)
            self._moves += 1
        else:
            self._refusals += 1
        self._scores[operator] += 0.01 * (gain - self._scores[operator])

    @property
    def best_key(self) -> tuple[float, float]:
        """Bytes above the memory limits, and step time, of the best: less is better."""
        return self.best_excess, self.best_seconds

    @property
    def _group_of(self) -> np.ndarray:
        return self.neighbourhood.atoms.group_of

    def _evaluate(self, placement: np.ndarray, cutoff: float) -> tuple[float, float, float | None]:
        """Step time, bytes above the memory limits (inf where the run was cut), and transfers.

        The last are seconds on the wire, averaged over devices; None where the run was cut.
        """
        evaluation = self._simulator.evaluate(
            placement[None], self._group_of, cutoff=cutoff, threads=1
        )
        self.evaluations += 1
        seconds = float(evaluation.step_seconds[0])
        if not np.isfinite(seconds):
            return seconds, np.inf, None
        transfers = float(evaluation.transfer_seconds[0].mean())
        excess = float(np.maximum(evaluation.peak_bytes[0] - self._limit, 0).sum())
        return seconds, excess, transfers

    def _transfers(self, placement: np.ndarray) -> float:
        """Seconds on the wire, averaged over devices, of a placement of atoms."""
        evaluation = self._simulator.evaluate(placement[None], self._group_of, threads=1)
        return float(evaluation.transfer_seconds[0].mean())

    def _transfers_now(self) -> float:
        if self._current_transfers is None:
            self._current_transfers = self._transfers(self.current)
        return self._current_transfers

    def _set(
        self, placement: np.ndarray, seconds: float, excess: float, transfers: float | None
    ) -> None:
        self.current = placement
        self._current_transfers = transfers
        self.current_seconds = seconds if excess == 0 else float("inf")
        self._current_excess = excess
        self._refusals = 0
        self._base = None
        better = (excess, seconds) < (self.best_excess, self.best_seconds)
        if better:
            self.best, self.best_excess = placement.copy(), excess
            self.best_seconds = seconds if excess == 0 else float("inf")

    def _pick_operator(self) -> int:
        """A quarter of the time any operator, else by what each has gained of late."""
        if self._rng.random() < 0.25:
            return int(self._rng.integers(len(OPERATORS)))
        share = np.cumsum(self._scores + 1e-7)
        return int(np.searchsorted(share, self._rng.random() * share[-1]))
