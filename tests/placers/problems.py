"""Small placement problems, made by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placer.costs import OpCosts
from placer.devices import Topology, parse
from placer.graph.op_graph import MAX_RANK, OpGraph
from placer.grouping import atoms, group_ops
from placer.problem import PlacementProblem
from placer.search.state import Budget, Search
from placer.simulator.build import build_simulator


def make_problem(
    edges: Sequence[tuple[int, int]],
    seconds: Sequence[float],
    *,
    num_bytes: Sequence[int] | None = None,
    topology: Topology | str = "k80:2",
    persistent: Sequence[int] | None = None,
    together: Sequence[tuple[int, int]] = (),
    allowed: np.ndarray | None = None,
    names: Sequence[str] | None = None,
    types: Sequence[str] | None = None,
    control: Sequence[tuple[int, int]] = (),
    cpu_slowdown: float = 20.0,
    model_seconds: np.ndarray | None = None,
    edge_bytes: Sequence[int] | None = None,
) -> PlacementProblem:
    """Ops with one output each; op i takes seconds[i] on a GPU, cpu_slowdown times that on a CPU.

    `model_seconds`, [K, N], replaces these times; with `edge_bytes` every edge has an output of
    its own, of so many bytes. Pairs of `together` share a device.
    """
    n = len(seconds)
    topology = parse(topology)
    by_dst = sorted(edges, key=lambda e: (e[1], e[0]))
    in_ptr = np.searchsorted([d for _, d in by_dst], np.arange(n + 1))
    label = list(range(n))
    for a, b in together:
        low, high = sorted((label[a], label[b]))
        label = [low if x == high else x for x in label]
    _, colocation = np.unique(label, return_inverse=True)
    types = list(types or ["Op"] * n)
    op_types = tuple(sorted(set(types)))
    size = np.array(num_bytes if num_bytes is not None else [1 << 20] * n, np.int64)
    out_ptr = np.arange(n + 1, dtype=np.int64)
    in_tensor = [s for s, _ in by_dst]
    if edge_bytes is not None:
        order = sorted(range(len(edges)), key=lambda e: edges[e])
        out_ptr = np.searchsorted([edges[e][0] for e in order], np.arange(n + 1)).astype(np.int64)
        tensor_of = {edges[e]: t for t, e in enumerate(order)}
        in_tensor = [tensor_of[e] for e in by_dst]
        size = np.array([edge_bytes[e] for e in order], np.int64)
    t = len(size)
    if allowed is None:
        allowed = np.ones((n, topology.num_devices), bool)
    read = {s for s, _ in edges}
    graph = OpGraph(
        names=tuple(names or [f"op_{i}" for i in range(n)]),
        op_types=op_types,
        op_type=np.array([op_types.index(t) for t in types], np.int32),
        out_ptr=out_ptr,
        tensor_dtype=np.ones(t, np.int32),
        tensor_shape=np.full((t, MAX_RANK), -1, np.int64),
        tensor_rank=np.full(t, -1, np.int32),
        tensor_bytes=size,
        tensor_known=np.ones(t, bool),
        tensor_local_bytes=size,
        tensor_alias=np.full(t, -1, np.int32),
        in_ptr=in_ptr.astype(np.int64),
        in_tensor=np.array(in_tensor, np.int32),
        control_src=np.array([s for s, _ in control], np.int32),
        control_dst=np.array([d for _, d in control], np.int32),
        executed=np.ones(n, bool),
        persistent_bytes=np.array(persistent if persistent is not None else [0] * n, np.int64),
        colocation=colocation.astype(np.int32).reshape(-1),
        has_kernel=np.ones((2, n), bool),
        client_ops=np.zeros(n, bool),
        requested_device=("",) * n,
        fetches=np.array([i for i in range(n) if i not in read], np.int32),
        fingerprint="made by hand",
    )
    scale = np.array([cpu_slowdown if m.type == "CPU" else 1.0 for m in topology.models])
    k = len(topology.models)
    costs = OpCosts(
        models=topology.models,
        seconds=scale[:, None] * np.asarray(seconds, float)[None]
        if model_seconds is None
        else np.asarray(model_seconds, float),
        temporary_bytes=np.zeros((k, n), np.int64),
        origin=np.zeros(n, np.uint8),
    )
    return PlacementProblem(graph, topology, costs, allowed)


def random_problem(
    seed: int, num_ops: int = 30, topology: Topology | str = "k80:2", memory_gib: float = 0.0
) -> PlacementProblem:
    """A random acyclic graph with variables, colocated pairs and ops for the CPU alone.

    With `memory_gib` the variables take about as much in all.
    """
    rng = np.random.default_rng(seed)
    topology = parse(topology)
    edges = set()
    for dst in range(1, num_ops):
        for _ in range(rng.integers(0, 4)):
            edges.add((int(rng.integers(max(0, dst - 8), dst)), dst))
    persistent = np.where(rng.random(num_ops) < 0.4, rng.random(num_ops), 0.0)
    persistent *= memory_gib * 2**30 / max(persistent.sum(), 1e-9)
    together = []
    free = list(rng.permutation(num_ops))
    for _ in range(num_ops // 6):
        together.append((int(free.pop()), int(free.pop())))
    allowed = np.ones((num_ops, topology.num_devices), bool)
    types = np.array([d.model.type for d in topology.devices])
    if (types == "CPU").any():
        for op in free[:2]:
            allowed[op, types != "CPU"] = False
    return make_problem(
        sorted(edges),
        rng.exponential(2e-3, num_ops).tolist(),
        num_bytes=rng.integers(1 << 10, 16 << 20, num_ops).tolist(),
        topology=topology,
        persistent=persistent.astype(np.int64).tolist(),
        together=together,
        allowed=allowed,
    )


def make_search(
    problem: PlacementProblem,
    evaluations: float = float("inf"),
    seed: int = 0,
    max_groups: int | None = None,
) -> Search:
    """A search whose groups are the colocation groups, or at most `max_groups`."""
    grouping = atoms(problem) if max_groups is None else group_ops(problem, max_groups)
    return Search(
        problem, grouping, build_simulator(problem), Budget(evaluations=evaluations), seed
    )
