"""Favourite children of m-SCT: which successor each op would best share its device with."""

from __future__ import annotations

import logging

import numpy as np
from scipy import optimize, sparse

from placer.placers.coplacement import Units
from placer.placers.list_schedule import executed_edges, mean_link
from placer.problem import PlacementProblem

_LOG = logging.getLogger(__name__)


def favourite_children(
    problem: PlacementProblem, units: Units, threshold: float, lp_max_ops: int
) -> np.ndarray:
    """int32[N]: the favourite child of each op, -1 for none.

    Solves the relaxed linear program of Hanen and Munier (Baechi, section 3.4): with start times s,
    makespan w and, for each edge, x = 0 where j is i's favourite child,

        minimise w   subject to   s_i + p_i <= w,   s_i + p_i + c_ij x_ij <= s_j,
        sum over children of x_ij >= children - 1,   sum over parents of x_ij >= parents - 1,

    and 0 <= x <= 1. An edge with x below `threshold` (at most 1/2, so that each op has at most one
    such child and parent) is a favourite. Ops of one unit share their device anyway: their edges
    have no x, and chains inside a unit are fused beforehand. It does not know how many devices
    there are.

    Args:
      problem: N ops.
      units: what stays together.
      threshold: in [0, 1/2].
      lp_max_ops: with more nodes than this, edges are taken greedily by transfer time instead.
    """
    graph = problem.graph
    n = graph.num_ops
    devices = list(problem.topology.accelerators)
    latency, per_byte = mean_link(problem, devices)
    favourite = np.full(n, -1, np.int32)
    src, dst, tensor = executed_edges(graph)
    cost = latency + per_byte * np.where(tensor >= 0, graph.tensor_bytes[np.maximum(tensor, 0)], 0)
    seconds = problem.device_seconds[devices].min(axis=0)
    # One edge for a pair of ops: the tensors between them go one after the other.
    key, inverse = np.unique(src * n + dst, return_inverse=True)
    edge_seconds = np.bincount(inverse, weights=cost, minlength=len(key))
    src, dst = key // n, key % n
    crosses = units.unit_of[src] != units.unit_of[dst]
    if not crosses.any() or len(devices) < 2:
        return favourite

    chain = _chains(n, src, dst, ~crosses)
    nodes, chain = np.unique(chain, return_inverse=True)
    work = np.bincount(chain, weights=seconds * graph.executed, minlength=len(nodes))
    a, b = chain[src], chain[dst]
    outer = a != b
    if len(nodes) > lp_max_ops:
        _LOG.info("m_sct: %d nodes, taking favourite children by transfer time", len(nodes))
        value = np.where(crosses, -edge_seconds, np.inf)
        chosen = np.flatnonzero(crosses)
    else:
        value = np.full(len(src), np.inf)
        relaxed = _relaxation(work, a[outer], b[outer], edge_seconds[outer], crosses[outer])
        if relaxed is None:
            return favourite
        value[outer] = relaxed
        chosen = np.flatnonzero(crosses & (value < threshold))
    taken_child, taken_parent = set(), set()
    for e in chosen[np.lexsort((dst[chosen], src[chosen], value[chosen]))].tolist():
        i, j = int(src[e]), int(dst[e])
        if i not in taken_parent and j not in taken_child:
            favourite[i] = j
            taken_parent.add(i)
            taken_child.add(j)
    return favourite


def _chains(n: int, src: np.ndarray, dst: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """int64[n]: the head of the chain of each op.

    An op joins the op before it if they are in one unit, it is that op's only successor, and that
    op its only predecessor; so contracting chains makes no cycle.
    """
    successors = np.bincount(src, minlength=n)
    predecessors = np.bincount(dst, minlength=n)
    fused = inside & (successors[src] == 1) & (predecessors[dst] == 1)
    parent = np.arange(n)
    parent[dst[fused]] = src[fused]
    while True:
        further = parent[parent]
        if (further == parent).all():
            return parent
        parent = further


def _relaxation(
    work: np.ndarray, a: np.ndarray, b: np.ndarray, cost: np.ndarray, crosses: np.ndarray
) -> np.ndarray | None:
    """float64[M]: relaxed x of each edge a to b; inf for edges that cannot cross; None if unsolved.

    Times are scaled so that the total work is 1,000: the solver's tolerances are absolute.
    """
    nodes, edges = len(work), len(a)
    scale = 1000.0 / max(float(work.sum()), 1e-30)
    variable = np.flatnonzero(crosses)
    x_of = np.full(edges, -1, np.int64)
    x_of[variable] = np.arange(len(variable))
    num_x = len(variable)
    s0, w = num_x, num_x + nodes
    rows, columns, values, bounds = [], [], [], []

    def add(row: np.ndarray, column: np.ndarray, value: np.ndarray | float) -> None:
        rows.append(row)
        columns.append(column)
        values.append(np.broadcast_to(value, row.shape))

    e = np.arange(edges)
    add(e, s0 + a, 1.0)
    add(e, s0 + b, -1.0)
    add(variable, x_of[variable], cost[variable] * scale)
    bounds.append(-work[a] * scale)
    i = np.arange(nodes)
    add(edges + i, s0 + i, 1.0)
    add(edges + i, np.full(nodes, w), -1.0)
    bounds.append(-work * scale)
    base = edges + nodes
    for end in (a, b):
        _, inverse, counts = np.unique(end[variable], return_inverse=True, return_counts=True)
        # With one edge the constraint is x >= 0.
        several = counts > 1
        number = np.cumsum(several) - 1
        keep = several[inverse]
        add(base + number[inverse[keep]], x_of[variable[keep]], -1.0)
        bounds.append(1.0 - counts[several])
        base += int(several.sum())
    matrix = sparse.csr_matrix(
        (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))),
        shape=(base, w + 1),
    )
    objective = np.zeros(w + 1)
    objective[w] = 1.0
    limits = np.zeros((w + 1, 2))
    limits[:num_x, 1] = 1.0
    limits[num_x:, 1] = np.inf
    result = optimize.linprog(
        objective, A_ub=matrix, b_ub=np.concatenate(bounds), bounds=limits, method="highs-ipm"
    )
    if result.x is None:
        _LOG.warning("m_sct: the linear program was not solved (%s)", result.message)
        return None
    x = np.full(edges, np.inf)
    x[variable] = result.x[:num_x]
    return x
