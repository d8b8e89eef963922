"""Scotch and MinCut: static mapping of the op graph onto the device graph."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from placer.errors import PlacerError
from placer.placers import coplacement
from placer.placers.coplacement import UnitGraph, Units
from placer.placers.partition_weights import integer_weights
from placer.placers.spec import PlacerSpec, parameter
from placer.problem import PlacementProblem

if TYPE_CHECKING:
    from placer.search.state import Search


@dataclasses.dataclass(frozen=True)
class ScotchParameters:
    """Parameters of Scotch and MinCut."""

    imbalance: float = parameter(
        0.05, "how much the load of a device may exceed its share", least=0.0, most=1.0
    )
    coplacement: str = parameter("best", coplacement.RULES_HELP, choices=coplacement.RULE_CHOICES)


def _load(method: str) -> Any:
    try:
        import scotchpy
    except ImportError:
        raise PlacerError(
            f"method {method!r} needs Scotch; install it with: pip install 'placer[partition]'"
        ) from None
    return scotchpy


def _run_scotch(search: Search, parameters: ScotchParameters) -> None:
    devices = list(range(search.problem.topology.num_devices))
    _run(search, parameters, devices, "scotch")


def _run_mincut(search: Search, parameters: ScotchParameters) -> None:
    _run(search, parameters, list(search.problem.topology.accelerators), "mincut")


def _run(search: Search, parameters: ScotchParameters, devices: list[int], name: str) -> None:
    library = _load(name)
    problem = search.problem
    for units in coplacement.each_units(search, parameters.coplacement):
        unit_device = static_mapping(
            library, problem, units, devices, parameters.imbalance, search.seed
        )
        search.evaluate(problem.repair(unit_device[units.unit_of]), name)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Scotch splits a target graph on all cores, whatever the context of the source graph says.

    Threads that race make one of several mappings; only the environment keeps Scotch to one.
    """
    name = "SCOTCH_PTHREAD_NUMBER"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@_one_thread()
def static_mapping(
    library: Any,
    problem: PlacementProblem,
    units: Units,
    devices: list[int],
    imbalance: float,
    seed: int,
) -> np.ndarray:
    """int32[U]: Scotch's mapping of units onto `devices`; -1 for units that may use none of them.

    Pellegrini, Static Mapping by Dual Recursive Bipartitioning, SHPCC 1994. Vertices of the source
    graph weigh the compute time of their unit, edges the bytes that cross; vertices of the target
    graph weigh the speed of their device, edges the time that a byte takes. Units that may use
    only one of the devices are fixed vertices.

    The result depends on `seed` alone: Scotch runs on one thread and in its deterministic mode.
    """
    result = np.full(units.num_units, -1, np.int32)
    usable = units.allowed[:, devices]
    mapped = np.flatnonzero(usable.any(axis=1))
    if len(devices) == 1 or not mapped.size:
        result[mapped] = devices[0]
        return result
    whole = coplacement.unit_graph(problem, units)
    pointer, neighbour, num_bytes = induced_subgraph(whole, mapped)
    fixed = np.full(len(mapped), -1, np.int64)
    single = usable[mapped].sum(axis=1) == 1
    fixed[single] = usable[mapped][single].argmax(axis=1)
    # Devices that can do all of the work set the speeds.
    common = usable[mapped].all(axis=1)
    seconds = whole.seconds[devices][:, mapped]
    sample = seconds[:, common] if common.any() else seconds
    speed = 1.0 / np.maximum(sample.sum(axis=1), 1e-12)
    capacity = np.maximum(np.rint(1000.0 * speed / speed.max()), 1).astype(np.int64)
    velotab = integer_weights(seconds.min(axis=0), 0)
    edlotab = integer_weights(num_bytes, 1)

    links = problem.topology.links()
    d = len(devices)
    other = np.array([[j for j in range(d) if j != i] for i in range(d)])
    near, far = np.repeat(devices, d - 1), np.array(devices)[other].reshape(-1)
    # Of both directions of a link the slower counts: target graphs are undirected.
    byte_seconds = np.maximum(links.seconds_per_byte[near, far], links.seconds_per_byte[far, near])
    distance = np.clip(np.rint(10 * byte_seconds / max(byte_seconds.min(), 1e-30)), 1, 10_000)

    # A context holds Scotch to one thread and its deterministic mode (option 0).
    library.common.random_seed(seed + 1)
    library.common.random_reset()
    context = library.Context()
    context.option_set_num(0, 1)
    context.random_clone()
    context.thread_spawn(1, None)
    source, bound, target = library.Graph(), library.Graph(), library.Graph()
    source.build(verttab=pointer, edgetab=neighbour, velotab=velotab, edlotab=edlotab)
    context.bind_graph(source, bound)
    # Scotch keeps pointers into all these arrays: each is held by a name until it is done.
    target_pointer = np.arange(d + 1, dtype=np.int64) * (d - 1)
    target_neighbour = other.reshape(-1).astype(np.int64)
    target_distance = distance.astype(np.int64)
    all_devices = np.arange(d, dtype=np.int64)
    target.build(
        verttab=target_pointer,
        edgetab=target_neighbour,
        velotab=capacity,
        edlotab=target_distance,
    )
    architecture, mapping = library.Arch(), library.Mapping()
    target_strategy = library.Strat()
    architecture.build0(target, all_devices, target_strategy)
    strategy = library.Strat()
    strategy.graph_map_build(library.STRATQUALITY, d, imbalance)
    # Filled in place: it has Scotch's own integer type.
    part = np.array(fixed, np.dtype(f"int{8 * library.num_sizeof()}"))
    bound.map_init(mapping, architecture, part)
    try:
        bound.map_fixed_compute(mapping, strategy)
    finally:
        bound.map_exit(mapping)
    result[mapped] = np.array(devices, np.int32)[part]
    return result


def induced_subgraph(
    whole: UnitGraph, kept: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(pointer, neighbour, num_bytes) of the subgraph of the units `kept`."""
    number = np.full(len(whole.pointer) - 1, -1, np.int64)
    number[kept] = np.arange(len(kept))
    owner = number[np.repeat(np.arange(len(number)), np.diff(whole.pointer))]
    neighbour = number[whole.neighbour]
    keep = (owner >= 0) & (neighbour >= 0)
    pointer = np.zeros(len(kept) + 1, np.int64)
    np.cumsum(np.bincount(owner[keep], minlength=len(kept)), out=pointer[1:])
    return pointer, neighbour[keep], whole.num_bytes[keep]


_SOURCE = (
    "Pellegrini, Static Mapping by Dual Recursive Bipartitioning of Process and Architecture "
    "Graphs, SHPCC 1994; as used by Mirhoseini et al., ICML 2017, section 4.1"
)

SPECS = (
    PlacerSpec(
        "scotch",
        "static mapping onto all devices by the Scotch library",
        _SOURCE,
        ScotchParameters,
        _run_scotch,
        extra="partition",
        module="scotchpy",
    ),
    PlacerSpec(
        "mincut",
        "static mapping onto the GPUs alone by the Scotch library",
        _SOURCE,
        ScotchParameters,
        _run_mincut,
        extra="partition",
        module="scotchpy",
    ),
)
