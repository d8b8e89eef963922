"""The default search: optimal on tiny graphs, and one result for one seed."""

from __future__ import annotations

import os

import numpy as np
import pytest

from placer.auto import AutoParameters, run_auto
from placer.grouping import group_ops
from placer.placers import get
from placer.search import Budget, Search
from placer.simulator.build import build_simulator
from tests.placers.problems import random_problem


def _search(seed: int, evaluations: int) -> Search:
    problem = random_problem(seed, topology="k80:2")
    simulator = build_simulator(problem)
    return Search(problem, group_ops(problem), simulator, Budget(evaluations=evaluations), seed=3)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_one_seed_gives_one_placement_whatever_the_cores(seed: int) -> None:
    first = _search(seed, 6000)
    run_auto(first, AutoParameters())
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        second = _search(seed, 6000)
        run_auto(second, AutoParameters())
    finally:
        os.sched_setaffinity(0, cores)
    assert first.best is not None
    assert second.best is not None
    assert first.best.tolist() == second.best.tolist()
    assert first.evaluations == second.evaluations
    first.problem.check(first.best)
    steps = [i.step_seconds for i in first.improvements]
    assert steps == sorted(steps, reverse=True)


def test_no_worse_than_the_constructive_placers() -> None:
    search = _search(4, 6000)
    run_auto(search, AutoParameters())
    for name in ("single_gpu", "m_etf", "heft", "expert"):
        other = _search(4, 6000)
        spec = get(name)
        spec.run(other, spec.make_parameters())
        assert search.best_seconds <= other.best_seconds
    exact = search.simulator.evaluate(np.array(search.best)[None]).step_seconds[0]
    assert exact == search.best_seconds
