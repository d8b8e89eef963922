"""OpGraph: a TensorFlow graph as immutable arrays."""

from __future__ import annotations

import dataclasses

import numpy as np

# Device types whose kernels are looked up; the rows of OpGraph.has_kernel.
KERNEL_TYPES = ("CPU", "GPU")
# Shapes are kept to this many dimensions; longer ones keep their first.
MAX_RANK = 8


@dataclasses.dataclass(frozen=True, eq=False)
class OpGraph:
    """Ops, tensors and edges of a graph; op i is `graph_def.node[i]`.

    N ops, T tensors (op outputs), E data edges, C control edges. Arrays are read-only. Back edges
    of while frames (NextIteration to Merge) are left out, so data and control edges are acyclic.

    Attributes:
      names: N op names.
      op_types: the distinct op types, sorted.
      op_type: int32[N] index into op_types.
      out_ptr: int64[N + 1]; op i outputs tensors out_ptr[i] to out_ptr[i + 1].
      tensor_dtype: int32[T] DataType enum, reference types reduced to their base type.
      tensor_shape: int64[T, MAX_RANK], -1 for unknown dimensions, 0 past the rank.
      tensor_rank: int32[T], -1 where unknown.
      tensor_bytes: int64[T]; unknown dimensions count as 1.
      tensor_known: bool[T]; the shape is known in full.
      tensor_local_bytes: int64[T] bytes allocated on the producing device: 0 where the output
        shares the buffer of a variable.
      tensor_alias: int32[T] position among the op's data inputs whose buffer the output shares
        (Identity, Reshape...), or -1.
      in_ptr: int64[N + 1]; op i reads in_tensor[in_ptr[i]:in_ptr[i + 1]], in input order.
      in_tensor: int32[E].
      control_src, control_dst: int32[C].
      executed: bool[N]; the step needs the op.
      persistent_bytes: int64[N]; what the op keeps for ever (a variable).
      colocation: int32[N] colocation group, numbered by first member. All its ops must share a
        device: `_class` attributes, resource and reference edges, while frames.
      has_kernel: bool[2, N]; TensorFlow has a kernel for the op on KERNEL_TYPES[row].
      client_ops: bool[N]; the op's value enters through the client device (Placeholder, _Arg).
      requested_device: N device strings, as the graph came ("" mostly).
      fetches: int32[F] ops with which the step ends (GraphSource.step_ops).
      fingerprint: hash of the structure.
    """

    names: tuple[str, ...]
    op_types: tuple[str, ...]
    op_type: np.ndarray
    out_ptr: np.ndarray
    tensor_dtype: np.ndarray
    tensor_shape: np.ndarray
    tensor_rank: np.ndarray
    tensor_bytes: np.ndarray
    tensor_known: np.ndarray
    tensor_local_bytes: np.ndarray
    tensor_alias: np.ndarray
    in_ptr: np.ndarray
    in_tensor: np.ndarray
    control_src: np.ndarray
    control_dst: np.ndarray
    executed: np.ndarray
    persistent_bytes: np.ndarray
    colocation: np.ndarray
    has_kernel: np.ndarray
    client_ops: np.ndarray
    requested_device: tuple[str, ...]
    fetches: np.ndarray
    fingerprint: str

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                value.setflags(write=False)

    @property
    def num_ops(self) -> int:
        """N."""
        return len(self.names)

    @property
    def tensor_op(self) -> np.ndarray:
        """int32[T]: the op that outputs each tensor."""
        return np.repeat(np.arange(self.num_ops, dtype=np.int32), np.diff(self.out_ptr))

    @property
    def edge_dst(self) -> np.ndarray:
        """int32[E]: the op that reads each data edge."""
        return np.repeat(np.arange(self.num_ops, dtype=np.int32), np.diff(self.in_ptr))

    @property
    def edge_src(self) -> np.ndarray:
        """int32[E]: the op that produces each data edge."""
        return self.tensor_op[self.in_tensor]

    def type_of(self, op: int) -> str:
        """Op type of op number `op`."""
        return self.op_types[self.op_type[op]]

    def topological_order(self) -> np.ndarray:
        """int32[N]: all ops, each after those it depends on; ties by op number."""
        return topological_order(
            self.num_ops,
            np.concatenate([self.edge_src, self.control_src]),
            np.concatenate([self.edge_dst, self.control_dst]),
        )


def topological_order(num_nodes: int, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
    """Kahn's order of a directed graph, level by level, in array operations.

    Args:
      num_nodes: number of nodes.
      src, dst: int[E] edges.

    Returns:
      int32[M]: nodes level by level (each level ascending). M < num_nodes exactly if there is a
      cycle; then the nodes on or behind cycles are missing.
    """
    order = np.argsort(src, kind="stable")
    targets = np.asarray(dst)[order]
    pointer = np.zeros(num_nodes + 1, np.int64)
    np.cumsum(np.bincount(src, minlength=num_nodes), out=pointer[1:])
    missing = np.bincount(dst, minlength=num_nodes)
    level = np.flatnonzero(missing == 0)
    levels = []
    while level.size:
        levels.append(level)
        starts, counts = pointer[level], pointer[level + 1] - pointer[level]
        total = int(counts.sum())
        offsets = np.repeat(starts - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts)
        reached = targets[offsets + np.arange(total)]
        nodes, hits = np.unique(reached, return_counts=True)
        missing[nodes] -= hits
        level = nodes[missing[nodes] == 0]
    return np.concatenate(levels).astype(np.int32) if levels else np.zeros(0, np.int32)
