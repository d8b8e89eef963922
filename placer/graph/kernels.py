"""Which device types TensorFlow has a kernel for, node by node."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from tensorflow.core.framework import (
    attr_value_pb2,
    function_pb2,
    graph_pb2,
    node_def_pb2,
    op_def_pb2,
)
from tensorflow.python.framework import kernels, op_def_registry

from placer.errors import PlacerError
from placer.graph.op_graph import KERNEL_TYPES

# Ops whose CPU kernels say that they are not expensive (OpKernel::IsExpensive): the executor's
# thread runs them itself in place of handing them to the thread pool
# (ExecutorState::ScheduleReady in tensorflow/core/common_runtime/executor.cc).
INEXPENSIVE_OPS = frozenset(
    (
        "_Arg",
        "_Retval",
        "BroadcastArgs",
        "BroadcastGradientArgs",
        "ConcatOffset",
        "Const",
        "ControlTrigger",
        "Enter",
        "Exit",
        "ExpandDims",
        "Identity",
        "IdentityN",
        "LoopCond",
        "Merge",
        "NextIteration",
        "NoOp",
        "PlaceholderWithDefault",
        "PreventGradient",
        "Rank",
        "Reshape",
        "Shape",
        "ShapeN",
        "Size",
        "Squeeze",
        "StopGradient",
        "Switch",
    )
)
# Ops that run functions on their own device: with these, TensorFlow gives what has no device in a
# body the caller's (tensorflow/core/common_runtime/inline_function_utils.cc). A PartitionedCall
# places its body itself.
_RUN_ON_THEIR_DEVICE = frozenset(
    ("While", "StatelessWhile", "_While", "If", "StatelessIf", "_If", "Case", "StatelessCase")
)
# One of these is what TensorFlow runs for a node that calls a function by the function's name.
_CALL_OP = "PartitionedCall"
_DEFAULT = "DEFAULT"


def kernel_types(graph_def: graph_pb2.GraphDef) -> np.ndarray:
    """Which nodes have a kernel on which device type.

    Follows FindKernelDef (tensorflow/core/framework/op_kernel.cc): a kernel counts if its device
    type is the wanted one, or DEFAULT where that type has none, its label is the node's
    `_kernel`, and its constraints hold for the node's attributes or their defaults. Loops and
    conditionals that are functions have a kernel where all ops of their bodies do.

    Returns:
      bool[2, N] by KERNEL_TYPES and node.

    Raises:
      PlacerError: if this TensorFlow build registers no GPU kernels at all.
    """
    if not _has_gpu_kernels():
        raise PlacerError(
            "this TensorFlow build knows no GPU kernels, so nothing could be placed on a GPU; "
            "install `tensorflow` in place of `tensorflow-cpu` (it needs no GPU)"
        )
    lookup = _Lookup({f.signature.name: f for f in graph_def.library.function})
    result = np.zeros((len(KERNEL_TYPES), len(graph_def.node)), bool)
    for i, node in enumerate(graph_def.node):
        result[:, i] = lookup.of(node)
    return result


class _Lookup:
    """Kernels of the nodes of one graph, by KERNEL_TYPES."""

    def __init__(self, library: Mapping[str, function_pb2.FunctionDef]) -> None:
        self._library = library
        self._found: dict[tuple, tuple[bool, ...]] = {}
        self._of_body: dict[str, tuple[bool, ...]] = {}

    def of(self, node: node_def_pb2.NodeDef) -> tuple[bool, ...]:
        """Whether a node has a kernel of each type."""
        op = _CALL_OP if node.op in self._library else node.op
        label = node.attr["_kernel"].s.decode(errors="replace") if "_kernel" in node.attr else ""
        names = _constrained_attributes(op)
        values = tuple(_types(node, op, name) for name in names)
        key = (op, label, values)
        if key not in self._found:
            attributes = dict(zip(names, values, strict=True))
            self._found[key] = tuple(
                _has_kernel(op, kind, label, attributes) for kind in KERNEL_TYPES
            )
        result = self._found[key]
        if node.op in self._library:
            result = _both(result, self._body(node.op))
        elif op in _RUN_ON_THEIR_DEVICE:
            for value in node.attr.values():
                for function in (value.func, *value.list.func):
                    result = _both(result, self._body(function.name))
        return result

    def _body(self, name: str) -> tuple[bool, ...]:
        if name not in self._library:
            return (True,) * len(KERNEL_TYPES)
        if name not in self._of_body:
            # What calls itself asks no more of itself.
            self._of_body[name] = result = (True,) * len(KERNEL_TYPES)
            for node in self._library[name].node_def:
                if not node.device:
                    result = _both(result, self.of(node))
            self._of_body[name] = result
        return self._of_body[name]


def _both(a: tuple[bool, ...], b: tuple[bool, ...]) -> tuple[bool, ...]:
    return tuple(x and y for x, y in zip(a, b, strict=True))


@functools.cache
def _has_gpu_kernels() -> bool:
    return any(k.device_type == "GPU" for k in _kernels("MatMul"))


@functools.cache
def _kernels(op: str) -> tuple[Any, ...]:
    return tuple(kernels.get_registered_kernels_for_op(op).kernel)


@functools.cache
def _constrained_attributes(op: str) -> tuple[str, ...]:
    return tuple(sorted({c.name for k in _kernels(op) for c in k.constraint}))


@functools.cache
def op_def(op: str) -> op_def_pb2.OpDef | None:
    """TensorFlow's definition of an op type, None if this build does not know it."""
    return op_def_registry.get(op)


def attribute(node: node_def_pb2.NodeDef, name: str) -> attr_value_pb2.AttrValue:
    """An attribute of a node: its own, else its op's default, else an empty value.

    To read `node.attr[name]` where it is absent would add it to the node.
    """
    return node.attr[name] if name in node.attr else _default_attribute(node.op, name)


@functools.cache
def _default_attribute(op: str, name: str) -> attr_value_pb2.AttrValue:
    definition = op_def(op) or op_def_pb2.OpDef()
    for candidate in definition.attr:
        if candidate.name == name:
            return candidate.default_value
    return attr_value_pb2.AttrValue()


@functools.cache
def _default(op: str, name: str) -> tuple[int, ...]:
    definition = op_def(op)
    for attribute in definition.attr if definition is not None else ():
        if attribute.name == name:
            value = attribute.default_value
            return (value.type,) if value.type else tuple(value.list.type)
    return ()


def _types(node: node_def_pb2.NodeDef, op: str, name: str) -> tuple[int, ...]:
    """Type or list of types of an attribute; constraints are on types alone."""
    if name not in node.attr:
        return _default(op, name)
    value = node.attr[name]
    return (value.type,) if value.type else tuple(value.list.type)


def _has_kernel(op: str, kind: str, label: str, attributes: dict[str, tuple[int, ...]]) -> bool:
    for device_type in (kind, _DEFAULT):
        for kernel in _kernels(op):
            if kernel.device_type != device_type or kernel.label != label:
                continue
            if all(
                set(attributes.get(c.name, ())) <= set(c.allowed_values.list.type)
                for c in kernel.constraint
            ):
                return True
    return False
