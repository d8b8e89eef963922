"""The registry of placers."""

from __future__ import annotations

from placer.errors import PlacerError
from placer.placers import (
    annealing,
    baechi,
    cross_entropy,
    exhaustive,
    expert,
    hdp,
    heft,
    metis,
    random_search,
    scotch,
    single,
)
from placer.placers.spec import PlacerSpec

PLACERS: dict[str, PlacerSpec] = {
    spec.name: spec
    for spec in (
        *single.SPECS,
        expert.SPEC,
        *scotch.SPECS,
        metis.SPEC,
        *baechi.SPECS,
        heft.SPEC,
        random_search.SPEC,
        annealing.SPEC,
        cross_entropy.SPEC,
        hdp.SPEC,
        exhaustive.SPEC,
    )
}


def get(name: str) -> PlacerSpec:
    """The placer called `name`; PlacerError, listing the names, if there is none."""
    spec = PLACERS.get(name)
    if spec is None:
        raise PlacerError(f"unknown method {name!r}; placers are {', '.join(PLACERS)}")
    return spec
