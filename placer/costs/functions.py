"""Function bodies as graphs of their own, so that the ops inside are costed like any other."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from tensorflow.core.framework import (
    attr_value_pb2,
    function_pb2,
    graph_pb2,
    node_def_pb2,
    op_def_pb2,
    types_pb2,
)

from placer.errors import PlacerError
from placer.graph.kernels import attribute, op_def
from placer.graph.op_graph import OpGraph
from placer.graph.source import GraphSource, op_name

CALLS = frozenset(["PartitionedCall", "StatefulPartitionedCall"])
WHILES = frozenset(["While", "StatelessWhile", "_While"])
BRANCHES = frozenset(["If", "StatelessIf", "_If", "Case", "StatelessCase"])
_HANDLE_PASSING = frozenset(
    ["Identity", "Enter", "RefEnter", "Switch", "RefSwitch", "Merge", "IdentityN", "NextIteration"]
)


@dataclasses.dataclass(frozen=True)
class Argument:
    """What is known about one input of a function call.

    Attributes:
      dtype: DataType enum.
      shape: sizes, -1 for unknown; None for unknown rank.
      variable: (dtype, shape) of the variable that a resource handle refers to, if known.
    """

    dtype: int
    shape: tuple[int, ...] | None
    variable: tuple[int, tuple[int, ...]] | None = None


def function_names(node: node_def_pb2.NodeDef, library: Mapping[str, object]) -> list[str]:
    """Names of the functions that running an op runs, in the order of its attributes.

    While: [condition, body]. Dataset ops' functions do not run as part of a step and are left out.
    """
    if node.op in library:
        return [node.op]
    attributes: Sequence[str]
    if node.op in CALLS:
        attributes = ("f",)
    elif node.op in WHILES:
        attributes = ("cond", "body")
    elif node.op in ("If", "StatelessIf", "_If"):
        attributes = ("then_branch", "else_branch")
    elif node.op in ("Case", "StatelessCase"):
        return [f.name for f in node.attr["branches"].list.func if f.name in library]
    else:
        return []
    names = [node.attr[a].func.name for a in attributes if a in node.attr]
    return [n for n in names if n in library]


def call_arguments(
    graph: OpGraph, nodes: Sequence[node_def_pb2.NodeDef], op: int
) -> list[Argument]:
    """The arguments that op number `op` hands to its functions (its selector left out)."""
    first = 1 if nodes[op].op in BRANCHES else 0
    arguments = []
    for t in graph.in_tensor[graph.in_ptr[op] + first : graph.in_ptr[op + 1]].tolist():
        rank = int(graph.tensor_rank[t])
        shape = None if rank < 0 else tuple(graph.tensor_shape[t, :rank].tolist())
        dtype = int(graph.tensor_dtype[t])
        variable = _variable(graph, nodes, t) if dtype == types_pb2.DT_RESOURCE else None
        arguments.append(Argument(dtype, shape, variable))
    return arguments


def _variable(
    graph: OpGraph, nodes: Sequence[node_def_pb2.NodeDef], tensor: int
) -> tuple[int, tuple[int, ...]] | None:
    """dtype and shape of the variable behind a resource handle."""
    tensor_op = graph.tensor_op
    for _ in range(64):
        op = int(tensor_op[tensor])
        node = nodes[op]
        if node.op == "VarHandleOp":
            shape = node.attr["shape"].shape
            if shape.unknown_rank:
                return None
            return node.attr["dtype"].type, tuple(d.size for d in shape.dim)
        if node.op not in _HANDLE_PASSING or graph.in_ptr[op + 1] == graph.in_ptr[op]:
            return None
        port = tensor - int(graph.out_ptr[op]) if node.op == "IdentityN" else 0
        tensor = int(graph.in_tensor[graph.in_ptr[op] + port])
    return None


def instantiate(
    function: function_pb2.FunctionDef,
    library: function_pb2.FunctionDefLibrary,
    signatures: Mapping[str, op_def_pb2.OpDef],
    arguments: Sequence[Argument],
) -> tuple[GraphSource, list[str], list[str]]:
    """A function's body as a graph.

    Args:
      function: what to instantiate.
      library: for the functions that it calls.
      signatures: of the functions in the library.
      arguments: of the call; too few or many are an error.

    Returns:
      The graph, which fetches what the function returns; the node name of each argument; and
      the tensor name of each result.

    Raises:
      PlacerError: if the call does not fit the function.
    """
    signature = function.signature
    if len(arguments) != len(signature.input_arg):
        raise PlacerError(
            f"function {signature.name!r} takes {len(signature.input_arg)} arguments, but is "
            f"called with {len(arguments)}"
        )
    graph_def = graph_pb2.GraphDef()
    graph_def.versions.producer = 1984
    names = []
    for declared, argument in zip(signature.input_arg, arguments, strict=True):
        node = graph_def.node.add(name=declared.name)
        names.append(declared.name)
        if argument.variable is not None:
            node.op = "VarHandleOp"
            node.attr["dtype"].type = argument.variable[0]
            _set_shape(node.attr["shape"], argument.variable[1])
            continue
        node.op = "Placeholder"
        node.attr["dtype"].type = argument.dtype
        _set_shape(node.attr["shape"], argument.shape)
    offsets: dict[str, int] = {f"{n}": 0 for n in names}
    for node in function.node_def:
        offsets.update(_output_offsets(node, signatures))
    for node in function.node_def:
        copy = graph_def.node.add()
        copy.CopyFrom(node)
        copy.device = ""
        del copy.input[:]
        copy.input.extend(_flat_name(name, offsets) for name in node.input)
    results = [_flat_name(function.ret[r.name], offsets) for r in signature.output_arg]
    controls = list(function.control_ret.values())
    if any(_calls_function(n, signatures) for n in function.node_def):
        graph_def.library.CopyFrom(library)
    fetches = tuple(dict.fromkeys([*results, *controls])) or tuple(
        n.name for n in function.node_def
    )
    return (
        GraphSource(graph_def, fetches, origin=f"function {signature.name!r}"),
        names,
        results,
    )


def _set_shape(attribute: attr_value_pb2.AttrValue, shape: tuple[int, ...] | None) -> None:
    if shape is None:
        attribute.shape.unknown_rank = True
        return
    attribute.shape.SetInParent()
    for size in shape:
        attribute.shape.dim.add(size=size)


def _calls_function(node: node_def_pb2.NodeDef, signatures: Mapping[str, object]) -> bool:
    return node.op in signatures or any(
        value.HasField("func") or value.list.func for value in node.attr.values()
    )


def _output_offsets(
    node: node_def_pb2.NodeDef, signatures: Mapping[str, op_def_pb2.OpDef]
) -> dict[str, int]:
    """Flat index of the first tensor of each output argument, by "node:argument"."""
    definition = signatures.get(node.op) or op_def(node.op)
    if definition is None:
        raise PlacerError(f"node {node.name!r} has op {node.op!r}, which TensorFlow does not know")
    offsets = {node.name: 0}
    position = 0
    for argument in definition.output_arg:
        offsets[f"{node.name}:{argument.name}"] = position
        if argument.type_list_attr:
            position += len(attribute(node, argument.type_list_attr).list.type)
        elif argument.number_attr:
            position += attribute(node, argument.number_attr).i
        else:
            position += 1
    return offsets


def _flat_name(name: str, offsets: Mapping[str, int]) -> str:
    """A FunctionDef's "node:argument:index" as a GraphDef's "node:index"."""
    if name.startswith("^"):
        return name
    head, _, index = name.rpartition(":")
    if head in offsets and ":" in head and index.isdigit():
        return f"{op_name(name)}:{offsets[head] + int(index)}"
    if name in offsets:
        return f"{op_name(name)}:{offsets[name]}"
    return name


def body_temporary_bytes(graph: OpGraph) -> int:
    """Peak bytes of a body's tensors when its ops run one by one, in topological order."""
    order = graph.topological_order()
    order = order[graph.executed[order]]
    position = np.full(graph.num_ops, -1, np.int64)
    position[order] = np.arange(order.size)
    producer = position[graph.tensor_op]
    last = producer.copy()
    np.maximum.at(last, graph.in_tensor, position[graph.edge_dst])
    alive = producer >= 0
    change = np.zeros(order.size + 1, np.int64)
    np.add.at(change, producer[alive], graph.tensor_local_bytes[alive])
    np.add.at(change, last[alive] + 1, -graph.tensor_local_bytes[alive])
    return int(np.cumsum(change).max(initial=0))
