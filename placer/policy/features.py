"""What the policy reads of each op group, as arrays."""

from __future__ import annotations

import dataclasses

import numpy as np

from placer.grouping.grouping import Grouping
from placer.problem import PlacementProblem

# Output shapes of a group that the paper's embedding keeps, and dimensions of each.
SHAPES_PER_GROUP = 6
DIMENSIONS_PER_SHAPE = 4
# Neighbours of a group, those with the heaviest traffic, that the decoder looks at.
MAX_NEIGHBOURS = 12


@dataclasses.dataclass(frozen=True, eq=False)
class GroupFeatures:
    """Arrays of G groups over D devices.

    Attributes:
      types: float32[G, op types] share of each op type among a group's ops.
      values: float32[G, F] whatever else the encoder reads.
      allowed: bool[G, D].
      symmetry: int32[D]; devices of equal number are identical and allowed to the same groups.
      seconds: float32[G, D] compute time over the whole graph's on its fastest device.
      memory: float32[G, D] persistent bytes over the memory of the device.
      neighbour: int32[G, K] groups with the heaviest traffic, 0 where there are fewer than K.
      traffic: float32[2, G, K] share of a group's traffic that comes from (row 0) or goes to
        (row 1) each of them.
      arrival: float32[G, K] time a tensor from each of them takes to cross, same unit as
        `seconds`; 0 for those that only read from the group.
    """

    types: np.ndarray
    values: np.ndarray
    allowed: np.ndarray
    symmetry: np.ndarray
    seconds: np.ndarray
    memory: np.ndarray
    neighbour: np.ndarray
    traffic: np.ndarray
    arrival: np.ndarray

    @property
    def movable(self) -> np.ndarray:
        """bool[G]: groups that may use more than one device."""
        return self.allowed.sum(axis=1) > 1


def group_features(problem: PlacementProblem, grouping: Grouping, kind: str) -> GroupFeatures:
    """Computes GroupFeatures; `kind` is PolicySettings.features."""
    topology = problem.topology
    device_seconds = grouping.seconds[topology.device_model].T
    fastest = np.where(grouping.allowed, device_seconds, np.inf).min(axis=1)
    total = max(float(fastest.sum()), 1e-12)
    memory = grouping.persistent_bytes[:, None] / np.maximum(topology.memory_bytes[None, :], 1)
    neighbour, traffic, arrival = _neighbours(problem, grouping)
    values = _shape_values(problem, grouping) if kind == "shapes" else _costs(grouping, fastest)
    return GroupFeatures(
        types=_type_shares(problem, grouping),
        values=np.ascontiguousarray(values, np.float32),
        allowed=np.array(grouping.allowed, bool),
        symmetry=_symmetry(problem, grouping),
        seconds=(np.minimum(device_seconds, 1e3 * total) / total).astype(np.float32),
        memory=memory.astype(np.float32),
        neighbour=neighbour,
        traffic=traffic,
        arrival=(arrival / total).astype(np.float32),
    )


def _symmetry(problem: PlacementProblem, grouping: Grouping) -> np.ndarray:
    """Classes of identical devices, split where some group may use one and not the other."""
    classes = problem.topology.symmetry_classes()
    columns = np.concatenate([classes[None, :], grouping.allowed.astype(np.int32)])
    _, first, inverse = np.unique(columns, axis=1, return_index=True, return_inverse=True)
    return first.astype(np.int32)[inverse.reshape(-1)]


def _type_shares(problem: PlacementProblem, grouping: Grouping) -> np.ndarray:
    graph = problem.graph
    shares = np.zeros((grouping.num_groups, len(graph.op_types)), np.float32)
    np.add.at(shares, (grouping.group_of, graph.op_type), 1.0)
    return shares / np.maximum(shares.sum(axis=1, keepdims=True), 1.0)


def _adjacency(grouping: Grouping) -> np.ndarray:
    """float64[G, G] bytes that row sends to column."""
    adjacency = np.zeros((grouping.num_groups, grouping.num_groups))
    np.add.at(adjacency, (grouping.edge_src, grouping.edge_dst), grouping.edge_bytes)
    return adjacency


def _shape_values(problem: PlacementProblem, grouping: Grouping) -> np.ndarray:
    """The paper's embedding (section 3.2.1): padded output shapes and one-hot adjacency.

    Dimensions enter as log(1 + size). A group keeps the shapes of its largest outputs.
    """
    graph = problem.graph
    g = grouping.num_groups
    group = grouping.group_of[graph.tensor_op]
    order = np.lexsort((np.arange(group.size), -graph.tensor_bytes, group))
    starts = np.searchsorted(group[order], np.arange(g))
    position = np.arange(group.size) - starts[group[order]]
    kept = order[position < SHAPES_PER_GROUP]
    shapes = np.zeros((g, SHAPES_PER_GROUP, DIMENSIONS_PER_SHAPE))
    sizes = np.maximum(graph.tensor_shape[kept, :DIMENSIONS_PER_SHAPE], 0)
    shapes[group[kept], position[position < SHAPES_PER_GROUP]] = np.log1p(sizes)
    links = _adjacency(grouping) > 0
    return np.concatenate([shapes.reshape(g, -1), links, links.T], axis=1)


def _costs(grouping: Grouping, fastest: np.ndarray) -> np.ndarray:
    adjacency = _adjacency(grouping)
    received, sent = adjacency.sum(axis=0), adjacency.sum(axis=1)

    def scaled(x: np.ndarray) -> np.ndarray:
        """Both the share of the largest and its logarithm, as two columns."""
        share = x / max(float(x.max()), 1e-12)
        return np.stack([share, 1.0 + np.log10(np.maximum(share, 1e-6)) / 6.0], axis=1)

    g = grouping.num_groups
    own = np.concatenate(
        [
            scaled(fastest),
            scaled(grouping.persistent_bytes.astype(float)),
            scaled(grouping.output_bytes.astype(float)),
            scaled(received),
            scaled(sent),
            scaled(grouping.size.astype(float)),
            scaled(grouping.upward_rank),
            (grouping.depth / max(float(np.max(grouping.depth)), 1e-12))[:, None],
            np.linspace(0.0, 1.0, g)[:, None],
            grouping.allowed.astype(float),
        ],
        axis=1,
    )
    into = adjacency.T / np.maximum(received[:, None], 1e-12)
    out = adjacency / np.maximum(sent[:, None], 1e-12)
    return np.concatenate([own, into @ own, out @ own, into @ (into @ own), out @ (out @ own)], 1)


def _neighbours(
    problem: PlacementProblem, grouping: Grouping
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    adjacency = _adjacency(grouping)
    np.fill_diagonal(adjacency, 0.0)
    both = adjacency + adjacency.T
    k = min(MAX_NEIGHBOURS, max(grouping.num_groups - 1, 1))
    order = np.argsort(-both, axis=1, kind="stable")[:, :k]
    rows = np.arange(grouping.num_groups)[:, None]
    heavy = both[rows, order]
    total = np.maximum(both.sum(axis=1, keepdims=True), 1e-12)
    traffic = np.stack([adjacency.T[rows, order], adjacency[rows, order]]) / total
    links = problem.topology.links()
    apart = ~np.eye(problem.topology.num_devices, dtype=bool)
    latency = float(np.median(links.latency[apart])) if apart.any() else 0.0
    per_byte = float(np.median(links.seconds_per_byte[apart])) if apart.any() else 0.0
    received = adjacency.T[rows, order]
    arrival = np.where(received > 0, latency + received * per_byte, 0.0)
    neighbour = np.where(heavy > 0, order, 0).astype(np.int32)
    return neighbour, traffic.astype(np.float32), arrival


def numbered_by_first_use(devices: np.ndarray, symmetry: np.ndarray) -> np.ndarray:
    """int32[B, G] placements with identical devices exchanged so that each class is used in order.

    Args:
      devices: int32[B, G].
      symmetry: int32[D], as GroupFeatures.symmetry.
    """
    result = np.array(devices, np.int32)
    for row in result:
        renamed = np.arange(len(symmetry), dtype=np.int32)
        for number in np.unique(symmetry):
            members = np.flatnonzero(symmetry == number)
            used = [d for d in dict.fromkeys(row.tolist()) if symmetry[d] == number]
            renamed[used + [d for d in members if d not in used]] = members
        row[:] = renamed[row]
    return result
