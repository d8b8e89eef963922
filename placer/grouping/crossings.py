"""Crossings: what groups of ops exchange, kept while groups merge."""

from __future__ import annotations

import numpy as np

from placer.problem import PlacementProblem

# Keys hold three group numbers in 63 bits.
_MAX_GROUPS_IN_KEY = 1 << 21


def sorted_distinct(keys: np.ndarray) -> np.ndarray:
    """The distinct values of int[K], each 0 or more, ascending.

    As np.unique, which hashes long arrays of integers and is several times slower on them.
    """
    keys = np.sort(keys)
    return keys[np.diff(keys, prepend=-1) != 0]


class Crossings:
    """Tensors read by other groups than their own; a tensor crosses once to each such group.

    Merging groups costs time by what still crosses, not by the size of the graph: tensors from one
    group to the same one or two groups are added up to one item.
    """

    def __init__(self, problem: PlacementProblem, group_of: np.ndarray) -> None:
        """Of a partition int[N] with groups 0 to its maximum; ops not executed read nothing."""
        graph = problem.graph
        self._count = int(group_of.max()) + 1
        group_of = group_of.astype(np.int64)
        self._src = group_of[graph.tensor_op]  # Of each item, a tensor at first.
        self._bytes = graph.tensor_bytes.astype(float)
        read = graph.executed[graph.edge_dst]
        # A pair for each item and group that reads it, ascending.
        self._item = graph.in_tensor[read].astype(np.int64)
        self._dst = group_of[graph.edge_dst[read]]
        self._keep_distinct()

    def _keep_distinct(self) -> None:
        keep = self._src[self._item] != self._dst
        pairs = sorted_distinct(self._item[keep] * self._count + self._dst[keep])
        self._item, self._dst = np.divmod(pairs, self._count)

    def edges(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """int64[M] src, int64[M] dst, float64[M] bytes of the distinct ordered pairs of groups."""
        pairs = self._src[self._item] * self._count + self._dst
        keys, inverse = np.unique(pairs, return_inverse=True)
        total = np.bincount(inverse, self._bytes[self._item], len(keys))
        return keys // self._count, keys % self._count, total

    def merged(self, renumber: np.ndarray) -> Crossings:
        """After groups were joined: group g is now renumber[g]."""
        after = object.__new__(Crossings)
        after._count = int(renumber.max()) + 1
        after._src = renumber[self._src].astype(np.int64)
        after._bytes = self._bytes
        after._item = self._item
        after._dst = renumber[self._dst].astype(np.int64)
        after._keep_distinct()
        if len(after._item) > 4 * after._count and after._count <= _MAX_GROUPS_IN_KEY:
            after._add_up()
        return after

    def _add_up(self) -> None:
        """Makes one item of those that one group sends to the same one or two groups."""
        count = self._count
        starts = np.flatnonzero(np.diff(self._item, prepend=-1))
        ends = np.append(starts[1:], len(self._item))
        item = self._item[starts]
        first, last = self._dst[starts], self._dst[ends - 1]
        key = (self._src[item] * count + first) * count + last
        many = ends - starts > 2
        key[many] = -1 - item[many]  # Stays an item of its own.
        _, kept, joined = np.unique(key, return_index=True, return_inverse=True)
        total = np.bincount(joined, self._bytes[item], len(kept))
        number = np.full(len(self._src), -1)
        number[item[kept]] = np.arange(len(kept))
        stays = number[self._item] >= 0
        self._src, self._bytes = self._src[item[kept]], total
        self._item, self._dst = number[self._item[stays]], self._dst[stays]
        # Pairs need not be ascending by item any more; the next merging sorts them.
