"""Building the OpGraph: validation, shapes, edges, sizes and colocation groups."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from google.protobuf import text_format
from tensorflow.core.framework import (
    graph_pb2,
    node_def_pb2,
    op_def_pb2,
    tensor_shape_pb2,
    types_pb2,
)

from placer.errors import PlacerError
from placer.graph.colocation import colocation_groups, frame_paths
from placer.graph.fingerprint import fingerprint
from placer.graph.kernels import attribute, kernel_types, op_def
from placer.graph.loop_shapes import has_frames, loop_shapes
from placer.graph.op_graph import MAX_RANK, OpGraph, topological_order
from placer.graph.recursion import check_recursion
from placer.graph.source import GraphSource

# Ops whose output is the buffer of an input (tensorflow/core/kernels: they call
# context->set_output with the input, or Tensor::CopyFrom with another shape).
_ALIASING = {
    "Identity": 0,
    "IdentityN": None,
    "Reshape": 0,
    "ExpandDims": 0,
    "Squeeze": 0,
    "StopGradient": 0,
    "PreventGradient": 0,
    "Snapshot": 0,
    "CheckNumerics": 0,
    "EnsureShape": 0,
    "PlaceholderWithDefault": 0,
    "Enter": 0,
    "Exit": 0,
    "NextIteration": 0,
    "Switch": 0,
    "LoopCond": 0,
}
_FOLLOW_INPUT = frozenset({"Switch", "RefSwitch", "Exit", "RefExit"})
_FOLLOW_READER = frozenset({"Enter", "NextIteration", "RefNextIteration"})
_CLIENT_OPS = frozenset({"Placeholder", "PlaceholderV2", "_Arg", "_DeviceArg"})
_VARIABLES = frozenset({"VarHandleOp", "VariableV2", "Variable", "TemporaryVariable"})
# More inputs or outputs of one op are a damaged attribute, not a graph.
_MOST_TENSORS = 1 << 24
_BASE_OF_REF = 100  # DT_FLOAT_REF = DT_FLOAT + 100, tensorflow/core/framework/types.proto


def build_op_graph(source: GraphSource, clear_devices: bool = False) -> OpGraph:
    """The OpGraph of a graph.

    Args:
      source: the graph.
      clear_devices: loops are kept together whatever devices their ops came with.

    Raises:
      PlacerError: naming the node, for duplicate names, unknown ops, missing or cyclic inputs,
        shapes that contradict each other, or no shapes at all.
    """
    graph_def = source.graph_def
    index = _index_nodes(source)
    names = tuple(index)
    n = len(names)
    functions = {f.signature.name: f.signature for f in graph_def.library.function}

    definitions: list[op_def_pb2.OpDef] = []
    for node in graph_def.node:
        definition = op_def(node.op) or functions.get(node.op)
        if definition is None:
            raise PlacerError(
                f"{source.origin}: node {node.name!r} has op {node.op!r}, which this TensorFlow "
                "does not know; load the library that registers it first (tf.load_op_library)"
            )
        definitions.append(definition)

    output_types = [
        _argument_types(d.output_arg, node, source)
        for d, node in zip(definitions, graph_def.node, strict=True)
    ]
    out_ptr = np.zeros(n + 1, np.int64)
    np.cumsum([len(t) for t in output_types], out=out_ptr[1:])
    _check_fetches(source, index, out_ptr)
    raw_dtype = np.array([t for types in output_types for t in types], np.int32)
    is_ref = raw_dtype > _BASE_OF_REF
    tensor_dtype = np.where(is_ref, raw_dtype - _BASE_OF_REF, raw_dtype).astype(np.int32)

    edges = _read_edges(source, index, out_ptr)
    in_ptr, in_tensor, control_src, control_dst, back_src, back_dst = edges
    tensor_op = np.repeat(np.arange(n, dtype=np.int32), np.diff(out_ptr))
    edge_dst = np.repeat(np.arange(n, dtype=np.int32), np.diff(in_ptr))
    src = np.concatenate([tensor_op[in_tensor], control_src])
    dst = np.concatenate([edge_dst, control_dst])
    order = topological_order(n, src, dst)
    if order.size < n:
        _report_cycle(source, names, src, dst, order)

    check_recursion(source)
    shapes = _infer_shapes(source)
    shape, rank, known = _shape_arrays(shapes, names, out_ptr)
    elements = np.where(shape < 0, 1, np.where(_within_rank(rank), shape, 1)).prod(axis=1)
    tensor_bytes = elements.astype(np.int64) * _dtype_bytes(tensor_dtype)

    types = [node.op for node in graph_def.node]
    op_types = tuple(sorted(set(types)))
    numbers = {t: i for i, t in enumerate(op_types)}
    persistent = np.zeros(n, np.int64)
    local_bytes = np.where(is_ref, 0, tensor_bytes)
    alias = np.full(len(raw_dtype), -1, np.int32)
    for i, node in enumerate(graph_def.node):
        first, last = out_ptr[i], out_ptr[i + 1]
        if node.op in _VARIABLES:
            persistent[i] = _variable_bytes(node)
            local_bytes[first:last] = 0
        elif node.op == "Const":
            persistent[i] = tensor_bytes[first]
            local_bytes[first:last] = 0
        elif node.op == "ReadVariableOp":
            local_bytes[first:last] = 0
        elif node.op in _ALIASING and in_ptr[i + 1] > in_ptr[i]:
            position = _ALIASING[node.op]
            for k in range(last - first):
                alias[first + k] = k if position is None else position

    control = _Edges(src, dst, back_src, back_dst)
    fetches = np.array([index[name] for name in source.step_ops()], np.int32)
    executed = _needed(n, control, fetches)
    reference_edge = (tensor_dtype == types_pb2.DT_RESOURCE)[in_tensor] | (
        is_ref[in_tensor] & _reads_reference(definitions, graph_def, in_ptr, source)
    )
    # A dataset variant cannot be copied between devices.
    produces_dataset = np.array(["Dataset" in t for t in types])
    reference_edge |= (tensor_dtype == types_pb2.DT_VARIANT)[in_tensor] & produces_dataset[
        tensor_op[in_tensor]
    ]
    # Wherever control flow is annotated, graph_partition.cc (OptimizeControlFlowColocation) runs
    # Switch and Exit with what they read, Enter and NextIteration with what reads them.
    follows = np.array([t in _FOLLOW_INPUT for t in types])[edge_dst]
    follows &= np.arange(len(in_tensor)) == in_ptr[edge_dst]
    reference_edge |= follows | np.array([t in _FOLLOW_READER for t in types])[tensor_op[in_tensor]]
    together = np.stack([tensor_op[in_tensor][reference_edge], edge_dst[reference_edge]])
    together = np.concatenate([together, np.stack([back_src, back_dst])], axis=1)
    has_kernel = kernel_types(graph_def)
    requested = tuple(node.device for node in graph_def.node)
    frames = frame_paths(graph_def, order, src, dst)
    colocation = colocation_groups(
        graph_def,
        index,
        together,
        frames,
        has_kernel,
        ("",) * n if clear_devices else requested,
    )
    checked = (
        executed[tensor_op] & np.array([t not in ("Const", *_VARIABLES) for t in types])[tensor_op]
    )
    if checked.any() and not known[checked].any():
        raise PlacerError(
            f"{source.origin} has no shape information: no op's output shape is known; "
            "give its placeholders static shapes, or export it with them"
        )
    return OpGraph(
        names=names,
        op_types=op_types,
        op_type=np.array([numbers[t] for t in types], np.int32),
        out_ptr=out_ptr,
        tensor_dtype=tensor_dtype,
        tensor_shape=shape,
        tensor_rank=rank,
        tensor_bytes=tensor_bytes,
        tensor_known=known,
        tensor_local_bytes=local_bytes.astype(np.int64),
        tensor_alias=alias,
        in_ptr=in_ptr,
        in_tensor=in_tensor,
        control_src=control_src,
        control_dst=control_dst,
        executed=executed,
        persistent_bytes=persistent,
        colocation=colocation,
        has_kernel=has_kernel,
        client_ops=np.array([t in _CLIENT_OPS for t in types]),
        requested_device=requested,
        fetches=fetches,
        fingerprint=fingerprint(graph_def),
    )


def _index_nodes(source: GraphSource) -> dict[str, int]:
    index: dict[str, int] = {}
    for i, node in enumerate(source.graph_def.node):
        if not node.name:
            raise PlacerError(f"{source.origin}: node number {i} ({node.op}) has no name")
        if node.name in index:
            raise PlacerError(
                f"{source.origin}: two nodes are called {node.name!r} (numbers "
                f"{index[node.name]} and {i})"
            )
        index[node.name] = i
    return index


def _check_fetches(source: GraphSource, index: dict[str, int], out_ptr: np.ndarray) -> None:
    """Raises PlacerError for a fetch such as "x:3" of an op that has fewer outputs."""
    for fetch in source.fetches:
        producer, colon, position = fetch.partition(":")
        i = index.get(producer.removeprefix("^"))
        if i is None:
            raise PlacerError(f"{source.origin}: cannot fetch {fetch!r}: there is no such op")
        count = int(out_ptr[i + 1] - out_ptr[i])
        if colon and not (position.isdecimal() and int(position) < count):
            raise PlacerError(
                f"{source.origin}: cannot fetch {fetch!r}: op {producer!r} has {count} outputs"
            )


def _read_edges(
    source: GraphSource, index: dict[str, int], out_ptr: np.ndarray
) -> tuple[np.ndarray, ...]:
    in_ptr = np.zeros(len(index) + 1, np.int64)
    in_tensor: list[int] = []
    control_src: list[int] = []
    control_dst: list[int] = []
    back: list[tuple[int, int]] = []
    nodes = source.graph_def.node
    for i, node in enumerate(nodes):
        is_merge = node.op in ("Merge", "RefMerge")
        for name in node.input:
            producer, _, position = name.partition(":")
            is_control = producer.startswith("^")
            producer = producer[1:] if is_control else producer
            j = index.get(producer)
            if j is None:
                raise PlacerError(
                    f"{source.origin}: node {node.name!r} reads {name!r}, which does not exist"
                )
            if is_control:
                control_src.append(j)
                control_dst.append(i)
                continue
            k = int(position) if position.isdigit() else 0 if not position else -1
            if not 0 <= k < out_ptr[j + 1] - out_ptr[j]:
                raise PlacerError(
                    f"{source.origin}: node {node.name!r} reads {name!r}, but "
                    f"{nodes[j].op} {producer!r} has {out_ptr[j + 1] - out_ptr[j]} outputs"
                )
            if is_merge and nodes[j].op in ("NextIteration", "RefNextIteration"):
                back.append((j, i))
                continue
            in_tensor.append(int(out_ptr[j]) + k)
        in_ptr[i + 1] = len(in_tensor)
    back_edges = np.array(back, np.int32).reshape(-1, 2)
    return (
        in_ptr,
        np.array(in_tensor, np.int32),
        np.array(control_src, np.int32),
        np.array(control_dst, np.int32),
        back_edges[:, 0],
        back_edges[:, 1],
    )


class _Edges:
    """All dependencies, back edges of loops included."""

    def __init__(
        self, src: np.ndarray, dst: np.ndarray, back_src: np.ndarray, back_dst: np.ndarray
    ) -> None:
        self.src = np.concatenate([src, back_src])
        self.dst = np.concatenate([dst, back_dst])


def _needed(n: int, edges: _Edges, fetches: np.ndarray) -> np.ndarray:
    """bool[n]: what the fetches depend on."""
    order = np.argsort(edges.dst, kind="stable")
    sources = edges.src[order]
    pointer = np.searchsorted(edges.dst[order], np.arange(n + 1))
    needed = np.zeros(n, bool)
    needed[fetches] = True
    stack = list(fetches)
    while stack:
        i = stack.pop()
        for j in sources[pointer[i] : pointer[i + 1]]:
            if not needed[j]:
                needed[j] = True
                stack.append(j)
    return needed


def _report_cycle(
    source: GraphSource,
    names: Sequence[str],
    src: np.ndarray,
    dst: np.ndarray,
    order: np.ndarray,
) -> None:
    """Raises PlacerError with the ops of one cycle."""
    rest = np.ones(len(names), bool)
    rest[order] = False
    before: dict[int, int] = {}
    for s, d in zip(src, dst, strict=True):
        if rest[s] and rest[d]:
            before[int(d)] = int(s)
    node = next(iter(before))
    seen: list[int] = []
    while node not in seen:
        seen.append(node)
        node = before[node]
    cycle = seen[seen.index(node) :][::-1]
    shown = " -> ".join(repr(names[i]) for i in cycle[:6]) + (" -> ..." if len(cycle) > 6 else "")
    raise PlacerError(f"{source.origin} has a cycle outside any while loop: {shown}")


def _argument_types(
    arguments: Sequence[op_def_pb2.OpDef.ArgDef],
    node: node_def_pb2.NodeDef,
    source: GraphSource,
) -> list[int]:
    """DataType of each tensor of an op's arguments, with references as DT_*_REF."""
    types: list[int] = []
    for argument in arguments:
        if argument.type_list_attr:
            found = list(attribute(node, argument.type_list_attr).list.type)
        else:
            if argument.type_attr:
                found = [attribute(node, argument.type_attr).type]
            else:
                found = [argument.type]
            if argument.number_attr:
                count = attribute(node, argument.number_attr).i
                if not 0 <= count <= _MOST_TENSORS:
                    raise PlacerError(
                        f"{source.origin}: node {node.name!r} ({node.op}) has "
                        f"{argument.number_attr} = {count}, which is no number of tensors"
                    )
                found *= count
        types += [t + _BASE_OF_REF if argument.is_ref else t for t in found]
    if any(t == 0 for t in types):
        raise PlacerError(f"{source.origin}: node {node.name!r} ({node.op}) lacks a type attribute")
    return types


def _reads_reference(
    definitions: Sequence[op_def_pb2.OpDef],
    graph_def: graph_pb2.GraphDef,
    in_ptr: np.ndarray,
    source: GraphSource,
) -> np.ndarray:
    """bool[E]: the reading op takes a reference there (not a copy of what it refers to)."""
    reads = np.zeros(int(in_ptr[-1]), bool)
    for i, (definition, node) in enumerate(zip(definitions, graph_def.node, strict=True)):
        if any(a.is_ref for a in definition.input_arg):
            types = np.array(_argument_types(definition.input_arg, node, source))
            count = in_ptr[i + 1] - in_ptr[i]
            reads[in_ptr[i] : in_ptr[i + 1]] = types[:count] > _BASE_OF_REF
    return reads


def _infer_shapes(source: GraphSource) -> dict[str, Sequence]:
    """Node name -> output shapes (TensorShapeProto), by TensorFlow's shape inference."""
    import tensorflow as tf

    bare = graph_pb2.GraphDef()
    bare.CopyFrom(source.graph_def)
    for node in bare.node:
        # Neither matters to shapes, and either may name what does not exist (any more).
        node.device = ""
        node.attr.pop("_class", None)
        node.attr.pop("_output_shapes", None)
    graph = tf.Graph()
    try:
        with graph.as_default():
            tf.graph_util.import_graph_def(bare, name="")
    except Exception as error:  # TensorFlow raises many kinds for a graph it refuses.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise PlacerError(
            f"{source.origin} is refused by TensorFlow: {lines[0] if lines else error!r}"
        ) from None
    shaped = graph.as_graph_def(add_shapes=True)
    shapes: dict[str, Sequence] = {
        node.name: node.attr["_output_shapes"].list.shape
        for node in shaped.node
        if "_output_shapes" in node.attr
    }
    if has_frames(source.graph_def):
        for name, found in loop_shapes(source).items():
            known = shapes.get(name, ())
            if len(known) == len(found):
                shapes[name] = [
                    f if _is_unknown(k) and not _is_unknown(f) else k
                    for k, f in zip(known, found, strict=True)
                ]
    return shapes


def _is_unknown(shape: tensor_shape_pb2.TensorShapeProto) -> bool:
    return shape.unknown_rank or any(d.size < 0 for d in shape.dim)


def _shape_arrays(
    shapes: dict[str, Sequence], names: Sequence[str], out_ptr: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    count = int(out_ptr[-1])
    shape = np.zeros((count, MAX_RANK), np.int64)
    rank = np.full(count, -1, np.int32)
    known = np.zeros(count, bool)
    for i, name in enumerate(names):
        for k, proto in enumerate(shapes.get(name, ())):
            t = int(out_ptr[i]) + k
            if t >= out_ptr[i + 1] or proto.unknown_rank:
                continue
            sizes = [d.size for d in proto.dim]
            known[t] = all(s >= 0 for s in sizes)
            # Dimensions past MAX_RANK are multiplied into the last one that is kept.
            if len(sizes) > MAX_RANK:
                tail = sizes[MAX_RANK - 1 :]
                sizes = [*sizes[: MAX_RANK - 1], -1 if min(tail) < 0 else int(np.prod(tail))]
            rank[t] = len(sizes)
            shape[t, : len(sizes)] = sizes
    return shape, rank, known


def _within_rank(rank: np.ndarray) -> np.ndarray:
    return np.arange(MAX_RANK)[None, :] < rank[:, None]


@functools.cache
def _dtype_size(dtype: int) -> int:
    import tensorflow as tf

    if dtype in (types_pb2.DT_RESOURCE, types_pb2.DT_VARIANT):
        return 8
    return max(int(tf.dtypes.as_dtype(dtype).size or 1), 1)


def _dtype_bytes(dtypes: np.ndarray) -> np.ndarray:
    kinds, inverse = np.unique(dtypes, return_inverse=True)
    return np.array([_dtype_size(int(k)) for k in kinds], np.int64)[inverse]


def _variable_bytes(node: node_def_pb2.NodeDef) -> int:
    elements = 1
    for dimension in node.attr["shape"].shape.dim:
        elements *= max(dimension.size, 1)
    return elements * _dtype_size(node.attr["dtype"].type)


def read_text(text: str) -> graph_pb2.GraphDef:
    """A GraphDef from its text form; for short graphs in tests and documentation."""
    return text_format.Parse(text, graph_pb2.GraphDef())
