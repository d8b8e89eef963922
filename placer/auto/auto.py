"""The method "auto": seeds from the placers, the policy, and walks that compete."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import math
import os
import threading
from collections.abc import Iterator

import numpy as np
from scipy.optimize import linear_sum_assignment

from placer import placers
from placer.auto.local_search import Segment, Walk
from placer.auto.neighbourhood import OPERATORS, Neighbourhood
from placer.errors import PlacerError
from placer.grouping import Grouping, atoms, group_ops
from placer.placers import parameter
from placer.search import Budget, Search
from placer.simulator import Simulator
from placer.simulator.build import build_simulator

# Native code that cannot be stopped would overrun any budget: graph partitioners on graphs of more
# executed ops than this, the lower bound with more of them times devices than that.
_LARGE_OPS = 200_000
_LARGE_BOUND = 2_000_000
_PARTITIONERS = frozenset({"scotch", "mincut", "metis"})
# Quick constructive placers, the quickest first.
_SEEDS = (
    "single_gpu",
    "single_cpu",
    "expert",
    "metis",
    "mincut",
    "scotch",
    "heft",
    "m_etf",
    "m_topo",
)
# Share of the walks' time after which at most so many walks go on.
_CONTEST = ((0.0, 16), (0.06, 10), (0.14, 6), (0.28, 4), (0.5, 2))
_SEGMENT = 400
# How far the transfer penalty falls where there is no temperature for it to fall with.
_COLD_COOLING = 0.025
# How many of the best walks others take parts from.
_MATES = 3


@dataclasses.dataclass(frozen=True)
class AutoParameters:
    """Parts of the search, each of which may be switched off."""

    seeds: bool = parameter(True, "start from the placements of the constructive placers")
    random_seeds: int = parameter(3, "random placements of coarse groups to start from", least=0)
    policy: float = parameter(
        0.0, "share of the budget in which the policy learns over groups", least=0, most=1
    )
    local_search: bool = parameter(
        True,
        "improve placements by annealed walks over moves; with --reward measure, by moves of "
        "groups, best first, to which what follows does not apply",
    )
    refine: bool = parameter(
        True, "move parts of op groups, down to single ops; false moves whole groups only"
    )
    first_temperature: float = parameter(
        2e-4, "relative increase accepted with probability 1/e at the start of a walk", least=0
    )
    last_temperature: float = parameter(5e-6, "the same at the end", least=0)
    transfer_penalty: float = parameter(
        2.0,
        "what a second of transfers, averaged over devices, counts as in seconds of the step time "
        "for one walk in two, at the start; falls with the temperature",
        least=0,
    )
    patience: float = parameter(
        400.0, "stop after so many evaluations per movable unit without improvement", least=1
    )


def run_auto(search: Search, parameters: AutoParameters) -> None:
    """Runs the parts in turn until the budget is used up or nothing improves any more."""
    starts = _seed(search, parameters)
    if parameters.policy > 0 and not search.stopped():
        starts += _learn(search, parameters.policy)
    if parameters.local_search and not search.stopped():
        if isinstance(search.simulator, Simulator):
            _contest(search, search.simulator, starts, parameters)
        else:
            _climb(search, starts, parameters)


def _seed(search: Search, parameters: AutoParameters) -> list[np.ndarray]:
    """Placements, int32[N] each, of the constructive placers and at random."""
    problem = search.problem
    large = problem.graph.executed.sum() > _LARGE_OPS
    starts = [] if search.best is None else [search.best]
    if parameters.seeds:
        for name in _SEEDS:
            spec = placers.get(name)
            limited = search.budget.evaluations < math.inf
            share = math.inf if limited else max(0.1 * search.budget.seconds, 1.0)
            child = search.child(Budget(seconds=share))
            if child.stopped():
                break
            if not spec.installed:
                continue
            if large and name in _PARTITIONERS:
                continue
            # Some have no answer for this graph or topology.
            with _credited(search, child, name), contextlib.suppress(PlacerError):
                spec.run(child, spec.make_parameters())
            if child.best is not None:
                starts.append(child.best)
    rng = np.random.default_rng(search.seed)
    for i in range(parameters.random_seeds):
        if search.stopped():
            break
        grouping = group_ops(problem, max(2, 4 ** (i + 2) * problem.topology.num_devices // 2))
        starts.append(_random_placement(grouping, problem.topology.accelerators, rng))
    room = search.room(len(starts))
    if room:
        search.evaluate(np.stack(starts[:room]), "seeds")
    return starts or [problem.single_device(problem.topology.accelerators[0])]


def _random_placement(
    grouping: Grouping, devices: tuple[int, ...], rng: np.random.Generator
) -> np.ndarray:
    """int32[N]: every group on one of the given devices that it may use, or any it may use."""
    wanted = np.zeros(grouping.allowed.shape[1], bool)
    wanted[list(devices)] = True
    choices = grouping.allowed & wanted
    choices[~choices.any(axis=1)] = grouping.allowed[~choices.any(axis=1)]
    scores = np.where(choices, rng.random(choices.shape), -1.0)
    return grouping.expand(scores.argmax(axis=1))


@contextlib.contextmanager
def _credited(search: Search, child: Search, source: str) -> Iterator[None]:
    """Hands on what a child search finds, also if Ctrl-C ends it."""
    try:
        yield
    finally:
        if child.best is not None:
            search.add(child.best, child.best_seconds, child.evaluations, source, child.best_key[0])


def _learn(search: Search, share: float) -> list[np.ndarray]:
    """int32[N]: the best placement that the policy finds in its share of the budget, if any."""
    from placer.policy import PolicySettings, train

    budget = Budget(seconds=search.budget.seconds * share)
    if search.budget.evaluations < math.inf:
        # They count alone, so that one seed gives one placement.
        budget = Budget(evaluations=math.ceil(search.budget.evaluations * share))
    child = search.child(budget)
    with _credited(search, child, "policy"):
        train(child, PolicySettings())
    return [] if child.best is None else [child.best]


def _contest(
    search: Search,
    simulator: Simulator,
    starts: list[np.ndarray],
    parameters: AutoParameters,
) -> None:
    """Walks from all starts; the worse give up in favour of the better as time goes on.

    One walk in two pays for transfers, and both kinds go on to the end: those that pay find
    placements that those that look at the step time alone do not get to, and the reverse.

    The walks run in threads, a segment at a time, and meet after each; what they do depends on
    the seed and on the number of evaluations, not on the number of threads.
    """
    problem = search.problem
    units = atoms(problem) if parameters.refine else search.grouping
    neighbourhood = Neighbourhood(problem, units)
    if not len(neighbourhood.movable):
        return
    classes = problem.topology.symmetry_classes()
    rngs = np.random.default_rng(search.seed).spawn(len(starts))
    walks = [
        Walk(neighbourhood, simulator, units.reduce(start, problem), rng)
        for start, rng in zip(starts, rngs, strict=True)
    ]
    walks.sort(key=lambda w: w.best_key)
    if parameters.transfer_penalty > 0:
        for walk in walks[1::2]:
            walk.penalized = True
    begin, begin_evaluations = search.elapsed, search.evaluations
    patience = parameters.patience * len(neighbourhood.movable) + 5000
    improved_at = search.evaluations
    limited = search.budget.evaluations < math.inf
    cores = len(os.sched_getaffinity(0))
    # On large graphs a segment takes seconds: walks look at the clock themselves.
    interrupted = threading.Event()

    def stopped() -> bool:
        return interrupted.is_set() or search.remaining <= 0

    with concurrent.futures.ThreadPoolExecutor(cores) as pool:
        # The walks need not wait for the bound, but where evaluations are the limit all that they
        # do must be repeatable, and with it when they stop.
        bounding = None
        devices = problem.topology.num_devices
        if int(problem.graph.executed.sum()) * devices <= _LARGE_BOUND:
            bounding = pool.submit(simulator.lower_bound, problem.allowed, problem.graph.colocation)
        while not search.stopped():
            progress = _progress(search, begin, begin_evaluations)
            alive = [count for share, count in _CONTEST if progress >= share][-1]
            walks = _survivors(walks, alive) if len(walks) > alive else walks
            if len(walks) == 1:
                # Another from its best placement, so that two threads have work.
                rng = rngs[0].spawn(1)[0]
                penalized = parameters.transfer_penalty > 0 and not walks[0].penalized
                walks.append(Walk(neighbourhood, simulator, walks[0].best, rng, penalized))
            cooling = _cooling(parameters) ** min(progress, 1.0)
            temperature = parameters.first_temperature * cooling
            penalty = parameters.transfer_penalty * cooling
            size, more = divmod(search.room(_SEGMENT * len(walks)), len(walks))
            before = [w.evaluations for w in walks]
            futures = []
            for i, walk in enumerate(walks):
                paid = penalty if walk.penalized else 0.0
                segment = Segment(size + (i < more), temperature, paid, stopped)
                futures.append(pool.submit(walk.run, segment))
            try:
                for future in futures:
                    future.result()
            except KeyboardInterrupt:
                # Wait for all, so that no improvement is lost.
                interrupted.set()
                concurrent.futures.wait(futures)
                _report(search, units, walks, before)
                raise
            best_before = search.best_key
            _report(search, units, walks, before)
            if search.best_key < best_before:
                improved_at = search.evaluations
            if search.evaluations - improved_at > patience:
                return
            if (
                bounding is not None
                and (limited or bounding.done())
                and search.best_seconds <= bounding.result().step_seconds * (1 + 1e-9)
            ):
                return
            walks.sort(key=lambda w: w.best_key)
            for walk in walks:
                walk.mates = tuple(
                    relabel(other.best, walk.current, classes, units)
                    for other in walks[:_MATES]
                    if other is not walk
                )


def _cooling(parameters: AutoParameters) -> float:
    """Part of the first temperature and of the transfer penalty that is left at the end."""
    first = parameters.first_temperature
    # Without a temperature, only the penalty has to fall.
    return min(parameters.last_temperature / first, 1.0) if first > 0 else _COLD_COOLING


def _progress(search: Search, begin: float, begin_evaluations: int) -> float:
    """Share of the budget used since the contest began, 0 without any limit.

    A limit on evaluations counts alone, so that one seed gives one placement.
    """
    if search.budget.evaluations < math.inf:
        left = max(search.budget.evaluations - begin_evaluations, 1)
        return (search.evaluations - begin_evaluations) / left
    if search.budget.seconds < math.inf:
        return (search.elapsed - begin) / max(search.budget.seconds - begin, 1e-9)
    return 0.0


def _survivors(walks: list[Walk], count: int) -> list[Walk]:
    """The best `count` of walks that are sorted, as many of either kind if there are both.

    Of walks whose best placement is the same, only the first goes on.
    """
    seen: dict[bytes, Walk] = {}
    for walk in walks:
        seen.setdefault(walk.best.tobytes(), walk)
    distinct = list(seen.values())
    better_of_kind: collections.Counter[bool] = collections.Counter()
    ranks = []
    for walk in distinct:
        ranks.append(better_of_kind[walk.penalized])
        better_of_kind[walk.penalized] += 1
    chosen = np.argsort(ranks, kind="stable")[:count]
    return [distinct[i] for i in np.sort(chosen)]


def _report(search: Search, units: Grouping, walks: list[Walk], before: list[int]) -> None:
    for walk, evaluations in zip(walks, before, strict=True):
        search.add(
            units.expand(walk.best),
            walk.best_seconds,
            walk.evaluations - evaluations,
            "local search",
            walk.best_excess,
        )


def relabel(
    placement: np.ndarray, reference: np.ndarray, classes: np.ndarray, units: Grouping
) -> np.ndarray:
    """A placement with interchangeable devices renamed so as to agree most with another.

    Args:
      placement, reference: int32[A] placements of the units.
      classes: int32[D], Topology.symmetry_classes().
      units: A units; agreement is weighted by their compute time.

    Returns:
      int32[A]; renamed only where every unit may use the device it then has.
    """
    count = len(classes)
    weight = units.seconds.min(axis=0) + 1e-9
    pairs = placement.astype(np.int64) * count + reference
    overlap = np.bincount(pairs, weight, count * count).reshape(count, count)
    names = np.arange(count)
    for number in np.unique(classes):
        members = np.flatnonzero(classes == number)
        rows, columns = linear_sum_assignment(-overlap[np.ix_(members, members)])
        names[members[rows]] = members[columns]
    renamed = names[placement].astype(np.int32)
    legal = units.allowed[np.arange(len(renamed)), renamed]
    return np.where(legal, renamed, placement).astype(np.int32)


def _climb(search: Search, starts: list[np.ndarray], parameters: AutoParameters) -> None:
    """Local search where each evaluation is a real run: moves of groups, best first, no threads."""
    units = search.grouping
    neighbourhood = Neighbourhood(search.problem, units)
    if search.best is None or not len(neighbourhood.movable):
        return
    rng = np.random.default_rng(search.seed)
    simulator = build_simulator(search.problem)
    current = units.reduce(search.best, search.problem)
    view = neighbourhood.view(simulator, current)
    while not search.stopped():
        operator = OPERATORS[rng.integers(len(OPERATORS) - 1)]
        move = neighbourhood.propose(operator, current, view, rng)
        if move is None:
            continue
        proposal = current.copy()
        proposal[move[0]] = move[1]
        before = search.best_seconds
        search.evaluate(proposal, "local search", group_of=units.group_of)
        if search.best_seconds < before:
            current = proposal
            view = neighbourhood.view(simulator, current)
