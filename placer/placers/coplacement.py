"""Units: sets of ops that a placer keeps together, and the graph between them."""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from placer.problem import PlacementProblem

RULES = ("single_consumer", "colocation")


@dataclasses.dataclass(frozen=True, eq=False)
class Units:
    """A partition of N ops into U units, numbered by first member.

    All ops of a colocation group are in one unit.

    Attributes:
      unit_of: int32[N].
      allowed: bool[U, D] devices that every member may use; at least one a row.
      persistent_bytes: int64[U] variables of the members.
    """

    unit_of: np.ndarray
    allowed: np.ndarray
    persistent_bytes: np.ndarray

    @property
    def num_units(self) -> int:
        """U."""
        return len(self.allowed)


def make_units(problem: PlacementProblem, rule: str) -> Units:
    """Units by one of RULES.

    Args:
      problem: N ops.
      rule: "colocation": only what must share a device. "single_consumer": besides, an op whose
        results go to exactly one other op joins that op, if both may use the same devices (the
        co-location heuristic of Mirhoseini et al. 2017, section 3.3, and co-placement of Baechi,
        section 3.1).
    """
    graph = problem.graph
    n = graph.num_ops
    first = np.full(int(graph.colocation.max()) + 1, n, np.int64)
    np.minimum.at(first, graph.colocation, np.arange(n))
    src, dst = np.arange(n), first[graph.colocation]
    if rule == "single_consumer":
        pairs = data_edges(problem)
        consumers = np.bincount(pairs[0], minlength=n)
        joins = (consumers[pairs[0]] == 1) & (
            problem.allowed[pairs[0]] == problem.allowed[pairs[1]]
        ).all(axis=1)
        src = np.concatenate([src, pairs[0][joins]])
        dst = np.concatenate([dst, pairs[1][joins]])
    links = sparse.coo_matrix((np.ones(len(src), np.int8), (src, dst)), shape=(n, n))
    count, label = csgraph.connected_components(links, directed=False)
    # connected_components numbers by first member already; make it sure.
    order = np.full(count, n, np.int64)
    np.minimum.at(order, label, np.arange(n))
    rank = np.empty(count, np.int32)
    rank[np.argsort(order, kind="stable")] = np.arange(count, dtype=np.int32)
    unit_of = rank[label]
    allowed = np.ones((count, problem.topology.num_devices), bool)
    np.logical_and.at(allowed, unit_of, problem.allowed)
    persistent = np.zeros(count, np.int64)
    np.add.at(persistent, unit_of, graph.persistent_bytes)
    return Units(unit_of, allowed, persistent)


def data_edges(problem: PlacementProblem) -> tuple[np.ndarray, np.ndarray]:
    """int64[M], int64[M]: distinct (producer, consumer) pairs of executed ops."""
    graph = problem.graph
    src, dst = graph.edge_src.astype(np.int64), graph.edge_dst.astype(np.int64)
    keep = graph.executed[src] & graph.executed[dst]
    key = np.unique(src[keep] * graph.num_ops + dst[keep])
    return key // graph.num_ops, key % graph.num_ops


@dataclasses.dataclass(frozen=True, eq=False)
class UnitGraph:
    """The undirected graph of U units that graph partitioners cut.

    Attributes:
      pointer: int64[U + 1]; unit u's neighbours are neighbour[pointer[u]:pointer[u + 1]].
      neighbour: int64[M], both directions of each edge.
      num_bytes: float64[M] bytes that cross if the two are apart, each tensor counted once for
        each unit that reads it.
      seconds: float64[D, U] compute time on each device, launch overhead included.
    """

    pointer: np.ndarray
    neighbour: np.ndarray
    num_bytes: np.ndarray
    seconds: np.ndarray


def unit_graph(problem: PlacementProblem, units: Units) -> UnitGraph:
    """The graph of the units; edges between executed ops only."""
    graph, u = problem.graph, units.num_units
    src_op, dst_op = graph.edge_src, graph.edge_dst
    keep = graph.executed[src_op] & graph.executed[dst_op]
    tensor = graph.in_tensor[keep].astype(np.int64)
    src, dst = units.unit_of[src_op[keep]], units.unit_of[dst_op[keep]]
    apart = src != dst
    key = np.unique(tensor[apart] * u + dst[apart])
    tensor, dst = key // u, key % u
    src = units.unit_of[graph.tensor_op[tensor]]
    weight = graph.tensor_bytes[tensor].astype(np.float64)
    matrix = sparse.coo_matrix((weight, (src, dst)), shape=(u, u)).tocsr()
    matrix = (matrix + matrix.T).tocsr()
    matrix.sort_indices()
    device_seconds = problem.device_seconds * graph.executed
    seconds = np.stack(
        [np.bincount(units.unit_of, weights=row, minlength=u) for row in device_seconds]
    )
    return UnitGraph(
        matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64), matrix.data, seconds
    )
