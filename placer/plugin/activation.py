"""Telling the plugin which placements to apply."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from placer.errors import PlacerError
from placer.placement import Placement
from placer.plugin import library
from placer.protos import placement_pb2

PlacementLike = Placement | Mapping[str, str] | str | os.PathLike[str]
Mode = Literal["stored", "heuristic"]

_ERROR_BYTES = 1024


@dataclasses.dataclass(frozen=True)
class Activation:
    """What one call of `activate` made active; `deactivate` takes it back.

    Attributes:
      ids: the plugin's numbers of the placements, as in `report()`.
      heuristic: its number of the heuristic, None if that was not switched on.
    """

    ids: tuple[int, ...]
    heuristic: int | None = None


def activate(
    placement: PlacementLike | None = None,
    *,
    graph: Any = None,
    mode: Mode = "stored",
    time_limit: float = 0.2,
) -> Activation:
    """Has the plugin place the graphs that TensorFlow optimizes from now on; loads it if need be.

    Variables and other resources stay where they were created, see `variable_scope`, and ops that
    take them stay with them. Graphs that TensorFlow has optimized before keep their devices: a
    session optimizes a graph at the first run of given feeds and fetches, a tf.function at the
    first call of a signature.

    Args:
      placement: a Placement, a mapping from op name to device name, a placement file, or a folder
        of them. A device name may be partial ("/GPU:1"); what it leaves open is taken from where
        the op is.
      graph: the graph that `placement` is for (anything placer.graph.read takes). With it a
        runtime graph is recognised by its edges too; without, by names and op types.
      mode: "stored" applies `placement`; "heuristic" also places graphs that no placement
        matches, by a quick estimate on the devices of their session.
      time_limit: seconds that the heuristic may take for one graph; while several activations
        have it on, the latest one's.

    Raises:
      PlacerError: a damaged file, a folder without placements, a bad device name or argument; then
        nothing was activated.
    """
    if mode not in ("stored", "heuristic"):
        raise PlacerError(f'mode={mode!r}: choose "stored" or "heuristic"')
    if mode == "stored" and placement is None:
        raise PlacerError('activate needs a placement, or mode="heuristic"')
    if not 0 < time_limit < 3600:
        raise PlacerError(f"time_limit={time_limit!r}: give seconds, more than 0")
    protos = [] if placement is None else _protos(placement)
    if graph is not None:
        if len(protos) != 1:
            raise PlacerError("graph= goes with one placement")
        describe_graph(protos[0][1], graph)
    plugin = library.get()
    ids: list[int] = []
    try:
        for where, proto in protos:
            data = proto.SerializeToString()
            error = ctypes.create_string_buffer(_ERROR_BYTES)
            number = plugin.placer_plugin_activate(data, len(data), error, _ERROR_BYTES)
            if number == 0:
                raise PlacerError(f"{where}: {error.value.decode(errors='replace')}")
            ids.append(number)
    except PlacerError:
        for number in ids:
            plugin.placer_plugin_deactivate(number)
        raise
    heuristic = None
    if mode == "heuristic":
        heuristic = plugin.placer_plugin_activate_heuristic(time_limit)
    return Activation(tuple(ids), heuristic)


def deactivate(activation: Activation) -> None:
    """Takes back what `activate` made active; a second time does nothing.

    Graphs placed meanwhile keep their devices.
    """
    plugin = library.get()
    for number in activation.ids:
        plugin.placer_plugin_deactivate(number)
    if activation.heuristic is not None:
        plugin.placer_plugin_deactivate(activation.heuristic)


@contextlib.contextmanager
def applied(placement: PlacementLike | None = None, **options: Any) -> Iterator[Activation]:
    """`activate(placement, **options)` for the graphs that are optimized within the scope."""
    activation = activate(placement, **options)
    try:
        yield activation
    finally:
        deactivate(activation)


def describe_graph(proto: placement_pb2.Placement, graph: Any) -> None:
    """Fills in `proto` what the plugin recognises a graph by: op types and data inputs.

    Args:
      proto: a placement; ops that `graph` lacks keep an empty type.
      graph: anything placer.graph.read takes.
    """
    from tensorflow.core.framework import graph_pb2

    from placer.graph import read

    graph_def = graph if isinstance(graph, graph_pb2.GraphDef) else read(graph).graph_def
    index = {name: i for i, name in enumerate(proto.ops)}
    types: dict[str, int] = {}
    inputs_of: list[list[int]] = [[] for _ in proto.ops]
    type_of = [types.setdefault("", 0)] * len(index)
    for node in graph_def.node:
        op = index.get(node.name)
        if op is None:
            continue
        type_of[op] = types.setdefault(node.op, len(types))
        producers = (name.partition(":")[0] for name in node.input if not name.startswith("^"))
        inputs_of[op] = [index[name] for name in producers if name in index]
    proto.op_types[:] = types
    proto.op_type_of_op[:] = type_of
    proto.input_count[:] = [len(inputs) for inputs in inputs_of]
    proto.inputs[:] = [i for inputs in inputs_of for i in inputs]


def _protos(placement: PlacementLike) -> list[tuple[str, placement_pb2.Placement]]:
    """The placements meant, each with the name that messages call it by."""
    if isinstance(placement, Placement):
        return [("placement", placement.to_proto())]
    if isinstance(placement, Mapping):
        return [("placement", _from_mapping(placement))]
    if not isinstance(placement, str | os.PathLike):
        raise PlacerError(
            f"cannot activate a {type(placement).__name__}; give a Placement, a mapping from op "
            "to device, or a placement file or folder"
        )
    path = Path(placement)
    files = [path]
    if path.is_dir():
        files = sorted(f for f in path.iterdir() if f.is_file() and not f.name.startswith("."))
        if not files:
            raise PlacerError(f"there is no placement file in the folder {path}")
    return [(str(file), Placement.load(file).to_proto()) for file in files]


def _from_mapping(mapping: Mapping[str, str]) -> placement_pb2.Placement:
    for op, device in mapping.items():
        if not isinstance(op, str) or not isinstance(device, str):
            raise PlacerError(f"a placement maps op names to device names, not {op!r}: {device!r}")
    devices = {name: i for i, name in enumerate(dict.fromkeys(mapping.values()))}
    return placement_pb2.Placement(
        devices=list(devices),
        ops=list(mapping),
        device_of_op=[devices[device] for device in mapping.values()],
    )
