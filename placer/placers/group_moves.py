"""Group placements: devices that groups may use, random draws, and costs that grade memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placer.grouping.grouping import Grouping
from placer.problem import PlacementProblem
from placer.simulator import Evaluation

if TYPE_CHECKING:
    from placer.search.state import Search


def preferred(problem: PlacementProblem, allowed: np.ndarray) -> np.ndarray:
    """bool[G, D]: `allowed` without the CPUs, where that leaves a device."""
    accelerators = np.zeros(problem.topology.num_devices, bool)
    accelerators[list(problem.topology.accelerators)] = True
    chosen = allowed & accelerators
    return np.where(chosen.any(axis=1, keepdims=True), chosen, allowed)


def draw_uniform(rng: np.random.Generator, allowed: np.ndarray, batch: int) -> np.ndarray:
    """int32[batch, G]: for each group a device drawn evenly from its allowed[G, D]."""
    choices = allowed.sum(axis=1)
    nth = (rng.random((batch, len(allowed))) * choices).astype(np.int64)
    return nth_allowed(allowed)[np.arange(len(allowed)), nth]


def nth_allowed(allowed: np.ndarray) -> np.ndarray:
    """int32[G, D]: row g lists the devices that group g may use, ascending, then the others."""
    return np.argsort(~allowed, axis=1, kind="stable").astype(np.int32)


def graded_cost(evaluation: Evaluation, memory_bytes: np.ndarray, penalty: float) -> np.ndarray:
    """float64[B]: step time, times 1 + penalty * (sum over devices of memory over the limit).

    Memory over the limit is a fraction of it, by the simulator; what ran for real fits. The cost is
    never below the step time.
    """
    over = np.maximum(evaluation.peak_bytes / memory_bytes - 1.0, 0.0).sum(axis=1)
    over = np.where(evaluation.feasible, 0.0, over)
    return evaluation.step_seconds * (1.0 + penalty * over)


def finite_cost(cost: np.ndarray) -> np.ndarray:
    """float64[B]: costs to learn from; what did not run costs twice what the dearest did.

    None has a finite cost where none of them ran; then there is nothing to learn.
    """
    ran = np.isfinite(cost)
    return np.where(ran, cost, 2.0 * cost[ran].max()) if ran.any() else cost


def initial_groups(search: Search, source: str) -> np.ndarray:
    """int32[G]: where local search starts: the best so far, or the best single accelerator."""
    problem, grouping = search.problem, search.grouping
    if search.best is not None:
        return grouping.reduce(search.best, problem)
    return best_single(search, grouping, source)


def best_single(search: Search, grouping: Grouping, source: str) -> np.ndarray:
    """int32[G]: all groups on the accelerator that is best alone; evaluates each of them."""
    problem = search.problem
    devices = problem.topology.accelerators
    devices = devices[: max(search.room(len(devices)), 1)]
    placements = np.stack([problem.single_device(d) for d in devices])
    groups = np.stack([grouping.reduce(p, problem) for p in placements])
    evaluation = search.evaluate(grouping.expand(groups), source)
    cost = graded_cost(evaluation, problem.topology.memory_bytes, 10.0)
    return groups[int(cost.argmin())]
