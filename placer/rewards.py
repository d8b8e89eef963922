"""Rewards: whether placements are judged by the simulator, by real runs, or by both."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from placer.costs import corrected, profile_from_steps, profiled_costs
from placer.pipeline import Prepared
from placer.problem import PlacementProblem
from placer.protos import profile_pb2
from placer.runtime import QUICK, Measurement, MeasurementProtocol, Runner, joined, open_runner
from placer.runtime.profiling import profile
from placer.search import SEEDS, Budget, Search
from placer.search.measured import MeasuredEvaluator, MeasuredPlacement
from placer.search.state import Evaluator
from placer.simulator import Simulator
from placer.simulator.build import build_simulator

if TYPE_CHECKING:
    from tensorflow.core.protobuf import config_pb2

REWARDS = ("simulate", "measure", "both")

# Of --reward both: rounds of search and runs at least, and seconds for each further one.
_ROUNDS = 4
_ROUND_SECONDS = 30.0
# The first searches for this part of the time, each other longer than the one before, and none for
# more than this part of what is left.
_FIRST_SHARE = 0.06
_GROWTH = 2.0
_SEARCH_SHARE = 0.7
# So many rounds in a row that bring nothing new to run are the last.
_STALE_ROUNDS = 2
# Runs a round, traced steps of its best, and the factors on link costs and the contentions tried.
_CANDIDATES = 3
_TRACED_STEPS = 3
_TRACED = MeasurementProtocol(warm_up=1, steps=1, stop_ratio=0.0, repeats=0)
_SCALES = (0.25, 0.35, 0.5, 0.7, 0.85, 1.0, 1.2, 1.4, 2.0, 2.8, 4.0)
_CONTENTIONS = (0.0, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3)
_PASSES = 2
# The part of the budget that is kept for running the fastest again, how many of them, how often at
# most, and how.
_RUN_OFF_SHARE = 0.12
_FINALISTS = 3
_RUN_OFF_TURNS = 4
_RUN_OFF = MeasurementProtocol(warm_up=1, steps=5, stop_ratio=0.0, repeats=0)


class Judge:
    """Judges placements by the simulator; subclasses run them too.

    Attributes:
      evaluator: what the search evaluates proposals with.
      simulator: what predicts step times and memory.
      problem: what the simulator simulates; None: the problem of the search.
    """

    def __init__(self, evaluator: Evaluator, simulator: Simulator) -> None:
        self.evaluator = evaluator
        self.simulator = simulator
        self.problem: PlacementProblem | None = None

    def begin(self, search: Search) -> None:
        """Is told of the search before it starts."""

    def run(self, search: Search, method: Callable[[Search], None]) -> None:
        """Runs a method on the search."""
        method(search)

    def keep_best(self, search: Search) -> None:
        """Gives the search what was judged in a batch that an error or Ctrl-C cut short."""

    def measurement(self, placement: np.ndarray) -> Measurement | None:
        """What came of running a placement, None if it was not run."""
        return None


class _Measured(Judge):
    """Every placement is run."""

    def __init__(self, evaluator: MeasuredEvaluator, simulator: Simulator) -> None:
        super().__init__(evaluator, simulator)
        self._measured = evaluator

    def begin(self, search: Search) -> None:
        # The first placement is always run, so that there is a result whatever the budget.
        self._measured.stopped = lambda: bool(self._measured.measured) and search.stopped()

    def run(self, search: Search, method: Callable[[Search], None]) -> None:
        method(search)
        # What a resumed search had found before was run by another process.
        if search.best is not None and self._measured.known(search.best) is None:
            self._measured.measure(search.best)

    def keep_best(self, search: Search) -> None:
        for run in self._measured.measured:
            if run.measurement.ok and run.measurement.seconds < search.best_seconds:
                search.add(run.placement, run.measurement.seconds, 0, "run")

    def measurement(self, placement: np.ndarray) -> Measurement | None:
        return self._measured.known(placement)


class _Both(_Measured):
    """Searches in a simulator that real runs correct, and runs what is promising.

    The op costs are profiled on the devices first. Then the method searches in the simulator in
    rounds, each of which begins with the best of those before; after each, its best placements are
    run. Then ops are corrected by what they took in the best placements of all rounds, and what
    transfers cost and by how much busy devices slow each other are chosen to explain best what was
    run.

    The fastest of many runs is in part the luckiest. At the end the fastest placements are run
    again, in turns with the fastest of those that the search began with, and these runs alone
    decide.
    """

    def __init__(
        self,
        evaluator: MeasuredEvaluator,
        simulator: Simulator,
        prepared: Prepared,
        runner: Runner,
    ) -> None:
        super().__init__(evaluator, simulator)
        self._prepared = prepared
        self._runner = runner
        self._decided = False

    def run(self, search: Search, method: Callable[[Search], None]) -> None:
        if search.stopped():
            return
        references = list(self._measured.measured)
        end = search.budget.seconds * (1 - _RUN_OFF_SHARE)
        self._search_and_run(search, method, end)
        self._run_off(search, references)

    def _search_and_run(self, search: Search, method: Callable[[Search], None], end: float) -> None:
        """Rounds of search and runs, until `end`, in seconds since the search began."""
        known = profile(self._runner, search.problem, steps=3)
        problem = self._with_costs(search.problem, known)
        fit = _Fit(1.0, float(problem.topology.contention.max()))
        rounds = _ROUNDS
        if search.remaining < float("inf"):
            rounds = max(_ROUNDS, int(search.remaining // _ROUND_SECONDS))
        first = _FIRST_SHARE * (end - search.elapsed)
        stale = 0
        promising: list[np.ndarray] = []
        traced: dict[bytes, tuple[config_pb2.RunMetadata, ...]] = {}
        for round_number in range(rounds):
            left = end - search.elapsed
            if search.stopped() or left <= 0 or stale == _STALE_ROUNDS:
                break
            fit = self._fit(problem, fit)
            self.problem = fit.of(problem)
            self.simulator = build_simulator(self.problem)
            share = min(first * _GROWTH**round_number, _SEARCH_SHARE * left)
            child = Search(
                self.problem,
                search.grouping,
                self.simulator,
                Budget(share, 200 * (search.budget.evaluations - search.evaluations)),
                (search.seed + round_number) % SEEDS,
            )
            if search.best is not None:
                promising.append(search.best)
            for placement in promising:
                child.evaluate(placement, "earlier rounds")
            method(child)
            ran = len(self._measured.measured)
            promising = child.alternatives(_CANDIDATES)
            for placement in promising:
                late = search.elapsed >= end and len(self._measured.measured) > ran
                if search.stopped() or late:
                    break
                search.evaluate(placement, f"round {round_number + 1}")
            stale = 0 if len(self._measured.measured) > ran else stale + 1
            best = search.best
            if best is None or search.stopped() or not _several(best):
                continue
            if best.tobytes() not in traced:
                measured = self._runner.measure(best, _TRACED, keep_step_stats=_TRACED_STEPS)
                traced[best.tobytes()] = measured.traced_steps
            steps = [step for of_best in traced.values() for step in of_best]
            if steps:
                found = profile_from_steps(problem.graph, problem.topology, steps)
                problem = self._with_costs(search.problem, corrected(known, found))

    def _run_off(self, search: Search, references: Sequence[MeasuredPlacement]) -> None:
        """Runs the fastest placements again, in turns, as long as there is time for all."""
        ran = [m for m in self._measured.measured if m.measurement.ok]
        finalists = sorted(ran, key=lambda m: m.measurement.seconds)[:_FINALISTS]
        reference = min(references, key=lambda m: m.measurement.seconds, default=None)
        if reference is not None and reference.measurement.ok and reference not in finalists:
            finalists.append(reference)
        if len(finalists) < 2:
            return
        sessions: list[list[Measurement]] = [[] for _ in finalists]
        expected = sum(m.measurement.total_seconds for m in finalists)
        for turn in range(_RUN_OFF_TURNS):
            if search.remaining < expected:
                return
            begin = search.elapsed
            order = range(len(finalists))
            for i in order if turn % 2 == 0 else reversed(order):
                sessions[i].append(self._runner.measure(finalists[i].placement, _RUN_OFF))
            expected = search.elapsed - begin
            together = [joined(of_one) for of_one in sessions]
            for finalist, measurement in zip(finalists, together, strict=True):
                self._measured.replace(finalist.placement, measurement)
            fastest = min(order, key=lambda i: together[i].seconds)
            if not together[fastest].ok:
                return
            self._decided = True
            search.settle(finalists[fastest].placement, together[fastest].seconds, "run-off")

    def keep_best(self, search: Search) -> None:
        # What was run once, and seemed faster, counts for less than the run-off.
        if not self._decided:
            super().keep_best(search)

    def _with_costs(
        self, problem: PlacementProblem, profiled: profile_pb2.GraphProfile
    ) -> PlacementProblem:
        costs = profiled_costs(
            profiled, self._prepared.source, problem.graph, problem.topology, problem.costs
        )
        return dataclasses.replace(problem, costs=costs)

    def _fit(self, problem: PlacementProblem, start: _Fit) -> _Fit:
        """What explains best what ran on several devices, from `start` on, a figure at a time."""
        ran = [
            m
            for m in self._measured.measured
            if m.measurement.ok and len(np.unique(m.placement)) > 1
        ]
        if not ran:
            return start
        placements = np.stack([m.placement for m in ran])
        measured = np.array([m.measurement.seconds for m in ran])

        @functools.cache
        def error(fit: _Fit) -> float:
            predicted = build_simulator(fit.of(problem)).evaluate(placements).step_seconds
            return float(np.abs(np.log(predicted / measured)).mean())

        best = start
        for _ in range(_PASSES):
            tried = [dataclasses.replace(best, contention=c) for c in _CONTENTIONS]
            best = min([best, *tried], key=error)
            tried = [dataclasses.replace(best, link_scale=s) for s in _SCALES]
            best = min([best, *tried], key=error)
        return best


@dataclasses.dataclass(frozen=True)
class _Fit:
    """Figures of a topology that real runs correct.

    Attributes:
      link_scale: factor on the cost of transfers.
      contention: of devices with executor threads.
    """

    link_scale: float
    contention: float

    def of(self, problem: PlacementProblem) -> PlacementProblem:
        """The problem with these figures."""
        topology = problem.topology.with_scaled_links(self.link_scale)
        return dataclasses.replace(problem, topology=topology.with_contention(self.contention))


def _several(placement: np.ndarray) -> bool:
    """Whether a placement, int32[N], uses several devices."""
    return bool((placement != placement[0]).any())


@contextlib.contextmanager
def open_reward(reward: str, prepared: Prepared, simulator: Simulator) -> Iterator[Judge]:
    """The judge that a --reward names; its workers stop when the context ends."""
    if reward == "simulate":
        yield Judge(simulator, simulator)
        return
    with open_runner(prepared.devices, prepared.to_run) as runner:
        evaluator = MeasuredEvaluator(runner, simulator, QUICK)
        if reward == "measure":
            yield _Measured(evaluator, simulator)
        else:
            yield _Both(evaluator, simulator, prepared, runner)
