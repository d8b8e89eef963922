"""Writing devices back: in place in a GraphDef, or into a file's bytes and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from google.protobuf import text_format
from tensorflow.core.framework import graph_pb2

from placer.errors import PlacerError
from placer.files import write_atomically
from placer.graph.source import GraphSource

_NODE, _NODE_DEVICE, _META_GRAPH_DEF = 1, 4, 2
_VARINT, _FIXED64, _LENGTH, _START_GROUP, _END_GROUP, _FIXED32 = 0, 1, 2, 3, 4, 5


def write_devices(graph_def: graph_pb2.GraphDef, devices: Sequence[str]) -> None:
    """Sets `node.device` of every node, in place; `devices` has one name a node."""
    if len(devices) != len(graph_def.node):
        raise PlacerError(f"{len(devices)} devices for {len(graph_def.node)} nodes")
    for node, device in zip(graph_def.node, devices, strict=True):
        node.device = device


def clear_function_devices(graph_def: graph_pb2.GraphDef) -> bool:
    """Clears devices in function bodies, in place, so that they run where their calls are placed.

    Returns:
      Whether there were any.
    """
    nodes = [n for f in graph_def.library.function for n in f.node_def if n.device]
    for node in nodes:
        node.device = ""
    return bool(nodes)


def save_graph(source: GraphSource, path: str | os.PathLike[str]) -> None:
    """Writes a graph with its devices to a file, atomically.

    A source that was read from a binary file keeps every byte but those of the device fields:
    functions, versions, collections and unknown fields included. A name that ends in .pbtxt gets
    text. A MetaGraphDef stays one.

    Raises:
      PlacerError: if the file cannot be written.
    """
    proto = source.meta_graph if source.meta_graph is not None else source.graph_def
    if str(path).endswith((".pbtxt", ".txt")):
        data = text_format.MessageToString(proto).encode()
    elif source.data is not None:
        devices = [n.device for n in source.graph_def.node]
        data = replace_devices(source.data, devices, source.meta_graph is not None)
    else:
        data = proto.SerializeToString()
    write_atomically(path, data)


def replace_devices(data: bytes, devices: Sequence[str], is_meta_graph: bool) -> bytes:
    """Serialised GraphDef or MetaGraphDef with other devices and otherwise the same bytes.

    Args:
      data: a valid serialised message.
      devices: one name a node, in order of the nodes; "" removes the field.
      is_meta_graph: whether data is a MetaGraphDef.
    """
    remaining = iter(devices)
    if not is_meta_graph:
        return _rewrite_graph(memoryview(data), remaining)
    out = bytearray()
    for number, wire, start, body, end in _fields(memoryview(data)):
        if number == _META_GRAPH_DEF and wire == _LENGTH:
            _append_field(out, number, _rewrite_graph(memoryview(data)[body:end], remaining))
        else:
            out += data[start:end]
    return bytes(out)


def _rewrite_graph(data: memoryview, devices: Iterator[str]) -> bytes:
    out = bytearray()
    for number, wire, start, body, end in _fields(data):
        if number == _NODE and wire == _LENGTH:
            node = _rewrite_node(data[body:end], next(devices).encode())
            if node is None:
                out += data[start:end]
            else:
                _append_field(out, number, node)
        else:
            out += data[start:end]
    return bytes(out)


def _rewrite_node(data: memoryview, device: bytes) -> bytes | None:
    """The node with another device, or None if it has that device already."""
    out = bytearray()
    written = False
    changed = False
    last: bytes = b""
    for number, wire, start, body, end in _fields(data):
        if number == _NODE_DEVICE and wire == _LENGTH:
            last = bytes(data[body:end])
            if not written and device:
                _append_field(out, number, device)
                written = True
            changed = True
        else:
            out += data[start:end]
    if last == device:
        return None
    if not written and device:
        _append_field(out, _NODE_DEVICE, device)
        changed = True
    return bytes(out) if changed else None


def _fields(data: memoryview) -> Iterator[tuple[int, int, int, int, int]]:
    """Top-level fields of a message: (number, wire type, start, start of value, end)."""
    position, size = 0, len(data)
    while position < size:
        start = position
        tag, position = _varint(data, position)
        number, wire = tag >> 3, tag & 7
        body = position
        if wire == _LENGTH:
            length, body = _varint(data, position)
            position = body + length
        elif wire == _VARINT:
            _, position = _varint(data, position)
        elif wire == _FIXED64:
            position += 8
        elif wire == _FIXED32:
            position += 4
        elif wire == _START_GROUP:
            position = _skip_group(data, position, number)
        else:
            raise PlacerError(f"damaged graph file: wire type {wire} at byte {start}")
        if position > size:
            raise PlacerError(f"damaged graph file: a field at byte {start} runs past the end")
        yield number, wire, start, body, position


def _skip_group(data: memoryview, position: int, number: int) -> int:
    for inner, wire, _, _, end in _fields_until_end(data, position):
        if wire == _END_GROUP and inner == number:
            return end
    raise PlacerError("damaged graph file: a group does not end")


def _fields_until_end(data: memoryview, position: int) -> Iterator[tuple[int, int, int, int, int]]:
    while position < len(data):
        tag, after = _varint(data, position)
        if tag & 7 == _END_GROUP:
            yield tag >> 3, _END_GROUP, position, after, after
            return
        number, wire, start, body, end = next(_fields(data[position:]))
        yield number, wire, position + start, position + body, position + end
        position += end


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data) and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise PlacerError("damaged graph file: a number runs past the end")


def _append_field(out: bytearray, number: int, body: bytes) -> None:
    for value in ((number << 3) | _LENGTH, len(body)):
        while value >= 0x80:
            out.append((value & 0x7F) | 0x80)
            value >>= 7
        out.append(value)
    out += body
