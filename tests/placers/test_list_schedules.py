"""List schedulers against published schedules and naive versions."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from placer.devices import Device, DeviceModel, Link, LinkRule, Sharing, Topology
from placer.placers.baechi import m_etf, m_topo
from placer.placers.coplacement import make_units
from placer.placers.favourite_child import favourite_children
from placer.placers.heft import heft
from placer.placers.list_schedule import ListSchedule, executed_edges, upward_rank
from placer.problem import PlacementProblem
from tests.placers.problems import make_problem, random_problem


def three_processors() -> Topology:
    """Three unlike devices; a byte takes a second, and transfers do not wait for each other."""
    devices = tuple(
        Device(
            f"/job:localhost/replica:0/task:0/device:GPU:{i}",
            DeviceModel(f"p{i + 1}", "GPU", 1000, 1, 1e9, 1 << 40),
            0,
            1 << 40,
        )
        for i in range(3)
    )
    return Topology("three", devices, (LinkRule(Link(0.0, 1.0, Sharing.PAIR)),))


# Topcuoglu, Hariri and Wu 2002, figure 3 and table 1 (tasks from 0 here).
COSTS = [
    [14, 16, 9],
    [13, 19, 18],
    [11, 13, 19],
    [13, 8, 17],
    [12, 13, 10],
    [13, 16, 9],
    [7, 15, 11],
    [5, 11, 14],
    [18, 12, 20],
    [21, 7, 16],
]
EDGES = {
    (0, 1): 18,
    (0, 2): 12,
    (0, 3): 9,
    (0, 4): 11,
    (0, 5): 14,
    (1, 7): 19,
    (1, 8): 16,
    (2, 6): 23,
    (3, 7): 27,
    (3, 8): 23,
    (4, 8): 13,
    (5, 7): 15,
    (6, 9): 17,
    (7, 9): 11,
    (8, 9): 13,
}


def published() -> PlacementProblem:
    return make_problem(
        list(EDGES),
        [1.0] * 10,
        topology=three_processors(),
        model_seconds=np.array(COSTS, float).T,
        edge_bytes=list(EDGES.values()),
    )


def test_upward_rank_of_the_published_example() -> None:
    problem = published()
    _, _, tensor = executed_edges(problem.graph)
    rank = upward_rank(
        problem.graph,
        problem.device_seconds.mean(axis=0),
        problem.graph.tensor_bytes[tensor].astype(float),
    )
    expected = [108, 77, 80, 80, 69, 63.333, 42.667, 35.667, 44.333, 14.667]
    assert rank == pytest.approx(expected, abs=1e-3)


def test_heft_makes_the_published_schedule() -> None:
    problem = published()
    placement = heft(problem, make_units(problem, "colocation"))
    # Figure 4(a): P3 runs tasks 1, 3, 5, 7; P2 runs 4, 6, 9, 10; P1 runs 2 and 8.
    assert placement.tolist() == [2, 0, 2, 1, 2, 1, 2, 0, 1, 1]


def test_insertion_fills_a_gap() -> None:
    # Op 3 must wait for op 1; op 4, of lower rank, fits in before it.
    problem = make_problem(
        [(0, 1), (0, 2), (1, 3)], [1.0, 9.0, 2.0, 1.0, 1.0], num_bytes=[1] * 5, topology="k80:1"
    )
    gpu_only = np.zeros((5, 2), bool)
    gpu_only[:, 1] = True
    gpu_only[1] = [True, False]
    fixed = PlacementProblem(problem.graph, problem.topology, problem.costs, gpu_only)
    placement = heft(fixed, make_units(fixed, "colocation"))
    assert placement.tolist() == [1, 0, 1, 1, 1]


def naive_etf(problem: PlacementProblem, favourite: list[int] | None = None) -> list[int]:
    """Earliest task first by trying every ready pair at every step; links queue by pair.

    With favourite children, a device waits for that of its last op, unless an op's data could be on
    every device before.
    """
    graph, links = problem.graph, problem.topology.links()
    devices = list(problem.topology.accelerators)
    seconds = problem.device_seconds
    src, dst, tensor = executed_edges(graph)
    a, b = devices[:2]
    cost = links.latency[a, b] + links.seconds_per_byte[a, b] * graph.tensor_bytes[tensor]
    rank = upward_rank(graph, seconds[devices].min(axis=0), cost)
    inputs = [np.flatnonzero(dst == op).tolist() for op in range(graph.num_ops)]
    device_of: dict[int, int] = {}
    finish: dict[int, float] = {}
    there: dict[tuple[int, int], float] = {}
    wire: dict[tuple[int, int], float] = {}
    free = dict.fromkeys(devices, 0.0)

    def arrival(e: int, d: int) -> float:
        p = int(src[e])
        if device_of[p] == d:
            return finish[p]
        if (int(tensor[e]), d) in there:
            return there[int(tensor[e]), d]
        return max(finish[p], wire.get((device_of[p], d), 0.0)) + cost[e]

    def ready(op: int, d: int) -> float:
        return max([0.0, *(arrival(e, d) for e in inputs[op])])

    def offer(d: int, ops: list[int]) -> tuple[float, float, int, int]:
        best = min((max(free[d], ready(op, d)), -rank[op], op, d) for op in ops)
        child = -1 if favourite is None or d not in last else favourite[last[d]]
        starts = {x: max(free[x], ready(child, x)) for x in devices} if child in ops else {}
        if child == best[2] or not starts or starts[d] > min(starts.values()):
            return best
        best = (starts[d], -rank[child], child, d)
        if starts[d] > free[d]:
            for op in ops:
                urgent = max(ready(op, x) for x in devices)
                best = min(best, (max(free[d], urgent), -rank[op], op, d))
        return best

    last: dict[int, int] = {}
    while len(device_of) < graph.num_ops:
        ops = [
            op
            for op in range(graph.num_ops)
            if op not in device_of and all(int(src[e]) in device_of for e in inputs[op])
        ]
        start, _, op, d = min(offer(d, ops) for d in devices)
        last[d] = op
        for e in inputs[op]:
            at = arrival(e, d)
            start = max(start, at)
            if device_of[int(src[e])] != d and (int(tensor[e]), d) not in there:
                there[int(tensor[e]), d] = at
                wire[device_of[int(src[e])], d] = at
        device_of[op], finish[op] = d, start + seconds[d, op]
        free[d] = finish[op]
    return [device_of[op] for op in range(graph.num_ops)]


@pytest.mark.parametrize("with_favourites", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_etf_chooses_as_if_it_tried_every_pair(seed: int, with_favourites: bool) -> None:
    base = random_problem(seed, num_ops=40, topology="k80:3")
    topology = Topology(
        "pairs", base.topology.devices, (LinkRule(Link(25e-6, 7.6e9, Sharing.PAIR)),)
    )
    edges = list(zip(base.graph.edge_src.tolist(), base.graph.edge_dst.tolist(), strict=True))
    allowed = np.ones((40, 4), bool)
    allowed[:, 0] = False
    problem = make_problem(
        edges,
        np.maximum(base.costs.seconds[1], 1e-4).tolist(),
        num_bytes=base.graph.tensor_bytes.tolist(),
        topology=topology,
        allowed=allowed,
    )
    units = make_units(problem, "colocation")
    favourite = favourite_children(problem, units, 0.5, 100) if with_favourites else None
    placement = m_etf(problem, units, 0.0, favourite)
    expected = naive_etf(problem, None if favourite is None else favourite.tolist())
    assert placement.tolist() == expected


def test_favourite_children_share_their_parents_largest_transfer() -> None:
    # 0 feeds 1 (heavy) and 2 (light); both feed 3, which 1 reaches with a heavy tensor.
    problem = make_problem(
        [(0, 1), (0, 2), (1, 3), (2, 3)],
        [1e-3] * 4,
        edge_bytes=[64 << 20, 1, 64 << 20, 1],
    )
    for most in (100, 0):  # By the linear program, and greedily.
        favourite = favourite_children(problem, make_units(problem, "colocation"), 0.5, most)
        assert favourite[0] == 1
        assert favourite[1] == 3
        assert favourite[3] == -1


def test_sources_follow_their_first_reader() -> None:
    # Variables (no compute) read by two independent chains: each is where its chain is.
    edges = [(0, 2), (2, 4), (1, 3), (3, 5), (4, 6), (5, 7)]
    seconds = [0.0, 0.0] + [5e-3] * 6
    problem = make_problem(edges, seconds, num_bytes=[256 << 20] * 8)
    placement = m_etf(problem, make_units(problem, "colocation"), 0.0)
    assert placement[0] == placement[2] == placement[4] == placement[6]
    assert placement[1] == placement[3] == placement[5] == placement[7]
    assert placement[0] != placement[1]


@pytest.mark.parametrize("seed", range(6))
def test_all_but_variables_is_freed_in_the_end(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(seed, num_ops=60, topology="k80:2")
    graph = problem.graph
    inputs = np.diff(graph.in_ptr)[graph.tensor_op]
    alias = np.where(
        (inputs > 0) & (rng.random(len(inputs)) < 0.4),
        rng.integers(0, np.maximum(inputs, 1)),
        -1,
    )
    graph = dataclasses.replace(graph, tensor_alias=alias.astype(graph.tensor_alias.dtype))
    problem = dataclasses.replace(problem, graph=graph)
    schedule = ListSchedule(problem, make_units(problem, "colocation"), [1, 2])
    highest = 0.0
    for op in graph.topological_order().tolist():
        if op in schedule.ops:
            devices = schedule.devices_for(op)
            device = devices[int(rng.integers(len(devices)))]
            needed = schedule.used[device] + schedule.bytes_needed(op, device)
            schedule.commit(op, device)
            # What was said to be needed covers what there is now.
            assert schedule.used[device] <= needed
            highest = max(highest, *schedule.used)
    schedule.placement()
    kept = [0.0] * 3
    for unit, device in enumerate(schedule.unit_device):
        if device >= 0:
            kept[device] += schedule.unit_bytes[unit]
    assert schedule.used == kept
    assert highest > max(kept)


def test_variables_that_nothing_reads_go_where_there_is_room() -> None:
    seconds = [1e-3, 1e-3, 1e-3]
    problem = make_problem([(0, 1)], seconds, persistent=[5 << 30, 0, 6 << 30])
    executed = np.array([True, True, False])
    problem = dataclasses.replace(
        problem, graph=dataclasses.replace(problem.graph, executed=executed)
    )
    units = make_units(problem, "colocation")
    placement = m_etf(problem, units, 0.0)
    assert placement[2] in problem.topology.accelerators
    assert placement[2] != placement[0]
    assert m_topo(problem, units, 0.0)[2] in problem.topology.accelerators
