"""The optimum of tiny graphs, by branch and bound over colocation groups."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from placer.errors import PlacerError
from placer.placers.coplacement import Units, make_units
from placer.placers.progress import Progress
from placer.placers.spec import PlacerSpec, parameter
from placer.problem import PlacementProblem
from placer.simulator import Simulator

if TYPE_CHECKING:
    from collections.abc import Iterator

    from placer.search.state import Search

NAME = "exhaustive"


@dataclasses.dataclass(frozen=True)
class ExhaustiveParameters:
    """Parameters of the exhaustive search."""

    max_placements: int = parameter(
        2_000_000, "refuse graphs with more placements than this, symmetry left out", least=1
    )
    batch: int = parameter(256, "placements simulated at once", least=1)


def _run(search: Search, parameters: ExhaustiveParameters) -> None:
    """Evaluates every placement that could still be the best.

    Placements that differ by an exchange of interchangeable devices are tried once. A branch is
    cut when the work on one device alone, or the variables there, exceed the best step time or
    the memory; a simulation when it exceeds the best step time. (Real runs, which may be faster
    than their ops' costs, are cut by memory only.)
    """
    problem = search.problem
    units = make_units(problem, "colocation")
    free = free_units(problem, units)
    classes = device_classes(problem, units)
    size = count_placements(units.allowed[free], classes, parameters.max_placements)
    if size > parameters.max_placements:
        raise PlacerError(
            f"method 'exhaustive' is for tiny graphs: this one has {len(free)} colocation groups "
            f"and more than {parameters.max_placements} placements; use another method, or raise "
            "its option max_placements"
        )
    # A good first bound; exhaustive search then proves or betters it.
    base = np.stack([problem.single_device(d) for d in range(problem.topology.num_devices)])
    progress = Progress(search, len(base) + size)
    search.evaluate(base[: max(progress.room(len(base)), 1)], NAME)
    rows: list[np.ndarray] = []
    for devices in _enumerate(search, units, free, classes):
        rows.append(devices)
        if len(rows) == parameters.batch:
            if progress.done():
                return
            _evaluate(search, rows[: progress.room(len(rows))], units)
            rows = []
    if rows and not progress.done():
        _evaluate(search, rows[: progress.room(len(rows))], units)


def _evaluate(search: Search, rows: list[np.ndarray], units: Units) -> None:
    search.evaluate(np.stack(rows)[:, units.unit_of], NAME, cutoff=search.best_seconds)


def free_units(problem: PlacementProblem, units: Units) -> np.ndarray:
    """int64[F]: units that matter: with a choice, and with an executed op or variables.

    In order of decreasing work, so that bounds bite early.
    """
    graph = problem.graph
    executed = np.zeros(units.num_units, bool)
    executed[units.unit_of[graph.executed]] = True
    matters = (units.allowed.sum(axis=1) > 1) & (executed | (units.persistent_bytes > 0))
    work = np.bincount(
        units.unit_of,
        weights=problem.device_seconds.min(axis=0) * graph.executed,
        minlength=units.num_units,
    )
    free = np.flatnonzero(matters)
    return free[np.argsort(-work[free], kind="stable")]


def device_classes(problem: PlacementProblem, units: Units) -> np.ndarray:
    """int32[D]: Topology.symmetry_classes, split where units may use only one of two devices."""
    classes = problem.topology.symmetry_classes()
    _, columns = np.unique(units.allowed, axis=1, return_inverse=True)
    pairs = np.stack([classes, columns.reshape(-1)], axis=1)
    _, first, inverse = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
    return first[inverse.reshape(-1)].astype(np.int32)


def count_placements(allowed: np.ndarray, classes: np.ndarray, most: int) -> int:
    """Number of placements of F units up to exchange of devices, or some number over `most`.

    Args:
      allowed: bool[F, D].
      classes: int32[D] of `device_classes`.
      most: counting stops above it.
    """
    # States: how many devices of each class are in use already; values: placements so far.
    kinds = np.unique(classes)
    members = {int(k): np.flatnonzero(classes == k) for k in kinds}
    states: dict[tuple[int, ...], int] = {tuple(0 for _ in kinds): 1}
    for row in allowed:
        after: dict[tuple[int, ...], int] = {}
        for used, count in states.items():
            for i, k in enumerate(kinds.tolist()):
                # Devices of one class are allowed together.
                if not row[members[k][0]]:
                    continue
                if used[i]:
                    after[used] = after.get(used, 0) + count * used[i]
                if used[i] < len(members[k]):
                    more = (*used[:i], used[i] + 1, *used[i + 1 :])
                    after[more] = after.get(more, 0) + count
        states = after
        if sum(states.values()) > most:
            break
    return sum(states.values())


def _enumerate(
    search: Search, units: Units, free: np.ndarray, classes: np.ndarray
) -> Iterator[np.ndarray]:
    """Yields int32[U] unit placements, depth first; bounds are those of the moment."""
    problem = search.problem
    graph, topology = problem.graph, problem.topology
    concurrency = [d.concurrency for d in topology.devices]
    simulated = isinstance(search.simulator, Simulator)
    limit = topology.memory_bytes.tolist()
    seconds = np.stack(
        [
            np.bincount(units.unit_of, weights=row * graph.executed, minlength=units.num_units)
            for row in problem.device_seconds
        ]
    )
    devices = units.allowed.argmax(axis=1).astype(np.int32)
    fixed = np.setdiff1d(np.flatnonzero(units.allowed.sum(axis=1) == 1), free)
    load, kept = [0.0] * topology.num_devices, [0] * topology.num_devices
    for u in fixed.tolist():
        load[devices[u]] += float(seconds[devices[u], u])
        kept[devices[u]] += int(units.persistent_bytes[u])
    members = {int(k): np.flatnonzero(classes == k).tolist() for k in np.unique(classes)}
    rank = {d: i for group in members.values() for i, d in enumerate(group)}
    used = dict.fromkeys(members, 0)

    def descend(depth: int) -> Iterator[np.ndarray]:
        if depth == len(free):
            yield devices.copy()
            return
        unit = int(free[depth])
        for device in np.flatnonzero(units.allowed[unit]).tolist():
            kind = int(classes[device])
            # Of devices that are alike and empty, only the first is tried.
            if rank[device] > used[kind]:
                continue
            busy = load[device] + float(seconds[device, unit])
            held = kept[device] + int(units.persistent_bytes[unit])
            # A relative margin: sums in another order differ in the last bits.
            least = busy * (1 - 1e-9) / concurrency[device]
            if simulated and least > search.best_seconds:
                continue
            if held > limit[device]:
                continue
            fresh = rank[device] == used[kind]
            before = load[device], kept[device]
            load[device], kept[device] = busy, held
            used[kind] += fresh
            devices[unit] = device
            yield from descend(depth + 1)
            used[kind] -= fresh
            load[device], kept[device] = before

    yield from descend(0)


SPEC = PlacerSpec(
    NAME,
    "the optimum of tiny graphs, by branch and bound",
    "Land and Doig, An Automatic Method of Solving Discrete Programming Problems, "
    "Econometrica 28(3), 1960",
    ExhaustiveParameters,
    _run,
)
