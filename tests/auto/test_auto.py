"""The default search: optimal on tiny graphs, and one result for one seed."""

from __future__ import annotations

import dataclasses
import itertools
import os

import numpy as np
import pytest

from placer.auto import AutoParameters, run_auto
from placer.auto.auto import relabel
from placer.grouping import atoms, group_ops
from placer.placers import get
from placer.search import Budget, Search
from placer.simulator.build import build_simulator
from tests.placers.problems import make_search, random_problem


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


@pytest.mark.parametrize("evaluations", [40, 57, 463])
def test_evaluations_are_met_to_the_placement(evaluations: int) -> None:
    """Limits that the walks do not divide by their number."""
    search = _search(1, evaluations)
    run_auto(search, AutoParameters())
    assert search.evaluations == evaluations


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


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("topology", ["k80:1", "k80:2"])
def test_the_optimum_of_tiny_graphs(seed: int, topology: str) -> None:
    problem = random_problem(seed, num_ops=10, topology=topology)
    exact = make_search(problem)
    spec = get("exhaustive")
    spec.run(exact, spec.make_parameters())
    search = make_search(problem, evaluations=6000, seed=seed)
    run_auto(search, AutoParameters())
    assert search.best_seconds == pytest.approx(exact.best_seconds, rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_renaming_devices_keeps_the_step_and_agrees_most(seed: int) -> None:
    problem = random_problem(seed, topology="k80:3")
    units = atoms(problem)
    simulator = build_simulator(problem)
    rng = np.random.default_rng(seed)
    scores = np.where(units.allowed, rng.random((2, *units.allowed.shape)), -1)
    placement, reference = scores.argmax(axis=2).astype(np.int32)
    classes = problem.topology.symmetry_classes()
    renamed = relabel(placement, reference, classes, units)
    steps = simulator.evaluate(units.expand(np.stack([placement, renamed]))).step_seconds
    assert steps[0] == pytest.approx(steps[1], rel=1e-12)
    weight = units.seconds.min(axis=0)
    found = weight[renamed == reference].sum()
    # Every renaming of the three GPUs, by brute force.
    agreements = []
    for gpus in itertools.permutations([1, 2, 3]):
        names = np.array([0, *gpus])
        agreements.append(weight[names[placement] == reference].sum())
    assert found == pytest.approx(max(agreements))
    # A placement is found again under other names, whatever they are.
    names = np.array([0, *rng.permutation([1, 2, 3])])
    disguised = names[reference].astype(np.int32)
    assert relabel(disguised, reference, classes, units).tolist() == reference.tolist()


@pytest.mark.parametrize("seed", range(12))
def test_fits_into_memory_that_is_hardly_enough(seed: int) -> None:
    """Five per cent more than the best packing of all placements needs, and one byte too little."""
    problem = random_problem(seed, num_ops=8, topology="k80:2")
    rows = np.array(list(itertools.product(*[np.flatnonzero(a) for a in problem.group_allowed])))
    placements = rows[:, problem.graph.colocation].astype(np.int32)
    peaks = build_simulator(problem).evaluate(placements).peak_bytes
    packing = peaks[peaks.max(axis=1).argmin()]
    limits = [int(np.ceil(b * 1.05)) + 1 for b in packing]
    tight = dataclasses.replace(problem, topology=problem.topology.with_memory(limits))
    search = make_search(tight, evaluations=4000, seed=seed)
    run_auto(search, AutoParameters())
    assert search.best is not None
    assert np.isfinite(search.best_seconds)
    peak = build_simulator(tight).evaluate(search.best[None]).peak_bytes[0]
    assert (peak <= limits).all()
    # One byte less everywhere than the best packing's fullest device needs: nothing fits.
    limits = [int(packing.max()) - 1] * len(packing)
    hopeless = dataclasses.replace(problem, topology=problem.topology.with_memory(limits))
    assert not build_simulator(hopeless).evaluate(placements).feasible.any()
    search = make_search(hopeless, evaluations=2000, seed=seed)
    run_auto(search, AutoParameters())
    assert search.best is not None
    assert search.best_seconds == np.inf


def test_early_and_monotone() -> None:
    """Seeds come first: the search starts where the constructive placers end, and only improves."""
    search = _search(5, 6000)
    run_auto(search, AutoParameters())
    seeded = [i for i in search.improvements if i.source != "local search"]
    assert seeded
    for name in ("single_gpu", "expert", "metis", "heft", "m_etf", "m_topo"):
        spec = get(name)
        if not spec.installed:
            continue
        other = _search(5, 6000)
        spec.run(other, spec.make_parameters())
        assert seeded[-1].step_seconds <= other.best_seconds
    steps = [i.step_seconds for i in search.improvements]
    assert all(a > b for a, b in itertools.pairwise(steps))
