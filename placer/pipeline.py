"""From what the user gives to a PlacementProblem: the stages before the search."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from placer.constraints import allowed_devices
from placer.costs import OpCosts, analytical_costs
from placer.devices import Topology, parse
from placer.errors import PlacerError
from placer.graph import GraphSource, OpGraph, build_op_graph, clear_function_devices, read
from placer.problem import PlacementProblem


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
    """A graph, read and costed on a topology.

    Attributes:
      source: the graph as given, with its fetches.
      problem: its arrays, costs and allowed devices.
      devices: the spec the topology came from, for the runtime.
      came: int32[N] the placement that the graph came with (see `as_it_came`), or None if its
        devices were cleared and the topology lacks some of them.
      clear_devices: its devices were cleared.
    """

    source: GraphSource
    problem: PlacementProblem
    devices: str | Topology
    came: np.ndarray | None
    clear_devices: bool = False

    @property
    def to_run(self) -> GraphSource:
        """The graph to run: bodies of functions without devices, if devices were cleared."""
        if not self.clear_devices:
            return self.source
        graph_def = type(self.source.graph_def)()
        graph_def.CopyFrom(self.source.graph_def)
        clear_function_devices(graph_def)
        return dataclasses.replace(self.source, graph_def=graph_def, data=None)


def prepare(
    graph: Any,
    fetches: Sequence[str] | None,
    devices: str | Topology,
    *,
    clear_devices: bool = False,
    profile: str | None = None,
    trip_counts: Mapping[str, float] | None = None,
) -> Prepared:
    """Reads a graph and works out its costs and constraints on a topology.

    Args:
      graph: see placer.graph.read.
      fetches: op or tensor names of one step; None for the graph's own.
      devices: see placer.devices.parse.
      clear_devices: forget the devices that the graph came with.
      profile: file of measured op costs (placer profile), used where it has them.
      trip_counts: while loop name -> iterations, where they cannot be read off the graph.

    Raises:
      PlacerError: for anything that cannot be read or placed.
    """
    topology = parse(devices)
    source = read(graph, fetches)
    op_graph = build_op_graph(source, clear_devices)
    allowed = allowed_devices(op_graph, topology, clear_devices, source.origin)
    costs = analytical_costs(source, op_graph, topology, trip_counts=dict(trip_counts or {}))
    if profile is not None:
        costs = _with_profile(profile, source, op_graph, topology, costs)
    problem = PlacementProblem(op_graph, topology, costs, allowed)
    came = as_it_came(problem, clear_devices)
    return Prepared(source, problem, devices, came, clear_devices)


def _with_profile(
    path: str, source: GraphSource, graph: OpGraph, topology: Topology, costs: OpCosts
) -> OpCosts:
    from placer.costs import load_profile, profiled_costs

    return profiled_costs(load_profile(path), source, graph, topology, costs)


def as_it_came(problem: PlacementProblem, clear_devices: bool = False) -> np.ndarray | None:
    """The placement that TensorFlow would give the graph as it is.

    Ops with a device go to the first device it matches; the others to the first GPU, or the first
    CPU where there is none or no kernel, as TensorFlow's placer prefers.

    Returns:
      int32[N], or None if clear_devices is set and the topology lacks a device of the graph.
    """
    graph, topology = problem.graph, problem.topology
    default = topology.accelerators[0]
    wishes = np.full(graph.num_ops, default, np.int32)
    for op, device in enumerate(graph.requested_device):
        if device:
            try:
                matching = topology.matching(device)
            except PlacerError:
                # No device has a name like that.
                return None
            if not matching.any():
                return None
            wishes[op] = int(matching.argmax())
    if clear_devices:
        free = dataclasses.replace(
            problem, allowed=allowed_devices(graph, topology, clear_devices=True)
        )
        return free.repair(wishes)
    return problem.repair(wishes)
