"""Grouping: which ops move together, and the graph of the groups as arrays."""

from __future__ import annotations

import dataclasses

import numpy as np

from placer.problem import PlacementProblem


@dataclasses.dataclass(frozen=True, eq=False)
class Grouping:
    """A partition of N ops into G op groups, numbered in topological order of first members.

    Ops of one colocation group are in one op group. A group need not be convex: two groups may
    feed each other. The simulator is not concerned, it runs ops; the policy reads groups in order
    of number and sees the edges of both directions.

    Attributes:
      group_of: int32[N].
      num_groups: G.
      allowed: bool[G, D]; devices that every member may use; at least one a row.
      seconds: float64[K, G] total compute time on each device model, launch overhead included.
      persistent_bytes: int64[G] variables.
      output_bytes: int64[G] total bytes of the members' outputs.
      edge_src, edge_dst: int32[M] distinct ordered pairs of groups that exchange tensors.
      edge_bytes: float64[M] bytes that cross if the two are apart, each tensor counted once.
      size: int32[G] number of executed ops.
      depth: float64[G] longest path, in ops, from a source to the first member, over the longest.
      upward_rank: float64[G] longest remaining compute time (fastest device) from any member.
    """

    group_of: np.ndarray
    num_groups: int
    allowed: np.ndarray
    seconds: np.ndarray
    persistent_bytes: np.ndarray
    output_bytes: np.ndarray
    edge_src: np.ndarray
    edge_dst: np.ndarray
    edge_bytes: np.ndarray
    size: np.ndarray
    depth: np.ndarray
    upward_rank: np.ndarray

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                value.setflags(write=False)

    def expand(self, group_devices: np.ndarray) -> np.ndarray:
        """int32[..., N] op placements of int[..., G] group placements."""
        return np.asarray(group_devices, np.int32)[..., self.group_of]

    def reduce(self, placement: np.ndarray, problem: PlacementProblem) -> np.ndarray:
        """int32[G]: for each group the allowed device that most of its compute time is on."""
        votes = np.zeros((self.num_groups, self.allowed.shape[1]))
        weight = problem.costs.seconds.max(axis=0) + 1e-9
        np.add.at(votes, (self.group_of, placement), weight)
        votes[~self.allowed] = -1.0
        return votes.argmax(axis=1).astype(np.int32)
