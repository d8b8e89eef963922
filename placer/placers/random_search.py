"""Random search over group placements."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from placer.placers.group_moves import draw_uniform, preferred
from placer.placers.progress import Progress
from placer.placers.spec import PlacerSpec, parameter

if TYPE_CHECKING:
    from placer.search.state import Search

NAME = "random_search"


@dataclasses.dataclass(frozen=True)
class RandomSearchParameters:
    """Parameters of random search."""

    evaluations: int | None = parameter(
        None, "placements to evaluate; none: as the budget allows", least=1
    )
    batch: int = parameter(64, "placements simulated at once", least=1)
    use_cpu: bool = parameter(True, "draw the CPU too for groups that a GPU may run")


def _run(search: Search, parameters: RandomSearchParameters) -> None:
    """Draws every group's device evenly from those it may use."""
    rng = np.random.default_rng(search.seed)
    allowed = search.grouping.allowed
    if not parameters.use_cpu:
        allowed = preferred(search.problem, allowed)
    progress = Progress(search, parameters.evaluations)
    while not progress.done():
        groups = draw_uniform(rng, allowed, progress.room(parameters.batch))
        search.evaluate(search.grouping.expand(groups), NAME, cutoff=search.best_seconds)


SPEC = PlacerSpec(
    NAME,
    "groups on devices drawn evenly",
    "Bergstra and Bengio, Random Search for Hyper-Parameter Optimization, JMLR 13, 2012",
    RandomSearchParameters,
    _run,
)
