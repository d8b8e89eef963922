"""Colocation groups: ops that TensorFlow must run, or that Placer keeps, on one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from tensorflow.core.framework import graph_pb2

from placer.devices import parse_device_spec
from placer.errors import PlacerError
from placer.graph.op_graph import KERNEL_TYPES

_PREFIX = b"loc:@"


class DisjointSets:
    """Union-find with path halving; the smaller index is the representative."""

    def __init__(self, size: int) -> None:
        self._parent = list(range(size))

    def find(self, i: int) -> int:
        """Representative of i's set."""
        parent = self._parent
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    def union(self, i: int, j: int) -> int:
        """Joins two sets; returns the representative."""
        i, j = self.find(i), self.find(j)
        if j < i:
            i, j = j, i
        self._parent[j] = i
        return i

    def labels(self) -> np.ndarray:
        """int32[size]: sets numbered in order of their first member."""
        roots = np.array([self.find(i) for i in range(len(self._parent))])
        _, labels = np.unique(roots, return_inverse=True)
        return labels.astype(np.int32)


def colocation_groups(
    graph_def: graph_pb2.GraphDef,
    index: Mapping[str, int],
    reference_edges: np.ndarray,
    frames: Sequence[tuple[str, ...]] | None,
    has_kernel: np.ndarray,
    requested: Sequence[str],
) -> np.ndarray:
    """Partition of the ops by the rules of TensorFlow's ColocationGraph.

    (tensorflow/core/common_runtime/colocation_graph.cc.) Ops are together if a `_class` attribute
    names the other, or both name the same absent op; if one hands the other a resource or a
    reference. Ops of one outermost while frame are kept together too, which TensorFlow does not
    ask: a loop that spans devices synchronises them on every iteration. Those without a device
    join the first that has one, unless it is a CPU and they have kernels for GPUs.

    Args:
      graph_def: N nodes.
      index: node name -> number.
      reference_edges: int[2, R], producer and consumer of resources and references, and of
        control flow that TensorFlow keeps together.
      frames: per op the while frames around it, outermost first; None without loops.
      has_kernel: bool[2, N].
      requested: device strings that are to be kept, N.

    Returns:
      int32[N], groups numbered in order of their first member.
    """
    sets = DisjointSets(len(graph_def.node))
    absent: dict[bytes, int] = {}
    for i, node in enumerate(graph_def.node):
        if "_class" not in node.attr:
            continue
        for value in node.attr["_class"].list.s:
            if value.startswith(_PREFIX):
                j = index.get(value[len(_PREFIX) :].decode(errors="replace"))
                sets.union(i, absent.setdefault(value, i) if j is None else j)
    for src, dst in reference_edges.T.tolist():
        sets.union(src, dst)
    if frames is not None:
        _join_frames(sets, frames, has_kernel, requested)
    return sets.labels()


def _join_frames(
    sets: DisjointSets,
    frames: Sequence[tuple[str, ...]],
    has_kernel: np.ndarray,
    requested: Sequence[str],
) -> None:
    """Joins each outermost frame's ops, but for those that then could not be placed."""
    kernels: dict[int, np.ndarray] = {}
    wishes: dict[int, dict[str, str]] = {}
    for i, device in enumerate(requested):
        root = sets.find(i)
        kernels[root] = kernels.get(root, True) & has_kernel[:, i]
        if device and (fields := _fields(device)):
            wishes[root] = fields
    first: dict[tuple[str, tuple[tuple[str, str], ...], bool], int] = {}
    inside = [i for i, path in enumerate(frames) if path]
    # Those with a device go first, so that the others find them to join.
    for i in sorted(inside, key=lambda i: sets.find(i) not in wishes):
        root = sets.find(i)
        wish = wishes.get(root, {})
        # Ops that the user put on different devices stay apart, and neither ops that only a CPU can
        # run nor ops that the user put on a CPU pull the rest of the loop there.
        frame, on_gpu = frames[i][0], bool(kernels[root][1])
        other = sets.find(first.setdefault((frame, tuple(sorted(wish.items())), on_gpu), i))
        if not (on_gpu and wish.get("type") == "CPU"):
            first.setdefault((frame, (), on_gpu), i)
        both = kernels[root] & kernels[other]
        kind = wishes.get(other, {}).get("type")
        if both[KERNEL_TYPES.index(kind)] if kind in KERNEL_TYPES else both.any():
            joined = sets.union(root, other)
            kernels[joined] = both
            if other in wishes:
                wishes[joined] = wishes[other]


def _fields(device: str) -> dict[str, str]:
    """What a device string fixes; nothing if it is none, which placer.constraints reports."""
    try:
        return parse_device_spec(device)
    except PlacerError:
        return {}


def frame_paths(
    graph_def: graph_pb2.GraphDef, order: np.ndarray, src: np.ndarray, dst: np.ndarray
) -> list[tuple[str, ...]] | None:
    """The while frames around each op, outermost first; None if the graph has no v1 loop.

    Args:
      graph_def: N nodes.
      order: int32[N] topological order.
      src, dst: int[E] dependencies without back edges.
    """
    nodes = graph_def.node
    if not any(node.op in ("Enter", "RefEnter") for node in nodes):
        return None
    readers: dict[int, list[int]] = {}
    for s, d in zip(src.tolist(), dst.tolist(), strict=True):
        readers.setdefault(s, []).append(d)
    outside: list[tuple[str, ...]] = [()] * len(nodes)
    for i in order.tolist():
        node = nodes[i]
        path = outside[i]
        leaving = path
        if node.op in ("Enter", "RefEnter"):
            leaving = (*path, node.attr["frame_name"].s.decode(errors="replace"))
            outside[i] = leaving
        elif node.op in ("Exit", "RefExit"):
            leaving = path[:-1]
        for reader in readers.get(i, ()):
            if len(leaving) > len(outside[reader]):
                outside[reader] = leaving
    return outside
