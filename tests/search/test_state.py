"""The state that every placer works on keeps the best of all that it is shown."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from placer.grouping import atoms, group_ops
from placer.search import Budget, Search
from placer.simulator.build import build_simulator
from tests.placers.problems import make_problem, make_search, random_problem


def _random_placements(search: Search, count: int, seed: int) -> np.ndarray:
    problem = search.problem
    rng = np.random.default_rng(seed)
    wishes = rng.integers(0, problem.topology.num_devices, (count, problem.graph.num_ops))
    return np.stack([problem.repair(w.astype(np.int32)) for w in wishes])


def test_the_best_of_everything_evaluated_is_kept() -> None:
    search = make_search(random_problem(2, topology="k80:2"))
    shown = _random_placements(search, 60, 0)
    for batch in np.split(shown, 6):
        search.evaluate(batch, "random")
    seconds = build_simulator(search.problem).evaluate(shown).step_seconds
    assert search.evaluations == 60
    assert search.best_seconds == seconds.min()
    assert search.best is not None
    assert search.best.tolist() == shown[int(seconds.argmin())].tolist()
    running = [i.step_seconds for i in search.improvements]
    assert running == sorted(running, reverse=True)
    assert running[-1] == seconds.min()
    history = search.history()
    assert list(history.columns) == ["seconds", "evaluations", "step_seconds", "source"]
    assert history.step_seconds.tolist() == running


def test_alternatives_are_the_fastest_that_differ() -> None:
    search = make_search(random_problem(2, topology="k80:2"))
    nodes = search.problem.graph.num_ops
    shown = _random_placements(search, 40, 0)
    seconds = build_simulator(search.problem).evaluate(shown).step_seconds
    for placement in shown:
        search.evaluate(placement, "random")
    expected: list[np.ndarray] = []
    for i in np.argsort(seconds, kind="stable"):
        if all(np.count_nonzero(shown[i] != e) >= 0.02 * nodes for e in expected):
            expected.append(shown[i])
    found = search.alternatives(3)
    assert [f.tolist() for f in found] == [e.tolist() for e in expected[:3]]
    # What is no faster than one much like it is not taken in; what is faster takes its place.
    search.add(found[1], float(np.sort(seconds)[-1]), 1, "again")
    assert [f.tolist() for f in search.alternatives(3)] == [f.tolist() for f in found]
    search.add(found[1], search.best_seconds / 2, 1, "again")
    assert [f.tolist() for f in search.alternatives(2)] == [found[1].tolist(), found[0].tolist()]


def test_a_best_that_was_measured_again_may_be_slower() -> None:
    search = make_search(random_problem(2, topology="k80:2"))
    fast, slow = _random_placements(search, 2, 0)
    search.add(fast, 1.0, 1, "run")
    search.settle(slow, 1.5, "run again")
    assert search.best is not None
    assert search.best.tolist() == slow.tolist()
    assert search.best_seconds == 1.5
    assert search.history().step_seconds.tolist() == [1.0, 1.5]


def test_group_placements_are_expanded() -> None:
    problem = random_problem(3, topology="k80:2")
    grouping = group_ops(problem, 4)
    search = Search(problem, grouping, build_simulator(problem))
    devices = grouping.allowed.argmax(axis=1).astype(np.int32)
    search.evaluate(devices, "groups", group_of=grouping.group_of)
    assert search.best is not None
    assert search.best.tolist() == grouping.expand(devices).tolist()
    alone = search.simulator.evaluate(search.best[None]).step_seconds[0]
    assert alone == search.best_seconds


def test_what_fits_comes_before_what_is_fast_and_the_nearest_before_nothing() -> None:
    gib = 1 << 30
    problem = make_problem([], [1e-3] * 3, persistent=[gib] * 3, cpu_slowdown=1000.0)
    limits = [10 * gib, int(1.5 * gib), int(1.5 * gib)]
    problem = dataclasses.replace(problem, topology=problem.topology.with_memory(limits))
    search = Search(problem, atoms(problem), build_simulator(problem))
    for placement in ([1, 1, 1], [1, 1, 2], [2, 2, 2]):
        search.evaluate(np.array(placement, np.int32), "too much")
    assert search.best_seconds == float("inf")
    assert search.best is not None
    assert search.best.tolist() == [1, 1, 2]
    assert not search.improvements
    search.evaluate(np.array([0, 1, 2], np.int32), "fits")
    assert search.best.tolist() == [0, 1, 2]
    search.evaluate(np.array([1, 1, 2], np.int32), "fast, but too much")
    assert search.best.tolist() == [0, 1, 2]


def test_budgets_and_children() -> None:
    problem = random_problem(0, topology="k80:2")
    search = Search(problem, atoms(problem), build_simulator(problem), Budget(evaluations=10))
    assert not search.stopped()
    search.evaluate(_random_placements(search, 4, 0), "random")
    child = search.child(Budget(evaluations=100))
    assert child.budget.evaluations == 6
    assert child.best is None
    child.evaluate(_random_placements(child, 6, 1), "random")
    assert child.stopped()
    assert not search.stopped()
    assert child.best is not None
    search.add(child.best, child.best_seconds, child.evaluations, "child")
    assert search.stopped()
    assert search.best_seconds <= child.best_seconds
    assert Search(problem, atoms(problem), build_simulator(problem), Budget(seconds=0)).stopped()


def test_a_resumed_search_goes_on_where_it_was() -> None:
    first = make_search(random_problem(1, topology="k80:2"))
    first.evaluate(_random_placements(first, 20, 0), "random")
    second = make_search(first.problem, evaluations=25)
    rows = [dataclasses.astuple(i) for i in first.improvements]
    second.resume(first.best, first.best_seconds, first.evaluations, rows)  # type: ignore[arg-type]
    assert second.best_seconds == first.best_seconds
    assert second.history().equals(first.history())
    assert not second.stopped()
    second.evaluate(_random_placements(second, 5, 1), "random")
    assert second.stopped()
    assert second.best_seconds <= first.best_seconds


def test_a_resumed_search_does_not_count_its_beginning_twice() -> None:
    first = make_search(random_problem(1, topology="k80:2"))
    first.evaluate(_random_placements(first, 20, 0), "random")
    second = make_search(first.problem, evaluations=25)
    second.evaluate(_random_placements(first, 3, 0), "references")
    rows = [dataclasses.astuple(i) for i in first.improvements]
    second.resume(first.best, first.best_seconds, first.evaluations, rows)  # type: ignore[arg-type]
    assert second.evaluations == 20
    steps = second.history().step_seconds
    assert steps.is_monotonic_decreasing
    assert steps.iloc[-1] == second.best_seconds == first.best_seconds


def test_a_resumed_search_has_used_up_the_seconds_of_the_first() -> None:
    first = make_search(random_problem(1, topology="k80:2"))
    first.evaluate(_random_placements(first, 20, 0), "random")
    second = Search(first.problem, first.grouping, first.simulator, Budget(seconds=100.0))
    # Found before the checkpoint was read, and better than all that is in it.
    second.evaluate(_random_placements(first, 50, 3), "references")
    assert second.best_seconds < first.best_seconds
    rows = [dataclasses.astuple(i) for i in first.improvements]
    second.resume(first.best, first.best_seconds, 20, rows, elapsed=90.0)  # type: ignore[arg-type]
    assert 90.0 <= second.elapsed < 95.0
    assert 5.0 < second.remaining <= 10.0
    assert second.history().seconds.is_monotonic_increasing


def test_placements_that_there_was_no_time_for_do_not_count() -> None:
    search = make_search(random_problem(1, topology="k80:2"))
    simulator = search.simulator

    class Hurried:
        def evaluate(self, placements, group_of=None, *, cutoff=float("inf")):  # type: ignore
            found = simulator.evaluate(placements, group_of, cutoff=cutoff)
            ran = np.arange(len(placements)) < 3
            seconds = np.where(ran, found.step_seconds, np.nan)
            return dataclasses.replace(found, step_seconds=seconds, feasible=found.feasible & ran)

    search.simulator = Hurried()
    evaluation = search.evaluate(_random_placements(search, 10, 0), "random")
    assert search.evaluations == 3
    assert search.best_seconds == evaluation.step_seconds.min()
    assert np.isinf(evaluation.step_seconds[3:]).all()


def test_progress_is_told_after_the_best_is_kept() -> None:
    seen: list[float] = []
    problem = random_problem(1, topology="k80:2")

    def on_progress(search: Search) -> None:
        seen.append(search.best_seconds)
        if len(seen) == 2:
            raise KeyboardInterrupt

    simulator = build_simulator(problem)
    search = Search(problem, atoms(problem), simulator, on_progress=on_progress)
    search.evaluate(_random_placements(search, 3, 0), "random")
    with pytest.raises(KeyboardInterrupt):
        search.evaluate(_random_placements(search, 30, 1), "random")
    assert search.best_seconds == seen[-1] <= seen[0]


def test_the_nearest_is_kept_while_nothing_fits() -> None:
    problem = random_problem(2, topology="k80:2")
    tight = dataclasses.replace(
        problem, topology=problem.topology.with_memory([1] * problem.topology.num_devices)
    )
    search = make_search(tight)
    shown = _random_placements(search, 2, 0)
    search.add(shown[0], float("inf"), 1, "walk", excess=100.0)
    assert search.best_key == (100.0, float("inf"))
    search.add(shown[1], float("inf"), 1, "walk", excess=200.0)
    assert search.best is not None
    assert search.best.tolist() == shown[0].tolist()
    search.add(shown[1], float("inf"), 1, "walk", excess=50.0)
    assert search.best.tolist() == shown[1].tolist()
    # What was found before counts too if it comes nearer.
    other = make_search(tight)
    other.evaluate(shown[:1], "now")
    excess = other.best_key[0]
    peaks = build_simulator(tight).evaluate(shown).peak_bytes
    limit = tight.topology.memory_bytes
    both = np.maximum(peaks - limit, 0).sum(axis=1)
    other.resume(shown[1], float("inf"), 5, [])
    assert other.best_key[0] == both.min() <= excess
