"""Simulated annealing: Markov chain Monte Carlo over group placements, with cooling."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from placer.placers.group_moves import (
    draw_uniform,
    graded_cost,
    initial_groups,
    nth_allowed,
    preferred,
)
from placer.placers.progress import Progress
from placer.placers.spec import PlacerSpec, parameter

if TYPE_CHECKING:
    from placer.search.state import Search

NAME = "annealing"


@dataclasses.dataclass(frozen=True)
class AnnealingParameters:
    """Parameters of annealing; temperatures are parts of the first placement's step time."""

    evaluations: int | None = parameter(
        None, "placements to evaluate; none: as the budget allows", least=1
    )
    chains: int = parameter(1, "independent chains", least=1, most=1024)
    speculation: int = parameter(
        16, "most proposals of one chain that are simulated at once", least=1, most=1024
    )
    first_temperature: float = parameter(0.1, "temperature at the start", least=0.0)
    last_temperature: float = parameter(1e-5, "temperature at the end", least=0.0)
    start: str = parameter(
        "best",
        "best (the best placement so far, or one accelerator) or random (a device drawn for "
        "each group)",
        choices=("best", "random"),
    )
    window: int = parameter(
        8,
        "longest run of neighbouring groups whose devices one proposal exchanges; 1 is FlexFlow's "
        "proposal, one group at a time",
        least=1,
    )
    memory_penalty: float = parameter(
        20.0, "cost of memory over the limit: step time * penalty * part of the limit", least=0.0
    )
    use_cpu: bool = parameter(False, "propose the CPU too for groups that a GPU may run")


def _run(search: Search, parameters: AnnealingParameters) -> None:
    """Metropolis-Hastings with a symmetric proposal.

    A proposal takes a random group to another random device. Half of the proposals also exchange
    the two devices in a run of groups around it, of a random length up to `window`: alone, no group
    of a chain can leave its neighbours at a profit. Groups are numbered in topological order.

    A proposal is accepted with probability min(1, exp((cost - new cost) / temperature)); the
    temperature falls geometrically with the budget that is used. Several proposals of a chain are
    simulated at once: the first that is accepted moves the chain and those after it are discarded,
    so a chain is just what it would be one proposal at a time. Whether a proposal will be accepted
    follows from a step time known beforehand (the random number is drawn first), so its simulation
    ends as soon as that is exceeded.
    """
    problem, grouping = search.problem, search.grouping
    memory = problem.topology.memory_bytes
    allowed = grouping.allowed if parameters.use_cpu else preferred(problem, grouping.allowed)
    choices = allowed.sum(axis=1)
    # Groups without a choice are never proposed.
    free = np.flatnonzero(choices > 1)
    devices_of = nth_allowed(allowed)
    rng = np.random.default_rng(search.seed)
    progress = Progress(search, parameters.evaluations)
    if parameters.start == "random":
        first = draw_uniform(rng, allowed, 1)[0]
    else:
        first = initial_groups(search, NAME)
    if not free.size or progress.done():
        return
    evaluation = search.evaluate(grouping.expand(first), NAME)
    first_cost = graded_cost(evaluation, memory, parameters.memory_penalty)[0]
    chains = [_Chain(first.copy(), float(first_cost)) for _ in range(parameters.chains)]

    while not progress.done():
        if not np.isfinite(first_cost):
            # The first placement did not run: anything is better, until a chain has one that does.
            first_cost = min(chain.cost for chain in chains)
        temperature = _temperature(parameters, float(first_cost), progress.fraction())
        sizes = [chain.batch(parameters.speculation) for chain in chains]
        total = progress.room(sum(sizes))
        owner = np.repeat(np.arange(len(chains)), sizes)[:total]
        rows = np.stack([chain.groups for chain in chains])[owner]
        moved = free[(rng.random(total) * len(free)).astype(np.int64)]
        # Another device than the current one: the n-th of the others.
        options = devices_of[moved]
        current = rows[np.arange(total), moved]
        nth = (rng.random(total) * (choices[moved] - 1)).astype(np.int64)
        at = (options == current[:, None]).argmax(axis=1)
        # A start on a device that is not among the choices counts as the last choice.
        at = np.minimum(at, choices[moved] - 1)
        nth += nth >= at
        target = options[np.arange(total), nth]
        reach = np.where(
            rng.random(total) < 0.5, (rng.random(total) * parameters.window).astype(np.int64), 0
        )
        for i in range(total):
            near = slice(max(moved[i] - reach[i] // 2, 0), moved[i] + (reach[i] + 1) // 2 + 1)
            _exchange(rows[i, near], allowed[near], int(current[i]), int(target[i]))
            rows[i, moved[i]] = target[i]
        cost = np.array([chain.cost for chain in chains])[owner]
        limit = cost - temperature * np.log1p(-rng.random(total))
        evaluation = search.evaluate(grouping.expand(rows), NAME, cutoff=limit)
        new_cost = graded_cost(evaluation, memory, parameters.memory_penalty)
        accepted = new_cost <= limit
        for number, chain in enumerate(chains):
            mine = np.flatnonzero(owner == number)
            hits = mine[accepted[mine]]
            if hits.size:
                chain.groups, chain.cost = rows[hits[0]].copy(), float(new_cost[hits[0]])
                chain.note(int(hits[0] - mine[0]) + 1, True)
            else:
                chain.note(len(mine), False)


def _temperature(parameters: AnnealingParameters, first_cost: float, fraction: float) -> float:
    """Seconds, after this part of the run; 0 without a cost to be a part of."""
    if not 0 < first_cost < np.inf:
        return 0.0
    high = max(parameters.first_temperature, 1e-12) * first_cost
    low = max(min(parameters.last_temperature, parameters.first_temperature), 1e-12) * first_cost
    return high * (low / high) ** fraction


def _exchange(devices: np.ndarray, allowed: np.ndarray, one: int, other: int) -> None:
    """Exchanges two devices, in place, among groups that may use both."""
    both = allowed[:, one] & allowed[:, other]
    first, second = both & (devices == one), both & (devices == other)
    devices[first] = other
    devices[second] = one


class _Chain:
    """State of one chain, and how many proposals to simulate at once."""

    def __init__(self, groups: np.ndarray, cost: float) -> None:
        self.groups = groups
        self.cost = cost
        self._acceptance = 0.5

    def batch(self, most: int) -> int:
        """About as many proposals as are needed for one acceptance."""
        return int(min(most, max(2, round(0.7 / self._acceptance))))

    def note(self, tried: int, accepted: bool) -> None:
        """Updates the running acceptance rate."""
        for i in range(tried):
            hit = accepted and i == tried - 1
            self._acceptance += 0.02 * (float(hit) - self._acceptance)


SPEC = PlacerSpec(
    NAME,
    "simulated annealing (MCMC) over groups, several proposals simulated at once",
    "Kirkpatrick et al., Science 220, 1983; Jia, Zaharia and Aiken, Beyond Data and Model "
    "Parallelism for Deep Neural Networks (FlexFlow), SysML 2019, section 6",
    AnnealingParameters,
    _run,
)
