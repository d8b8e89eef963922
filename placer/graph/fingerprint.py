"""A graph's fingerprint: equal for graphs of equal structure, whatever their devices."""

from __future__ import annotations

import hashlib

from tensorflow.core.framework import graph_pb2, node_def_pb2

# Attributes that say where a node runs or came from, not what it computes.
_NOT_STRUCTURE = ("_class", "_output_shapes", "_xla_", "_XlaCompile", "_grappler")


def fingerprint(graph_def: graph_pb2.GraphDef) -> str:
    """Hexadecimal hash of names, op types, inputs and attributes; never devices or node order."""
    digest = hashlib.sha256()
    for node in sorted(graph_def.node, key=lambda n: n.name):
        _update(digest, node)
    for function in sorted(graph_def.library.function, key=lambda f: f.signature.name):
        digest.update(b"\x02" + function.signature.SerializeToString(deterministic=True))
        for node in function.node_def:
            _update(digest, node)
        for mapping in (function.ret, function.control_ret):
            for key in sorted(mapping):
                digest.update(f"{key}={mapping[key]}\x00".encode())
    return digest.hexdigest()[:32]


def _update(digest: hashlib._Hash, node: node_def_pb2.NodeDef) -> None:
    digest.update(f"\x01{node.name}\x00{node.op}\x00".encode())
    for name in node.input:
        digest.update(name.encode() + b"\x00")
    attributes = node.attr
    for key in sorted(attributes):
        if not key.startswith(_NOT_STRUCTURE):
            digest.update(key.encode() + b"\x00")
            digest.update(attributes[key].SerializeToString(deterministic=True))
