"""Rewards: what becomes of real runs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from placer.grouping import atoms
from placer.pipeline import prepare
from placer.rewards import Judge, open_reward
from placer.search import Budget, Search
from placer.search.measured import MeasuredEvaluator
from placer.simulator.build import build_simulator
from tests.runtime.graphs import two_chains


@pytest.fixture
def measured() -> Iterator[tuple[Judge, Search]]:
    """A search by real runs that has begun, and its judge."""
    prepared = prepare(two_chains(length=2, size=16).graph_def, ["out"], "workers:2")
    problem = prepared.problem
    with open_reward("measure", prepared, build_simulator(problem)) as judge:
        search = Search(problem, atoms(problem), judge.evaluator)
        judge.begin(search)
        yield judge, search


def test_runs_of_a_batch_that_was_cut_short_are_kept(measured: tuple[Judge, Search]) -> None:
    judge, search = measured
    problem = search.problem
    assert isinstance(judge.evaluator, MeasuredEvaluator)
    runs = [judge.evaluator.measure(problem.single_device(d)) for d in range(2)]
    # Ctrl-C now: the search has not been told of either.
    judge.keep_best(search)
    assert search.best_seconds == min(run.seconds for run in runs)
    assert search.best is not None
    kept = judge.measurement(search.best)
    assert kept is not None
    assert kept.seconds == search.best_seconds
    before = search.best
    judge.keep_best(search)
    np.testing.assert_array_equal(search.best, before)


def test_what_a_resumed_search_had_found_is_run_again(measured: tuple[Judge, Search]) -> None:
    judge, search = measured
    problem = search.problem
    search.evaluate(problem.single_device(0), "reference")
    judge.run(search, lambda s: s.resume(problem.single_device(1), 1e-9, 1, []))
    assert search.best is not None
    np.testing.assert_array_equal(search.best, problem.single_device(1))
    measurement = judge.measurement(search.best)
    assert measurement is not None
    assert measurement.ok


def test_the_run_off_decides_between_the_fastest_and_the_reference() -> None:
    prepared = prepare(two_chains(length=2, size=16).graph_def, ["out"], "workers:2")
    problem = prepared.problem
    with open_reward("both", prepared, build_simulator(problem)) as judge:
        search = Search(problem, atoms(problem), judge.evaluator, Budget(seconds=60.0))
        judge.begin(search)
        reference, other = (problem.single_device(d) for d in range(2))
        search.evaluate(reference, "reference")
        judge.run(search, lambda child: child.evaluate(other, "method") and None)
        assert search.elapsed < 60.0, "rounds that bring nothing new end the search"
        both = [judge.measurement(placement) for placement in (reference, other)]
        history = search.history()
        judge.keep_best(search)
    turns = int((history.source == "run-off").sum())
    assert turns >= 1
    steps = [len(m.steps) for m in both if m is not None]
    assert steps == [5 * turns] * 2, "the first runs, of which the best was chosen, do not count"
    seconds = [m.seconds for m in both if m is not None]
    assert search.best_seconds == min(seconds) == history.step_seconds.iloc[-1]
    assert search.best is not None
    winner = (reference, other)[int(np.argmin(seconds))]
    np.testing.assert_array_equal(search.best, winner)
