"""m-TOPO, m-ETF and m-SCT: list scheduling with memory limits.

Jeon et al., Baechi: Fast Device Placement of Machine Learning Graphs, SoCC 2020 (section 3). m-ETF
extends Hwang et al., Scheduling Precedence Graphs in Systems with Interprocessor Communication
Times, SIAM J. Comput. 18(2), 1989; m-SCT extends Hanen and Munier, An Approximation Algorithm for
Scheduling Dependent Tasks on m Processors with Small Communication Delays, 1995/2001.
"""

from __future__ import annotations

import dataclasses
import heapq
from typing import TYPE_CHECKING

import numpy as np

from placer.placers import coplacement, favourite_child
from placer.placers.coplacement import Units
from placer.placers.list_schedule import ListSchedule, executed_edges, mean_link, upward_rank
from placer.placers.spec import PlacerSpec, parameter
from placer.problem import PlacementProblem

if TYPE_CHECKING:
    from placer.search.state import Search

_HEADROOM_HELP = "part of each device's memory that the schedule leaves free"


@dataclasses.dataclass(frozen=True)
class ListParameters:
    """Parameters of m-TOPO and m-ETF."""

    coplacement: str = parameter("best", coplacement.RULES_HELP, choices=coplacement.RULE_CHOICES)
    memory_headroom: float = parameter(0.05, _HEADROOM_HELP, least=0.0, most=0.9)


@dataclasses.dataclass(frozen=True)
class SctParameters(ListParameters):
    """Parameters of m-SCT."""

    threshold: float = parameter(
        0.5,
        "an edge whose relaxed variable is below it makes a favourite child",
        least=0.0,
        most=0.5,
    )
    lp_max_ops: int = parameter(
        20_000,
        "above so many ops after fusing chains the linear program is replaced by greedy matching "
        "of the largest transfers",
        least=0,
    )


def _run_m_topo(search: Search, parameters: ListParameters) -> None:
    problem = search.problem
    for units in coplacement.each_units(search, parameters.coplacement):
        placement = m_topo(problem, units, parameters.memory_headroom)
        search.evaluate(problem.repair(placement), "m_topo")


def _run_m_etf(search: Search, parameters: ListParameters) -> None:
    problem = search.problem
    for units in coplacement.each_units(search, parameters.coplacement):
        placement = m_etf(problem, units, parameters.memory_headroom)
        search.evaluate(problem.repair(placement), "m_etf")


def _run_m_sct(search: Search, parameters: SctParameters) -> None:
    problem = search.problem
    for units in coplacement.each_units(search, parameters.coplacement):
        favourite = favourite_child.favourite_children(
            problem, units, parameters.threshold, parameters.lp_max_ops
        )
        placement = m_etf(problem, units, parameters.memory_headroom, favourite)
        search.evaluate(problem.repair(placement), "m_sct")


def m_topo(problem: PlacementProblem, units: Units, memory_headroom: float) -> np.ndarray:
    """int32[N]: ops in topological order, device after device (Baechi, section 3.2).

    Each accelerator but the last takes units until their memory reaches the cap, the total divided
    by the number of accelerators plus the largest unit, or its variables its own limit.
    """
    graph, topology = problem.graph, problem.topology
    devices = list(topology.accelerators)
    local = np.where(graph.tensor_alias >= 0, 0, graph.tensor_local_bytes)
    outputs = np.bincount(graph.tensor_op, weights=local, minlength=graph.num_ops)
    need = units.persistent_bytes + np.bincount(
        units.unit_of, weights=outputs * graph.executed, minlength=units.num_units
    )
    usable = units.allowed[:, devices]
    counted = np.asarray(usable.any(axis=1))
    cap = need[counted].sum() / len(devices) + need[counted].max(initial=0)
    # Outputs are freed during a step: the share counts them, a device's own limit does not.
    limit = (topology.memory_bytes * (1 - memory_headroom)).tolist()
    order = graph.topological_order()
    order = order[graph.executed[order]]
    _, first = np.unique(units.unit_of[order], return_index=True)
    unit_order = units.unit_of[order[np.sort(first)]]
    device_of_unit = np.full(units.num_units, -1, np.int32)
    used = [0.0] * topology.num_devices
    kept = [0.0] * topology.num_devices
    current = 0

    def is_full(device: int, unit: int) -> bool:
        return (
            used[device] + float(need[unit]) > cap
            or kept[device] + float(units.persistent_bytes[unit]) > limit[device]
        )

    # Variables of no executed op come last.
    idle = np.setdiff1d(np.flatnonzero(units.persistent_bytes > 0), unit_order)
    for unit in [*unit_order.tolist(), *idle.tolist()]:
        if not counted[unit]:
            continue
        while current < len(devices) - 1 and is_full(devices[current], unit):
            current += 1
        choices = [d for d in devices[current:] if units.allowed[unit, d]]
        choices = choices or [d for d in devices if units.allowed[unit, d]]
        device_of_unit[unit] = choices[0]
        used[choices[0]] += need[unit]
        kept[choices[0]] += units.persistent_bytes[unit]
    return device_of_unit[units.unit_of]


def m_etf(
    problem: PlacementProblem,
    units: Units,
    memory_headroom: float,
    favourite: np.ndarray | None = None,
) -> np.ndarray:
    """int32[N]: earliest task first, with memory limits; with favourite children, m-SCT.

    At each step the (op, device) pair with the earliest start is scheduled; ties go to the op of
    the highest upward rank (Hwang et al. 1989). A pair without memory is dropped; an op without
    pairs goes to the allowed device with most memory left. Where a unit is pinned to a device that
    its ready ops had no pair with, they get one.

    With `favourite`, int32[N] (-1 for none), a device whose last op's favourite child is ready
    waits for it: other ops run there only once their data could be on every device (they are
    urgent; Hanen and Munier), the one first that is so earliest.
    """
    devices = list(problem.topology.accelerators)
    schedule = ListSchedule(problem, units, devices, memory_headroom)
    latency, per_byte = mean_link(problem, devices)
    _, _, tensor = executed_edges(problem.graph)
    edge_seconds = latency + per_byte * np.where(
        tensor >= 0, problem.graph.tensor_bytes[np.maximum(tensor, 0)], 0
    )
    rank = upward_rank(
        problem.graph, problem.device_seconds[devices].min(axis=0), edge_seconds
    ).tolist()
    return _EarliestTaskFirst(
        schedule, rank, favourite.tolist() if favourite is not None else None
    ).run()


class _EarliestTaskFirst:
    """The loop of ETF over per-device heaps.

    An op whose data reach a device before the device is free starts when the device is free: all
    those tie, and wait in `available` by rank. The others wait in `later` by arrival of their
    data. So each step looks at one or two heap tops per device.
    """

    def __init__(
        self, schedule: ListSchedule, rank: list[float], favourite: list[int] | None
    ) -> None:
        self._schedule = schedule
        self._rank = rank
        self._favourite = favourite
        devices = range(schedule.num_devices)
        self._available: list[list[tuple[float, int]]] = [[] for _ in devices]
        self._later: list[list[tuple[float, float, int]]] = [[] for _ in devices]
        # How many devices each ready op may still go to, and the (op, device) that lack memory.
        self._chances: dict[int, int] = {}
        self._dropped: set[tuple[int, int]] = set()
        # Ready ops of each unit; those scheduled since may still be among them.
        self._ready_of_unit: dict[int, list[int]] = {}
        self._last = [-1] * schedule.num_devices

    def run(self) -> np.ndarray:
        schedule = self._schedule
        for op in schedule.ops:
            if schedule.missing[op] == 0:
                self._offer(op)
        for _ in range(len(schedule.ops)):
            op, device, start = self._next()
            del self._chances[op]
            self._last[device] = op
            for released in schedule.commit(op, device, not_before=start):
                self._offer(released)
            for unit in schedule.newly_pinned:
                self._offer_again(unit)
            schedule.newly_pinned.clear()
        return schedule.placement()

    def _offer(self, op: int) -> None:
        devices = self._schedule.devices_for(op)
        self._chances[op] = len(devices)
        self._ready_of_unit.setdefault(self._schedule.unit_of[op], []).append(op)
        for device in devices:
            self._push(op, device)

    def _offer_again(self, unit: int) -> None:
        """Gives ready ops of a unit that was pinned the pair with its device, if it was none."""
        device = self._schedule.unit_device[unit]
        offered = device in self._schedule.candidates[unit]
        for op in self._ready_of_unit.pop(unit, ()):
            if op in self._chances and not (offered and (op, device) not in self._dropped):
                self._dropped.discard((op, device))
                self._push(op, device)

    def _push(self, op: int, device: int) -> None:
        ready = self._schedule.data_ready(op, device)
        if ready <= self._schedule.device_free[device]:
            heapq.heappush(self._available[device], (-self._rank[op], op))
        else:
            heapq.heappush(self._later[device], (ready, -self._rank[op], op))

    def _is_open(self, op: int, device: int) -> bool:
        """Whether an entry still counts: unscheduled, and its unit not pinned elsewhere."""
        if op not in self._chances or (op, device) in self._dropped:
            return False
        pinned = self._schedule.unit_device[self._schedule.unit_of[op]]
        return pinned < 0 or pinned == device

    def _next(self) -> tuple[int, int, float]:
        """The next (op, device), and, as an op may have to become urgent, when it may start."""
        while True:
            best: tuple[float, float, int, int] | None = None
            for device in range(self._schedule.num_devices):
                offer = self._best_on(device)
                if offer is not None and (best is None or offer < best):
                    best = offer
            if best is None:
                # What is left lost its devices when its unit was pinned or for want of memory.
                op = max(self._chances, key=lambda i: (self._rank[i], -i))
                return op, self._schedule.roomiest(op), 0.0
            start, _, op, device = best
            if not self._schedule.fits(op, device):
                lost = self._drop(op, device)
                if lost:
                    return op, self._schedule.roomiest(op), 0.0
                continue
            # Transfers scheduled since it was pushed may have taken the channel.
            ready = self._schedule.data_ready(op, device)
            if ready > start:
                self._remove(op, device)
                heapq.heappush(self._later[device], (ready, -self._rank[op], op))
                continue
            self._remove(op, device)
            return op, device, start if self._favourite is not None else 0.0

    def _drop(self, op: int, device: int) -> bool:
        """Forgets a pair; returns whether the op has no devices left."""
        self._dropped.add((op, device))
        self._chances[op] -= 1
        pinned = self._schedule.unit_device[self._schedule.unit_of[op]] >= 0
        return pinned or self._chances[op] <= 0

    def _remove(self, op: int, device: int) -> None:
        if self._available[device] and self._available[device][0][1] == op:
            heapq.heappop(self._available[device])
        elif self._later[device] and self._later[device][0][2] == op:
            heapq.heappop(self._later[device])

    def _best_on(self, device: int) -> tuple[float, float, int, int] | None:
        """(start, -rank, op, device) of the best op for one device."""
        schedule, available, later = self._schedule, self._available[device], self._later[device]
        free = schedule.device_free[device]
        while later and (later[0][0] <= free or not self._is_open(later[0][2], device)):
            _, rank, op = heapq.heappop(later)
            if self._is_open(op, device):
                heapq.heappush(available, (rank, op))
        while available and not self._is_open(available[0][1], device):
            heapq.heappop(available)
        if available:
            offer = (free, available[0][0], available[0][1], device)
        elif later:
            offer = (later[0][0], later[0][1], later[0][2], device)
        else:
            return None
        if self._favourite is None:
            return offer
        last = self._last[device]
        child = self._favourite[last] if last >= 0 else -1
        if child < 0 or child not in self._chances or child == offer[2]:
            return offer
        if not self._is_open(child, device):
            return offer
        # The device is awake: it waits for the child unless another op is urgent before.
        starts = {
            d: max(schedule.data_ready(child, d), schedule.device_free[d])
            for d in schedule.devices_for(child)
        }
        if device not in starts or starts[device] > min(starts.values()):
            return offer
        best = (starts[device], -self._rank[child], child, device)
        if best[0] <= free:
            return best
        # No op is urgent before its data are here: of those that come later, the first few count.
        arriving = (entry for entry in later if entry[0] <= starts[device])
        for rank, op in [*available, *((rank, op) for _, rank, op in arriving)]:
            if self._is_open(op, device):
                others = schedule.devices_for(op)
                start = max(free, self._urgent(op, others, best[0]))
                best = min(best, (start, rank, op, device))
        return best

    def _urgent(self, op: int, devices: list[int], enough: float) -> float:
        """When the data of an op can be on every device; looks no further if that is too late."""
        latest = 0.0
        for device in devices:
            latest = max(latest, self._schedule.data_ready(op, device))
            if latest > enough:
                break
        return latest


_SOURCE = "Jeon et al., Baechi: Fast Device Placement of Machine Learning Graphs, SoCC 2020"

SPECS = (
    PlacerSpec(
        "m_topo",
        "topological order, device after device up to an equal share of memory",
        f"{_SOURCE}, section 3.2",
        ListParameters,
        _run_m_topo,
    ),
    PlacerSpec(
        "m_etf",
        "list scheduling, earliest start first, within memory limits",
        f"{_SOURCE}, section 3.3; Hwang et al., SIAM J. Comput. 18(2), 1989",
        ListParameters,
        _run_m_etf,
    ),
    PlacerSpec(
        "m_sct",
        "list scheduling with favourite children from a linear program, within memory limits",
        f"{_SOURCE}, section 3.4; Hanen and Munier, Discrete Applied Mathematics 108, 2001",
        SctParameters,
        _run_m_sct,
    ),
)
