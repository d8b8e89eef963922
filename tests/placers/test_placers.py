"""What every placer promises, on small random problems."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np
import pytest

from placer.devices import gpu_hosts
from placer.errors import PlacerError
from placer.grouping import atoms
from placer.placers import PLACERS, get
from placer.problem import PlacementProblem
from placer.search.state import Budget, Search
from placer.simulator import Evaluation
from placer.simulator.build import build_simulator
from tests.placers.problems import make_problem, make_search, random_problem

# Small enough to be run everywhere.
SMALL = {
    "hdp": {"groups": 4, "batch": 4, "grouper_hidden": 4, "placer_hidden": 4},
    "exhaustive": {},
}
BUDGET = 60
TRAINED = {"hdp": 10}


def run(name: str, search: Search, **options: object) -> Search:
    spec = get(name)
    spec.run(search, spec.make_parameters({**SMALL.get(name, {}), **options}))
    return search


@pytest.mark.parametrize("name", [n for n in PLACERS if n != "exhaustive"])
def test_placements_are_legal_and_follow_from_the_seed(name: str) -> None:
    # HDP traces its networks for every search, which takes seconds.
    for seed, devices in ((1, "k80:2"), (2, "k80:4"))[: 1 if name == "hdp" else 2]:
        problem = random_problem(seed, topology=devices)
        budget = TRAINED.get(name, BUDGET)
        searches = [run(name, make_search(problem, budget, seed=5)) for _ in range(2)]
        for search in searches:
            assert search.best is not None
            problem.check(search.best)
            assert search.evaluations <= budget
            exact = search.simulator.evaluate(search.best[None]).step_seconds[0]
            assert exact == search.best_seconds
        first, second = (search.best for search in searches)
        assert first is not None
        assert second is not None
        assert first.tolist() == second.tolist()
        assert [i.step_seconds for i in searches[0].improvements] == [
            i.step_seconds for i in searches[1].improvements
        ]


@pytest.mark.parametrize("name", ["random_search", "annealing", "cross_entropy"])
def test_the_budget_is_used_and_kept(name: str) -> None:
    budget = TRAINED.get(name, BUDGET)
    assert run(name, make_search(random_problem(3), budget)).evaluations == budget
    own = run(name, make_search(random_problem(3)), evaluations=budget)
    assert own.evaluations == budget


@pytest.mark.parametrize("name", list(PLACERS))
def test_one_device(name: str) -> None:
    problem = random_problem(4, num_ops=6, topology="local")
    search = run(name, make_search(problem, TRAINED.get(name, BUDGET)))
    assert search.best is not None
    assert not search.best.any()


@pytest.mark.parametrize("name", list(PLACERS))
def test_ops_for_the_cpu_alone(name: str) -> None:
    edges = [(0, 1), (1, 2), (2, 3)]
    allowed = np.ones((4, 3), bool)
    allowed[:, 1:] = False
    problem = make_problem(edges, [1e-3] * 4, allowed=allowed)
    search = run(name, make_search(problem, TRAINED.get(name, BUDGET)))
    assert search.best is not None
    assert not search.best.any()


@pytest.mark.parametrize("name", list(PLACERS))
def test_ops_pinned_to_different_gpus(name: str) -> None:
    allowed = np.ones((6, 3), bool)
    allowed[1] = [False, True, False]
    allowed[4] = [False, False, True]
    problem = make_problem([(i, i + 1) for i in range(5)], [1e-3] * 6, allowed=allowed)
    search = run(name, make_search(problem, TRAINED.get(name, BUDGET)))
    assert search.best is not None
    assert search.best[1] == 1
    assert search.best[4] == 2


@pytest.mark.parametrize("name", list(PLACERS))
def test_a_single_op(name: str) -> None:
    search = run(name, make_search(make_problem([], [1e-3]), TRAINED.get(name, BUDGET)))
    assert search.best is not None
    assert np.isfinite(search.best_seconds)


def brute_force(search: Search) -> float:
    """The optimum over all placements that the constraints allow, one by one."""
    problem = search.problem
    count = int(problem.graph.colocation.max()) + 1
    choices = [np.flatnonzero(row).tolist() for row in problem.group_allowed]
    rows = np.array(list(itertools.product(*choices)), np.int32).reshape(-1, count)
    evaluation = search.simulator.evaluate(rows[:, problem.graph.colocation])
    return float(np.where(evaluation.feasible, evaluation.step_seconds, np.inf).min())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("devices", ["k80:2", "k80:3"])
def test_exhaustive_is_the_optimum(seed: int, devices: str) -> None:
    problem = random_problem(seed, num_ops=8, topology=devices, memory_gib=14.0)
    search = run("exhaustive", make_search(problem))
    assert search.best_seconds == brute_force(search)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["annealing", "cross_entropy"])
def test_learners_find_the_optimum_of_tiny_graphs(name: str, seed: int) -> None:
    problem = random_problem(seed, num_ops=9)
    optimum = run("exhaustive", make_search(problem)).best_seconds
    search = run(name, make_search(problem, 3000, seed=seed), use_cpu=True)
    assert search.best_seconds == pytest.approx(optimum, rel=0.02)


def test_exhaustive_refuses_large_graphs() -> None:
    with pytest.raises(PlacerError, match="tiny graphs"):
        run("exhaustive", make_search(random_problem(0, num_ops=40)))


MEMORY_AWARE = ("m_topo", "m_etf", "m_sct", "annealing", "cross_entropy")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", MEMORY_AWARE)
def test_memory_limits_are_kept(name: str, seed: int) -> None:
    # Two GPUs of 12 GiB hold 16 GiB of variables; neither alone does.
    problem = random_problem(seed, num_ops=40, memory_gib=16.0)
    gpu = problem.single_device(1)
    search = make_search(problem, 2000)
    assert not search.simulator.evaluate(gpu[None]).feasible[0]
    run(name, search)
    assert np.isfinite(search.best_seconds)
    # No cheating on the CPU, which is 20 times slower.
    cpu = search.simulator.evaluate(problem.single_device(0)[None]).step_seconds[0]
    assert search.best_seconds < cpu / 2


@pytest.mark.parametrize("name", ["m_etf", "heft", "m_sct"])
def test_two_chains_use_two_gpus(name: str) -> None:
    # Two chains that never meet, and tensors that cost more to move than to make.
    edges = [(i, i + 2) for i in range(18)]
    problem = make_problem(edges, [1e-3] * 20, num_bytes=[64 << 20] * 20)
    search = run(name, make_search(problem), coplacement="colocation")
    assert search.best is not None
    assert (search.best[::2] == search.best[0]).all()
    assert (search.best[1::2] == search.best[1]).all()
    assert search.best[0] != search.best[1]


@pytest.mark.parametrize("name", ["scotch", "mincut", "metis"])
def test_partitioners_cut_between_clusters(name: str) -> None:
    # Two rings of heavy traffic joined by one light edge.
    left = [(i, j) for i in range(6) for j in range(i + 1, 6)]
    edges = [*left, *[(a + 6, b + 6) for a, b in left], (0, 11)]
    size = [1 << 20] * 12
    problem = make_problem(edges, [1e-3] * 12, num_bytes=size, cpu_slowdown=1000.0)
    search = run(name, make_search(problem), coplacement="colocation")
    assert search.best is not None
    assert len(set(search.best[:6].tolist())) == 1
    assert len(set(search.best[6:].tolist())) == 1
    assert search.best[0] != search.best[6]
    if name != "scotch":
        assert (search.best > 0).all()


class _Failing:
    """A simulator in which some placements do not run, as real ones may not.

    Attributes:
      seen: int32[N] each, all placements that were evaluated.
    """

    def __init__(
        self, problem: PlacementProblem, fails: Callable[[np.ndarray], np.ndarray]
    ) -> None:
        self._simulator = build_simulator(problem)
        self._fails = fails
        self.seen: list[np.ndarray] = []

    def evaluate(
        self,
        placements: np.ndarray,
        group_of: np.ndarray | None = None,
        *,
        cutoff: float | np.ndarray = float("inf"),
    ) -> Evaluation:
        self.seen += list(placements)
        found = self._simulator.evaluate(placements, group_of, cutoff=cutoff)
        failed = self._fails(placements)
        return dataclasses.replace(
            found,
            step_seconds=np.where(failed, np.inf, found.step_seconds),
            feasible=found.feasible & ~failed,
        )


def _run_failing(
    name: str, evaluations: int, fails: Callable[[np.ndarray], np.ndarray], **options: object
) -> tuple[Search, np.ndarray]:
    """The search, and all placements in the order of their evaluation, int32[evaluations, N]."""
    problem = make_problem([(i, i + 1) for i in range(7)], [1e-3] * 8, cpu_slowdown=1e3)
    evaluator = _Failing(problem, fails)
    search = Search(problem, atoms(problem), evaluator, Budget(evaluations=evaluations), 1)
    return run(name, search, **options), np.stack(evaluator.seen)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("hdp", {"learning_rate": 0.05, "batch": 8}),
        ("cross_entropy", {"batch": 8, "batches": 10**6}),
    ],
)
def test_learners_learn_from_what_does_not_run(name: str, options: dict) -> None:
    # The first GPU, which weights that are no numbers would choose.
    search, seen = _run_failing(name, 400, lambda p: p[:, 0] == 1, **options)
    failed = seen[:, 0] == 1
    assert failed[:16].mean() > 0.2
    assert failed[-80:].mean() < 0.1
    assert np.isfinite(search.best_seconds)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("name", ["hdp", "cross_entropy", "annealing", "random_search"])
def test_nothing_that_runs_is_nothing_learnt(name: str) -> None:
    search, seen = _run_failing(name, 80, lambda p: np.ones(len(p), bool))
    assert search.best_seconds == np.inf
    assert len(seen) == 80
    assert len(np.unique(seen[-20:], axis=0)) > 5


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_annealing_gets_away_from_a_start_that_does_not_run() -> None:
    fails = lambda p: np.abs((p == 1).sum(axis=1) - (p == 2).sum(axis=1)) > 2
    search, seen = _run_failing("annealing", 1000, fails, window=1)
    assert fails(seen[:1]).all()
    # A chain in two halves is the best of those that run.
    assert search.best is not None
    assert (search.best[1:] != search.best[:-1]).sum() == 1


@pytest.mark.parametrize("device", range(6))
def test_a_single_device_is_helped_out_by_its_own_host(device: int) -> None:
    topology = gpu_hosts("v100", 2, 2)
    hosts = [d.host for d in topology.devices]
    kinds = np.array([d.model.type for d in topology.devices])
    allowed = np.ones((4, 6), bool)
    allowed[1] = kinds == "CPU"
    allowed[2] = kinds == "GPU"
    allowed[3] = np.arange(6) == 1
    problem = make_problem([(0, 1), (1, 2), (2, 3)], [1e-3] * 4, topology=topology, allowed=allowed)
    found = problem.single_device(device)
    assert found[0] == device
    assert [hosts[d] for d in found[:3]] == [hosts[device]] * 3
    assert kinds[found[1]] == "CPU"
    assert kinds[found[2]] == "GPU"
    assert found[3] == 1


def test_single_gpu_takes_the_best_gpu() -> None:
    allowed = np.ones((4, 3), bool)
    allowed[3] = [False, False, True]
    problem = make_problem([(0, 1), (1, 2), (2, 3)], [1e-3] * 4, allowed=allowed)
    search = run("single_gpu", make_search(problem))
    assert search.best is not None
    assert search.best.tolist() == [2, 2, 2, 2]


def test_scotch_makes_one_mapping_however_its_threads_run() -> None:
    # Left to all cores, it makes another in about one run in ten.
    problem = random_problem(2, topology="k80:4")
    found = {run("scotch", make_search(problem, BUDGET, seed=5)).best.tobytes() for _ in range(60)}
    assert len(found) == 1
