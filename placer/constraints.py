"""Which devices each op of a graph may use on a topology."""

from __future__ import annotations

import numpy as np

from placer.devices import Topology
from placer.errors import InfeasibleError, PlacerError
from placer.graph import KERNEL_TYPES, OpGraph


def allowed_devices(
    graph: OpGraph, topology: Topology, clear_devices: bool = False, where: str = "graph"
) -> np.ndarray:
    """Devices that every op may use: kernels, colocation, and devices the graph came with.

    Args:
      graph: N ops.
      topology: D devices.
      clear_devices: forget the devices that the graph came with.
      where: what to call the graph in errors.

    Returns:
      bool[N, D]: equal rows within a colocation group.

    Raises:
      PlacerError: if the graph names a device that the topology lacks.
      InfeasibleError: if a colocation group has no device left; names an op on each side.
    """
    types = np.array([d.model.type for d in topology.devices])
    allowed = np.zeros((graph.num_ops, topology.num_devices), bool)
    for row, kind in enumerate(KERNEL_TYPES):
        allowed[:, types == kind] = graph.has_kernel[row][:, None]
    unsupported = np.flatnonzero(~allowed.any(axis=1))
    if unsupported.size:
        op = int(unsupported[0])
        raise InfeasibleError(
            f"{where}: no device of {topology.name} has a kernel for op {graph.names[op]!r} "
            f"({graph.type_of(op)})"
        )
    # What is fed arrives on the client's device, unless the graph puts the placeholder elsewhere.
    at_client = np.zeros(topology.num_devices, bool)
    at_client[topology.client] = True
    allowed[graph.client_ops] &= at_client
    if not clear_devices:
        _apply_requests(graph, topology, allowed, where)
    by_group = np.ones((int(graph.colocation.max()) + 1, topology.num_devices), bool)
    np.logical_and.at(by_group, graph.colocation, allowed)
    empty = np.flatnonzero(~by_group.any(axis=1))
    if empty.size:
        _report_conflict(graph, topology, allowed, int(empty[0]), where)
    return by_group[graph.colocation]


def _apply_requests(graph: OpGraph, topology: Topology, allowed: np.ndarray, where: str) -> None:
    masks: dict[str, np.ndarray] = {}
    for op, device in enumerate(graph.requested_device):
        if not device:
            continue
        if device not in masks:
            try:
                masks[device] = topology.matching(device)
            except PlacerError as error:
                raise PlacerError(f"{where}: node {graph.names[op]!r}: {error}") from None
            if not masks[device].any():
                raise PlacerError(
                    f"{where}: node {graph.names[op]!r} is placed on {device!r}, which "
                    f"{topology.name} does not have; --clear_devices starts afresh"
                )
        if graph.client_ops[op]:
            allowed[op] = masks[device]
        elif (allowed[op] & masks[device]).any():
            allowed[op] &= masks[device]
        else:
            raise PlacerError(
                f"{where}: node {graph.names[op]!r} is placed on {device!r}, where TensorFlow has "
                f"no kernel for {graph.type_of(op)}; --clear_devices starts afresh"
            )


def _report_conflict(
    graph: OpGraph, topology: Topology, allowed: np.ndarray, group: int, where: str
) -> None:
    members = np.flatnonzero(graph.colocation == group)
    common = np.ones(topology.num_devices, bool)
    first = int(members[0])
    for op in members.tolist():
        if not (common & allowed[op]).any():
            raise InfeasibleError(
                f"{where}: ops {graph.names[first]!r} and {graph.names[op]!r} "
                f"({graph.type_of(op)}) must share a device, and no device of {topology.name} "
                "suits both; check their devices and _class attributes (--clear_devices)"
            )
        if not allowed[op].all():
            first = op
        common &= allowed[op]
