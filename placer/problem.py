"""PlacementProblem: a costed graph, a topology, and which devices each op may use."""

from __future__ import annotations

import dataclasses

import numpy as np

from placer.costs.op_costs import OpCosts
from placer.devices import Topology
from placer.errors import InfeasibleError
from placer.graph.op_graph import OpGraph


@dataclasses.dataclass(frozen=True, eq=False)
class PlacementProblem:
    """What every placer is given.

    Invariants: ops of one colocation group have the same row of `allowed`; every row allows at
    least one device.

    Attributes:
      graph: N ops.
      topology: D devices.
      costs: of the graph's ops on the topology's models.
      allowed: bool[N, D].
    """

    graph: OpGraph
    topology: Topology
    costs: OpCosts
    allowed: np.ndarray

    def __post_init__(self) -> None:
        self.allowed.setflags(write=False)

    @property
    def device_seconds(self) -> np.ndarray:
        """float64[D, N]: compute time of each op on each device, launch overhead included."""
        model = self.topology.device_model
        launch = np.array([m.launch_seconds for m in self.costs.models])
        return (self.costs.seconds + launch[:, None] * self.graph.executed)[model]

    def single_device(self, device: int) -> np.ndarray:
        """int32[N]: every op on `device`, or on the first device it may use where it may not.

        First means: the first of the same host if any, else the one that `repair` falls back on.
        """
        hosts = np.array([d.host for d in self.topology.devices])
        beside = self.allowed & (hosts == hosts[device])
        wishes = np.where(beside.any(axis=1), beside.argmax(axis=1), -1)
        wishes[self.allowed[:, device]] = device
        return self.repair(wishes)

    def repair(self, placement: np.ndarray) -> np.ndarray:
        """The legal placement nearest to a proposal.

        Args:
          placement: int[N]; -1 means no wish.

        Returns:
          int32[N]: each colocation group on the device that most of its members' compute time
          wishes for and all may use; where none, on the first it may use (CPUs last, unless
          only they are allowed).
        """
        graph = self.graph
        num_groups = int(graph.colocation.max()) + 1
        weight = self.costs.seconds.max(axis=0) + 1e-9
        votes = np.zeros((num_groups, self.topology.num_devices))
        wished = placement >= 0
        np.add.at(votes, (graph.colocation[wished], placement[wished]), weight[wished])
        allowed = self.group_allowed
        fallback = np.array(
            [m.type != "CPU" for m in (d.model for d in self.topology.devices)], float
        )
        votes = votes + 1e-15 * (1 + fallback)[None, :]
        votes[~allowed] = -1.0
        return votes.argmax(axis=1).astype(np.int32)[graph.colocation]

    @property
    def group_allowed(self) -> np.ndarray:
        """bool[C, D]: the devices that each colocation group may use."""
        num_groups = int(self.graph.colocation.max()) + 1
        first = np.zeros(num_groups, np.int64)
        first[self.graph.colocation[::-1]] = np.arange(self.graph.num_ops)[::-1]
        return self.allowed[first]

    def check(self, placement: np.ndarray) -> None:
        """Raises InfeasibleError, naming an op, if a placement int32[N] breaks a constraint."""
        graph = self.graph
        rows = np.arange(graph.num_ops)
        bad = np.flatnonzero(~self.allowed[rows, placement])
        if bad.size:
            op = int(bad[0])
            raise InfeasibleError(
                f"op {graph.names[op]!r} ({graph.type_of(op)}) may not run on "
                f"{self.topology.device_names[placement[op]]}"
            )
        first = np.zeros(int(graph.colocation.max()) + 1, np.int32)
        first[graph.colocation[::-1]] = placement[::-1]
        torn = np.flatnonzero(first[graph.colocation] != placement)
        if torn.size:
            op = int(torn[0])
            raise InfeasibleError(
                f"op {graph.names[op]!r} is not on the device of its colocation group"
            )
