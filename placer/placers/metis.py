"""METIS: balanced multilevel k-way partitioning."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from placer.errors import PlacerError
from placer.placers import coplacement
from placer.placers.coplacement import Units
from placer.placers.partition_weights import integer_weights
from placer.placers.scotch import induced_subgraph
from placer.placers.spec import PlacerSpec, parameter
from placer.problem import PlacementProblem

if TYPE_CHECKING:
    from placer.search.state import Search

NAME = "metis"


@dataclasses.dataclass(frozen=True)
class MetisParameters:
    """Parameters of METIS."""

    imbalance: float = parameter(
        0.03, "how much the load of a device may exceed its share", least=0.001, most=1.0
    )
    coplacement: str = parameter("best", coplacement.RULES_HELP, choices=coplacement.RULE_CHOICES)


def _load() -> Any:
    try:
        import pymetis
    except ImportError:
        raise PlacerError(
            f"method {NAME!r} needs METIS; install it with: pip install 'placer[partition]'"
        ) from None
    return pymetis


def _run(search: Search, parameters: MetisParameters) -> None:
    library = _load()
    problem = search.problem
    for units in coplacement.each_units(search, parameters.coplacement):
        part = partition(library, problem, units, parameters.imbalance, search.seed)
        search.evaluate(problem.repair(part[units.unit_of]), NAME)


def partition(
    library: Any, problem: PlacementProblem, units: Units, imbalance: float, seed: int
) -> np.ndarray:
    """int32[U]: units on accelerators; -1 for units that may use none.

    Karypis and Kumar, A Fast and High Quality Multilevel Scheme for Partitioning Irregular Graphs,
    SIAM J. Sci. Comput. 20(1), 1998. Parts have equal compute time (the speeds of the devices
    set their shares) and cut few bytes.
    """
    devices = list(problem.topology.accelerators)
    result = np.full(units.num_units, -1, np.int32)
    kept = np.flatnonzero(units.allowed[:, devices].any(axis=1))
    if len(devices) == 1 or len(kept) < len(devices):
        result[kept] = devices[0]
        return result
    whole = coplacement.unit_graph(problem, units)
    pointer, neighbour, num_bytes = induced_subgraph(whole, kept)
    seconds = whole.seconds[devices][:, kept]
    speed = 1.0 / np.maximum(seconds.sum(axis=1), 1e-12)
    # Its fields are set through names that it defines as it loads.
    options: Any = library.Options()
    options.ufactor = max(1, round(imbalance * 1000))
    options.seed = seed
    _, part = library.part_graph(
        len(devices),
        xadj=pointer.tolist(),
        adjncy=neighbour.tolist(),
        vweights=integer_weights(seconds.min(axis=0), 0).tolist(),
        eweights=integer_weights(num_bytes, 1).tolist(),
        tpwgts=(speed / speed.sum()).tolist(),
        recursive=False,
        options=options,
    )
    result[kept] = np.array(devices, np.int32)[np.array(part)]
    return result


SPEC = PlacerSpec(
    NAME,
    "balanced parts that cut few bytes, by the METIS library",
    "Karypis and Kumar, A Fast and High Quality Multilevel Scheme for Partitioning Irregular "
    "Graphs, SIAM J. Sci. Comput. 20(1), 1998",
    MetisParameters,
    _run,
    extra="partition",
    module="pymetis",
)
