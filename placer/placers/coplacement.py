"""Units: sets of ops that a placer keeps together, and the graph between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from placer.graph.colocation import DisjointSets
from placer.grouping import Grouping
from placer.problem import PlacementProblem

if TYPE_CHECKING:
    from placer.search.state import Search

RULES = ("colocation", "single_consumer", "groups")
# What a parameter that names a rule takes: a rule, or every rule in turn.
RULE_CHOICES = (*RULES, "best")
RULES_HELP = (
    "which ops stay together: colocation (only what TensorFlow requires), single_consumer (an op "
    "joins the only op that reads it), groups (the search's op groups), or best (try all three)"
)
# Joining single consumers stops at this part of the step's compute time: in a training graph of a
# recurrent net the rule would join all gradients of all weights to one unit.
_LARGEST_PART = 1 / 32


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


def each_units(search: Search, rule: str) -> Iterator[Units]:
    """Units by `rule`, one of RULE_CHOICES; several for "best", until the search is stopped."""
    for name in RULES if rule == "best" else (rule,):
        if name == rule or not search.stopped():
            yield make_units(search.problem, name, search.grouping)


def make_units(problem: PlacementProblem, rule: str, grouping: Grouping | None = None) -> Units:
    """Units by one of RULES.

    Args:
      problem: N ops.
      rule: "colocation": only what must share a device. "single_consumer": besides, an op whose
        results go to exactly one other op joins that op, if both may use the same devices (the
        co-location heuristic of Mirhoseini et al. 2017, section 3.3, and co-placement of Baechi,
        section 3.1) and their unit does not grow past 1/32 of the step's compute time. "groups":
        the groups of `grouping`.
      grouping: what "groups" means.
    """
    graph = problem.graph
    label = graph.colocation
    if rule == "groups":
        assert grouping is not None
        label = grouping.group_of
    elif rule == "single_consumer":
        label = _join_single_consumers(problem)
    _, first, label = np.unique(label, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int32)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first), dtype=np.int32)
    unit_of = rank[label.reshape(-1)]
    allowed = np.ones((len(first), problem.topology.num_devices), bool)
    np.logical_and.at(allowed, unit_of, problem.allowed)
    persistent = np.zeros(len(first), np.int64)
    np.add.at(persistent, unit_of, graph.persistent_bytes)
    return Units(unit_of, allowed, persistent)


def _join_single_consumers(problem: PlacementProblem) -> np.ndarray:
    """int[N] labels."""
    graph = problem.graph
    count = int(graph.colocation.max()) + 1
    work = problem.device_seconds.min(axis=0) * graph.executed
    seconds = np.bincount(graph.colocation, weights=work, minlength=count).tolist()
    most = sum(seconds) * _LARGEST_PART
    src, dst = data_edges(problem)
    single = np.bincount(src, minlength=graph.num_ops)[src] == 1
    single &= (problem.allowed[src] == problem.allowed[dst]).all(axis=1)
    position = np.empty(graph.num_ops, np.int64)
    position[graph.topological_order()] = np.arange(graph.num_ops)
    sets = DisjointSets(count)
    # Last consumers first: a chain joins its end piece by piece.
    pairs = np.flatnonzero(single)
    pairs = pairs[np.argsort(-position[src[pairs]], kind="stable")]
    a, b = graph.colocation[src[pairs]].tolist(), graph.colocation[dst[pairs]].tolist()
    for i, j in zip(a, b, strict=True):
        i, j = sets.find(i), sets.find(j)
        if i != j and seconds[i] + seconds[j] <= most:
            root = sets.union(i, j)
            seconds[root] = seconds[i] + seconds[j]
    return sets.labels()[graph.colocation]


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
