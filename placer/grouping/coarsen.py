"""Grouping ops: the paper's co-location heuristics, then coarsening to a given size."""

from __future__ import annotations

import numpy as np

from placer.errors import PlacerError
from placer.graph.colocation import DisjointSets
from placer.grouping.crossings import Crossings, sorted_distinct
from placer.grouping.grouping import Grouping
from placer.problem import PlacementProblem

# A group made by the paper's rule takes at most this share of the step's compute time, so that
# an inference graph's single chain of consumers does not end as one group.
_LARGEST_CHAIN = 1 / 32


def group_ops(problem: PlacementProblem, max_groups: int = 256) -> Grouping:
    """Groups the ops of a problem.

    Three steps, each linear in the graph: (1) colocation groups stay whole; (2) a group whose
    results are used by exactly one other joins it (Mirhoseini et al. 2017, section 3.3; ops that
    the step does not execute, initialisers among them, are no users); (3) the pairs that
    exchange most for their size are merged, in rounds of disjoint pairs, until at most
    `max_groups` are left. Groups that may use different devices are never merged. Deterministic.

    Args:
      problem: what is placed.
      max_groups: upper limit on the number of groups, at least 1. Groups with different allowed
        devices stay apart even if that makes more.

    Raises:
      PlacerError: for a limit below 1.
    """
    if max_groups < 1:
        raise PlacerError(f"max_groups is {max_groups}; give at least 1")
    graph = problem.graph
    labels = graph.colocation.copy()
    labels = _join_idle(problem, labels)
    labels = _join_single_consumers(problem, labels)
    labels = _coarsen(problem, labels, max_groups)
    return make_grouping(problem, labels)


def atoms(problem: PlacementProblem) -> Grouping:
    """The finest grouping: one group a colocation group."""
    return make_grouping(problem, problem.graph.colocation)


def make_grouping(problem: PlacementProblem, labels: np.ndarray) -> Grouping:
    """A Grouping of given labels, int[N], which must not tear colocation groups.

    Labels are renumbered by the topological position of the first executed member.
    """
    graph = problem.graph
    n = graph.num_ops
    order = graph.topological_order()
    position = np.empty(n, np.int64)
    position[order] = np.arange(n)
    position += n * ~graph.executed  # Groups that are not executed come last.
    count = int(labels.max()) + 1
    first = np.full(count, 2 * n, np.int64)
    np.minimum.at(first, labels, position)
    renumber = np.empty(count, np.int32)
    renumber[np.argsort(first, kind="stable")] = np.arange(count)
    group_of = renumber[labels].astype(np.int32)

    allowed = np.ones((count, problem.topology.num_devices), bool)
    np.logical_and.at(allowed, group_of, problem.allowed)
    launch = np.array([m.launch_seconds for m in problem.costs.models])
    op_seconds = (problem.costs.seconds + launch[:, None]) * graph.executed
    seconds = np.stack([np.bincount(group_of, row, count) for row in op_seconds])
    tensor_group = group_of[graph.tensor_op]
    live = graph.executed[graph.tensor_op]
    src, dst, edge_bytes = _group_edges(problem, group_of)
    depth, upward = _ranks(problem, order)
    group_depth = np.full(count, np.inf)
    np.minimum.at(group_depth, group_of, np.where(graph.executed, depth, np.inf))
    group_depth[~np.isfinite(group_depth)] = 0.0
    group_upward = np.zeros(count)
    np.maximum.at(group_upward, group_of, upward)
    return Grouping(
        group_of=group_of,
        num_groups=count,
        allowed=allowed,
        seconds=seconds,
        persistent_bytes=np.bincount(group_of, graph.persistent_bytes, count).astype(np.int64),
        output_bytes=np.bincount(tensor_group, graph.tensor_bytes * live, count).astype(np.int64),
        edge_src=src,
        edge_dst=dst,
        edge_bytes=edge_bytes,
        size=np.bincount(group_of, graph.executed, count).astype(np.int32),
        depth=group_depth / max(float(depth.max(initial=0.0)), 1.0),
        upward_rank=group_upward,
    )


def _group_edges(
    problem: PlacementProblem, group_of: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct (src, dst, bytes) between groups; each tensor counts once a destination."""
    src, dst, total = Crossings(problem, group_of).edges()
    return src.astype(np.int32), dst.astype(np.int32), total


def _ranks(problem: PlacementProblem, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Per op: longest path in ops from a source, and upward rank in seconds."""
    graph = problem.graph
    best = _op_seconds(problem)
    src = np.concatenate([graph.edge_src, graph.control_src])
    dst = np.concatenate([graph.edge_dst, graph.control_dst])
    keep = graph.executed[src] & graph.executed[dst]
    src, dst = src[keep], dst[keep]
    position = np.empty(graph.num_ops, np.int64)
    position[order] = np.arange(graph.num_ops)
    # Lists: a deep graph has too many levels, and arrays of one number are slow.
    forward = np.argsort(position[dst], kind="stable")
    level = [0] * graph.num_ops
    for s, d in zip(src[forward].tolist(), dst[forward].tolist(), strict=True):
        if level[s] >= level[d]:
            level[d] = level[s] + 1
    backward = np.argsort(-position[src], kind="stable")
    own = best.tolist()
    upward = best.tolist()
    for s, d in zip(src[backward].tolist(), dst[backward].tolist(), strict=True):
        through = upward[d] + own[s]
        if through > upward[s]:
            upward[s] = through
    return np.array(level, float), np.array(upward)


def _join_idle(problem: PlacementProblem, labels: np.ndarray) -> np.ndarray:
    """One group for all that the step does not execute, per set of allowed devices."""
    graph = problem.graph
    count = int(labels.max()) + 1
    busy = np.bincount(labels, graph.executed | (graph.persistent_bytes > 0), count) > 0
    joined = np.where(busy[labels], labels, count + _row_kinds(problem.allowed))
    used = np.zeros(int(joined.max()) + 1, bool)
    used[joined] = True
    return (np.cumsum(used, dtype=np.int32) - 1)[joined]


def _join_single_consumers(problem: PlacementProblem, labels: np.ndarray) -> np.ndarray:
    graph = problem.graph
    count = int(labels.max()) + 1
    seconds = np.bincount(labels, _op_seconds(problem), count)
    limit = seconds.sum() * _LARGEST_CHAIN
    kinds = _allowed_kinds(problem, labels)
    src_op = np.concatenate([graph.edge_src, graph.control_src])
    dst_op = np.concatenate([graph.edge_dst, graph.control_dst])
    keep = graph.executed[src_op] & graph.executed[dst_op]
    src, dst = labels[src_op[keep]].astype(np.int64), labels[dst_op[keep]]
    pairs = sorted_distinct((src * count + dst)[src != dst])
    src, dst = pairs // count, pairs % count
    consumers = np.bincount(src, minlength=count)
    single = consumers[src] == 1
    sets = DisjointSets(count)
    # From the last consumer back, so that a chain joins its end piece by piece.
    for s, d in sorted(zip(src[single].tolist(), dst[single].tolist(), strict=True), reverse=True):
        a, b = sets.find(s), sets.find(d)
        if a != b and kinds[a] == kinds[b] and seconds[a] + seconds[b] <= limit:
            root = sets.union(a, b)
            seconds[root] = seconds[a] + seconds[b]
    return sets.labels()[labels]


def _op_seconds(problem: PlacementProblem) -> np.ndarray:
    """float64[N] compute time of executed ops on the fastest device they may use."""
    executed, model = problem.graph.executed, problem.topology.device_model
    best = np.full(problem.graph.num_ops, np.inf)
    for k, kind in enumerate(problem.costs.models):  # A kind at a time: devices may be many.
        seconds = problem.costs.seconds[k] + kind.launch_seconds * executed
        may_use = problem.allowed[:, model == k].any(axis=1)
        np.minimum(best, seconds, out=best, where=may_use)
    return best * executed


def _allowed_kinds(problem: PlacementProblem, labels: np.ndarray) -> np.ndarray:
    """int[groups]: equal numbers for groups that may use the same devices."""
    count = int(labels.max()) + 1
    allowed = np.ones((count, problem.topology.num_devices), bool)
    np.logical_and.at(allowed, labels, problem.allowed)
    return _row_kinds(allowed)


def _row_kinds(rows: np.ndarray) -> np.ndarray:
    """int[R]: equal numbers for equal rows of bool[R, D], in the order of the rows.

    As np.unique with axis=0 numbers them, but 64 columns at a time.
    """
    packed = np.packbits(rows, axis=1)
    packed = np.pad(packed, ((0, 0), (0, -packed.shape[1] % 8)))
    kinds = np.zeros(len(rows), np.int64)
    for word in np.ascontiguousarray(packed).view(">u8").T:
        values, codes = np.unique(word.astype(np.uint64), return_inverse=True)
        kinds = np.unique(kinds * len(values) + codes, return_inverse=True)[1]
    return kinds


def _coarsen(problem: PlacementProblem, labels: np.ndarray, max_groups: int) -> np.ndarray:
    """Merges pairs of groups, in rounds, until at most max_groups are left.

    A round rates every pair that exchanges tensors or has a common neighbour by bytes exchanged
    over the product of sizes (the expansion-star rating of multilevel partitioners), lets every
    group choose its best partner, and merges those that chose each other, best first.
    """
    sizes = _op_seconds(problem)
    total = float(sizes.sum()) or 1.0
    kinds = _allowed_kinds(problem, labels)
    num_kinds = int(kinds.max()) + 1
    crossings = Crossings(problem, labels)
    while (count := len(kinds)) > max(max_groups, num_kinds):
        weight = np.bincount(labels, sizes, count) + total / (100.0 * count)
        limit = 1.5 * float(weight.sum()) / max_groups
        src, dst, edge_bytes = crossings.edges()
        a, b = np.minimum(src, dst), np.maximum(src, dst)
        keys, inverse = np.unique(a * count + b, return_inverse=True)
        exchanged = np.bincount(inverse, edge_bytes + 1.0, len(keys))
        a, b = keys // count, keys % count
        fits = (kinds[a] == kinds[b]) & (weight[a] + weight[b] <= limit)
        score = exchanged**2 / (weight[a] * weight[b])
        pairs = _choose_each_other(a[fits], b[fits], score[fits], count)
        if len(pairs) < 0.02 * count:
            pairs = np.concatenate([pairs, _neighbours_in_order(weight, kinds, pairs, limit)])
        if not len(pairs):
            pairs = _lightest(weight, kinds)
        pairs = pairs[: count - max_groups]
        target = np.arange(count)
        target[pairs[:, 1]] = pairs[:, 0]
        stays = target == np.arange(count)
        renumber = (np.cumsum(stays) - 1)[target].astype(np.int32)
        labels, kinds = renumber[labels], kinds[stays]
        crossings = crossings.merged(renumber)
    return labels


def _choose_each_other(a: np.ndarray, b: np.ndarray, score: np.ndarray, count: int) -> np.ndarray:
    """int[P, 2] disjoint pairs that rate each other best, best pairs first."""
    node, other = np.concatenate([a, b]), np.concatenate([b, a])
    both = np.concatenate([score, score])
    rating = np.zeros(count)
    np.maximum.at(rating, node, both)
    best = both == rating[node]
    choice = np.full(count, count)
    np.minimum.at(choice, node[best], other[best])
    chosen = np.flatnonzero(choice < count)
    mutual = chosen[(choice[choice[chosen]] == chosen) & (chosen < choice[chosen])]
    mutual = mutual[np.argsort(-rating[mutual], kind="stable")]
    return np.stack([mutual, choice[mutual]], axis=1)


def _neighbours_in_order(
    weight: np.ndarray, kinds: np.ndarray, taken: np.ndarray, limit: float
) -> np.ndarray:
    """Pairs of light groups adjacent in number, for graphs of few edges between groups."""
    free = np.ones(len(weight), bool)
    free[taken.ravel()] = False
    pairs = []
    for kind in np.unique(kinds):
        members = np.flatnonzero(free & (kinds == kind))
        a, b = members[:-1:2], members[1::2]
        size = min(len(a), len(b))
        a, b = a[:size], b[:size]
        fits = weight[a] + weight[b] <= limit
        pairs.append(np.stack([a[fits], b[fits]], axis=1))
    return np.concatenate(pairs)


def _lightest(weight: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    """The two lightest groups that may be merged, when nothing fits the limit."""
    best: tuple[float, int, int] | None = None
    for kind in np.unique(kinds):
        members = np.flatnonzero(kinds == kind)
        if len(members) > 1:
            a, b = members[np.argsort(weight[members], kind="stable")[:2]].tolist()
            candidate = (float(weight[a] + weight[b]), min(a, b), max(a, b))
            best = candidate if best is None else min(best, candidate)
    assert best is not None, "the caller checked that two groups are of one kind"
    return np.array([best[1:]])
