"""HEFT: heterogeneous earliest finish time, with insertion."""

from __future__ import annotations

import bisect
import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from placer.placers import coplacement
from placer.placers.coplacement import Units
from placer.placers.list_schedule import ListSchedule, executed_edges, mean_link, upward_rank
from placer.placers.spec import PlacerSpec, parameter
from placer.problem import PlacementProblem

if TYPE_CHECKING:
    from placer.search.state import Search


@dataclasses.dataclass(frozen=True)
class HeftParameters:
    """Parameters of HEFT."""

    coplacement: str = parameter("best", coplacement.RULES_HELP, choices=coplacement.RULE_CHOICES)
    insertion: bool = parameter(True, "fill idle slots between ops that are scheduled already")
    contention: bool = parameter(
        False, "transfers wait for each other on the links (the paper's do not)"
    )


def _run(search: Search, parameters: HeftParameters) -> None:
    problem = search.problem
    for units in coplacement.each_units(search, parameters.coplacement):
        placement = heft(problem, units, parameters.insertion, parameters.contention)
        search.evaluate(problem.repair(placement), "heft")


def heft(
    problem: PlacementProblem, units: Units, insertion: bool = True, contention: bool = False
) -> np.ndarray:
    """int32[N]: Topcuoglu, Hariri and Wu, IEEE TPDS 13(3), 2002, section 4.1.

    Ops in order of decreasing upward rank (mean costs over the devices and links) each go to the
    device that ends them first, in the earliest idle slot that is long enough. Without
    `contention` links carry any number of transfers at once, as in the paper. Memory has no limit
    there. The rest of a unit follows its first op.
    """
    graph = problem.graph
    devices = list(range(problem.topology.num_devices))
    schedule = ListSchedule(problem, units, devices, contention=contention)
    latency, per_byte = mean_link(problem, devices)
    _, _, tensor = executed_edges(graph)
    edge_seconds = latency + per_byte * np.where(
        tensor >= 0, graph.tensor_bytes[np.maximum(tensor, 0)], 0
    )
    mean_seconds = problem.device_seconds.mean(axis=0)
    rank = upward_rank(graph, mean_seconds, edge_seconds)
    ops = np.array(schedule.ops, np.int64)
    # Equal ranks (ops that take no time) keep the topological order.
    position = np.empty(graph.num_ops, np.int64)
    topological = graph.topological_order()
    position[topological] = np.arange(len(topological))
    order = ops[np.lexsort((position[ops], -rank[ops]))]
    slots = [_IdleSlots() for _ in devices]
    for op in order.tolist():
        best_end, best_start, best_device = float("inf"), 0.0, -1
        for device in schedule.devices_for(op):
            ready = schedule.data_ready(op, device)
            duration = schedule.seconds[device][op]
            if insertion:
                start = slots[device].earliest(ready, duration)
            else:
                start = max(ready, schedule.device_free[device])
            if start + duration < best_end:
                best_end, best_start, best_device = start + duration, start, device
        schedule.commit(op, best_device, best_start)
        slots[best_device].take(best_start, best_end)
    return schedule.placement()


class _IdleSlots:
    """The idle stretches of a device, as sorted starts and ends; the last never ends."""

    def __init__(self) -> None:
        self._starts = [0.0]
        self._ends = [float("inf")]

    def earliest(self, ready: float, duration: float) -> float:
        """The earliest start, not before `ready`, of an idle stretch of `duration`."""
        starts, ends = self._starts, self._ends
        i = bisect.bisect_right(ends, ready)
        while True:
            start = starts[i] if starts[i] > ready else ready
            if start + duration <= ends[i]:
                return start
            i += 1

    def take(self, start: float, end: float) -> None:
        """Marks [start, end) busy; it lies in one idle stretch."""
        if end <= start:
            return
        starts, ends = self._starts, self._ends
        i = bisect.bisect_right(starts, start) - 1
        old_start, old_end = starts[i], ends[i]
        # A remainder too short for any op is only slack to walk over.
        left, right = start - old_start > _SHORTEST, old_end - end > _SHORTEST
        if left and right:
            ends[i] = start
            starts.insert(i + 1, end)
            ends.insert(i + 1, old_end)
        elif left:
            ends[i] = start
        elif right:
            starts[i] = end
        else:
            del starts[i], ends[i]


# Seconds; launching any op takes longer.
_SHORTEST = 1e-6

SPEC = PlacerSpec(
    "heft",
    "list scheduling by upward rank, earliest finish first, filling idle slots",
    "Topcuoglu, Hariri and Wu, Performance-Effective and Low-Complexity Task Scheduling for "
    "Heterogeneous Computing, IEEE TPDS 13(3), 2002",
    HeftParameters,
    _run,
)
