"""Walks: what they accept, with and without a penalty for transfers."""

from __future__ import annotations

import numpy as np
import pytest

from placer.auto.auto import AutoParameters, _cooling, _survivors
from placer.auto.local_search import Segment, Walk
from placer.auto.neighbourhood import Neighbourhood
from placer.grouping import atoms
from placer.simulator.build import build_simulator
from tests.placers.problems import random_problem


def _walk(seed: int, penalized: bool = False) -> Walk:
    problem = random_problem(seed, num_ops=40, topology="k80:3")
    units = atoms(problem)
    rng = np.random.default_rng(seed)
    start = np.where(units.allowed, rng.random(units.allowed.shape), -1).argmax(axis=1)
    simulator = build_simulator(problem)
    return Walk(Neighbourhood(problem, units), simulator, start.astype(np.int32), rng, penalized)


def _path(seed: int, penalty: float, evaluations: int) -> np.ndarray:
    """float64[evaluations, 2]: step time and mean transfer time of where the walk is, by rerun."""
    walk = _walk(seed)
    simulator = build_simulator(random_problem(seed, num_ops=40, topology="k80:3"))
    path = []
    for _ in range(evaluations):
        walk.run(Segment(1, 0.0, penalty))
        evaluation = simulator.evaluate(walk.neighbourhood.atoms.expand(walk.current)[None])
        path.append([evaluation.step_seconds[0], evaluation.transfer_seconds[0].mean()])
    return np.array(path)


@pytest.mark.parametrize("seed", range(4))
def test_a_cold_walk_with_a_penalty_makes_neither_step_nor_sum_worse(seed: int) -> None:
    steps, transfers = _path(seed, 0.0, 400).T
    assert (np.diff(steps) <= 1e-12).all()
    # Without a penalty transfers also grow where the step time does not fall.
    assert (np.diff(transfers) > 1e-9).any()

    steps, transfers = _path(seed, 2.0, 400).T
    assert (np.diff(steps) <= 1e-12).all()
    assert (np.diff(steps + 2.0 * transfers) <= 1e-9).all()


def test_a_segment_ends_when_it_is_told_to() -> None:
    walk = _walk(1)
    told = iter([False] * 7 + [True] * 100)
    walk.run(Segment(10_000, 1e-4, stopped=lambda: next(told)))
    assert walk.evaluations <= 8


@pytest.mark.parametrize("first", [0.0, 1e-6, 2e-4])
def test_the_penalty_never_grows(first: float) -> None:
    assert 0 < _cooling(AutoParameters(first_temperature=first)) <= 1


def test_both_kinds_of_walks_survive() -> None:
    walks = [_walk(seed, penalized=seed in (4, 5)) for seed in range(6)]
    assert [walks.index(w) for w in _survivors(walks, 4)] == [0, 1, 4, 5]
    assert [walks.index(w) for w in _survivors(walks, 2)] == [0, 4]
    # What is left over goes to the kind that has more.
    assert [walks.index(w) for w in _survivors(walks, 5)] == [0, 1, 2, 4, 5]
    assert [walks.index(w) for w in _survivors(walks[:4], 3)] == [0, 1, 2]
    # Of two with one best placement the first goes on.
    assert [w.penalized for w in _survivors([*walks, _walk(0, penalized=True)], 7)].count(True) == 2
