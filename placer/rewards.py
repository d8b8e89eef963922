"""Rewards: whether placements are judged by the simulator, by real runs, or by both."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from placer.costs import merged, profile_from_steps, profiled_costs
from placer.pipeline import Prepared
from placer.problem import PlacementProblem
from placer.protos import profile_pb2
from placer.runtime import QUICK, Measurement, MeasurementProtocol, Runner, open_runner
from placer.runtime.profiling import profile
from placer.search import SEEDS, Budget, Search
from placer.search.measured import MeasuredEvaluator
from placer.search.state import Evaluator
from placer.simulator import Simulator
from placer.simulator.build import build_simulator

if TYPE_CHECKING:
    from tensorflow.core.protobuf import config_pb2

REWARDS = ("simulate", "measure", "both")

# Of --reward both: rounds of search and runs at least, seconds that further ones take at least,
# runs a round, traced steps of its best, and the factors tried on link costs.
_ROUNDS = 4
_ROUND_SECONDS = 30.0
_CANDIDATES = 3
_TRACED_STEPS = 3
_TRACED = MeasurementProtocol(warm_up=1, steps=1, stop_ratio=0.0, repeats=0)
_SCALES = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)


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
    rounds; after each, its best placements are run. Then ops cost what they took in the best
    placements of all rounds, where several devices compute at once and slow each other through
    what they share, and the cost of transfers is scaled to what explains best what was run.
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

    def run(self, search: Search, method: Callable[[Search], None]) -> None:
        if search.stopped():
            return
        known = profile(self._runner, search.problem, steps=3)
        problem = self._with_costs(search.problem, known)
        scale = 1.0
        rounds = _ROUNDS
        if search.remaining < float("inf"):
            rounds = max(_ROUNDS, int(search.remaining // _ROUND_SECONDS))
        traced: dict[bytes, tuple[config_pb2.RunMetadata, ...]] = {}
        for round_number in range(rounds):
            if search.stopped():
                break
            scale = self._fit_scale(problem, scale)
            corrected = dataclasses.replace(
                problem, topology=problem.topology.with_scaled_links(scale)
            )
            self.problem, self.simulator = corrected, build_simulator(corrected)
            share = 0.7 * search.remaining / (rounds - round_number)
            left = search.budget.evaluations - search.evaluations
            child = Search(
                corrected,
                search.grouping,
                self.simulator,
                Budget(share, 200 * left),
                (search.seed + round_number) % SEEDS,
            )
            if search.best is not None:
                child.evaluate(search.best, "best measured")
            method(child)
            for placement in child.recent_bests(_CANDIDATES):
                if search.stopped():
                    break
                search.evaluate(placement, f"round {round_number + 1}")
            best = search.best
            if best is None or search.stopped() or not _several(best):
                continue
            if best.tobytes() not in traced:
                measured = self._runner.measure(best, _TRACED, keep_step_stats=_TRACED_STEPS)
                traced[best.tobytes()] = measured.traced_steps
            steps = [step for of_best in traced.values() for step in of_best]
            if steps:
                found = profile_from_steps(problem.graph, problem.topology, steps)
                known = merged(known, found)
                problem = self._with_costs(search.problem, known)

    def _with_costs(
        self, problem: PlacementProblem, profiled: profile_pb2.GraphProfile
    ) -> PlacementProblem:
        costs = profiled_costs(
            profiled, self._prepared.source, problem.graph, problem.topology, problem.costs
        )
        return dataclasses.replace(problem, costs=costs)

    def _fit_scale(self, problem: PlacementProblem, scale: float) -> float:
        """The factor on link costs that explains best what ran on several devices, else `scale`."""
        ran = [
            m
            for m in self._measured.measured
            if m.measurement.ok and len(np.unique(m.placement)) > 1
        ]
        if not ran:
            return scale
        placements = np.stack([m.placement for m in ran])
        measured = np.array([m.measurement.seconds for m in ran])
        errors = {}
        for factor in _SCALES:
            topology = problem.topology.with_scaled_links(factor)
            simulator = build_simulator(dataclasses.replace(problem, topology=topology))
            predicted = simulator.evaluate(placements).step_seconds
            errors[factor] = float(np.abs(np.log(predicted / measured)).mean())
        return min(errors, key=lambda factor: (errors[factor], abs(np.log(factor))))


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
