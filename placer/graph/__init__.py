"""Graphs in and out: reading, the OpGraph arrays, and writing devices back."""

from placer.graph.build import build_op_graph, read_text
from placer.graph.fingerprint import fingerprint
from placer.graph.kernels import kernel_types
from placer.graph.op_graph import KERNEL_TYPES, MAX_RANK, OpGraph, topological_order
from placer.graph.source import GraphSource, op_name, read
from placer.graph.writer import (
    clear_function_devices,
    replace_devices,
    save_graph,
    write_devices,
)

__all__ = [
    "KERNEL_TYPES",
    "MAX_RANK",
    "GraphSource",
    "OpGraph",
    "build_op_graph",
    "clear_function_devices",
    "fingerprint",
    "kernel_types",
    "op_name",
    "read",
    "read_text",
    "replace_devices",
    "save_graph",
    "topological_order",
    "write_devices",
]
