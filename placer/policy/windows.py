"""Windows: sets of groups that the decoder places anew within a placement."""

from __future__ import annotations

import numpy as np

from placer.grouping.grouping import Grouping

# Traffic that a tensor between two groups counts for beside its bytes: about what a link moves
# in its latency.
_BYTES_PER_EDGE = 2e5


class Windows:
    """Draws windows of one grouping.

    Args:
      grouping: G groups.
      movable: bool[G]; only these are drawn.
    """

    def __init__(self, grouping: Grouping, movable: np.ndarray) -> None:
        self._movable = np.flatnonzero(movable)
        traffic = np.zeros((grouping.num_groups, grouping.num_groups))
        np.add.at(
            traffic,
            (grouping.edge_src, grouping.edge_dst),
            np.asarray(grouping.edge_bytes) + _BYTES_PER_EDGE,
        )
        np.fill_diagonal(traffic, 0.0)
        traffic = (traffic + traffic.T)[np.ix_(self._movable, self._movable)]
        # Row: share of a group's traffic that it has with each other.
        self._share = traffic / np.maximum(traffic.sum(axis=1, keepdims=True), 1e-12)

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """int32[W] ascending, at most `size` groups around a random one.

        Half of the windows are runs of successive groups; the others grow along the edges, always
        by the group that has the largest share of its traffic with the window, give or take.
        """
        count = len(self._movable)
        size = min(size, count)
        centre = int(rng.integers(count))
        if rng.random() < 0.5:
            start = min(max(centre - int(rng.integers(size)), 0), count - size)
            return self._movable[start : start + size].astype(np.int32)
        noise = rng.exponential(size=count)
        inside = np.zeros(count, bool)
        pull = np.full(count, 1e-9)
        newest = centre
        for _ in range(size):
            inside[newest] = True
            pull += self._share[:, newest]
            newest = int(np.where(inside, -1.0, pull * noise).argmax())
        return self._movable[inside].astype(np.int32)
