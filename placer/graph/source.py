"""Reading: whatever the user holds (protos, files, tf.Graph, tf.function) to a GraphSource."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf import message, text_format
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from placer.errors import PlacerError

if TYPE_CHECKING:
    import tensorflow as tf

# Where a SavedModel of TensorFlow 2 keeps its initialiser (tensorflow/cc/saved_model/constants.h).
_INIT_SIGNATURE = "__saved_model_init_op"


@dataclasses.dataclass(frozen=True, eq=False)
class GraphSource:
    """A graph with what is needed to run it.

    Attributes:
      graph_def: the graph; the caller's own object where a GraphDef or MetaGraphDef was given.
      fetches: names of the ops ("train") or tensors ("loss:0") that one step computes.
      meta_graph: the MetaGraphDef around graph_def, if there is one.
      init_op: name of the op that initialises the variables, if the graph has one.
      initial_values: VarHandleOp name -> value, for variables captured from a tf.function.
      origin: what to call the graph in messages.
      data: the file's bytes, for a binary file; what is written back differs in devices only.
    """

    graph_def: graph_pb2.GraphDef
    fetches: tuple[str, ...]
    meta_graph: meta_graph_pb2.MetaGraphDef | None = None
    init_op: str | None = None
    initial_values: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    origin: str = "graph"
    data: bytes | None = None

    @property
    def fetch_ops(self) -> tuple[str, ...]:
        """The fetches as op names."""
        return tuple(op_name(f) for f in self.fetches)

    def step_ops(self) -> tuple[str, ...]:
        """Names of the ops with which one step ends: the fetches, or what they only wait for.

        A fetched NoOp, as tf.group makes it, computes nothing. Yet on any device it would have each
        op elsewhere that it waits for report by a transfer of its own: in a graph that is trained,
        one for every variable. A session that runs the ops themselves needs none of them, and one
        with Grappler's dependency optimizer, which is on by default, sends one a device.
        """
        nodes = {n.name: n for n in self.graph_def.node}
        found: dict[str, None] = {}
        seen: set[str] = set()
        waiting = list(reversed(self.fetch_ops))
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            node = nodes.get(name)
            if node is not None and node.op == "NoOp" and node.input:
                waiting += [op_name(i) for i in reversed(node.input)]
            else:
                found[name] = None
        return tuple(found)


def op_name(tensor_name: str) -> str:
    """Op name of a tensor name ("a:0") or an input as NodeDefs write it ("^a", "a:1")."""
    return tensor_name.removeprefix("^").partition(":")[0]


def read(source: Any, fetches: Sequence[str] | None = None) -> GraphSource:
    """Reads a graph.

    Args:
      source: a GraphDef (kept, not copied), a MetaGraphDef, a tf.Graph (a function's
        too), a tf.function or ConcreteFunction, or the path of a binary or text GraphDef or
        MetaGraphDef file.
      fetches: op or tensor names; by default the train_op collection, the signatures' outputs, or
        the ops that nothing reads.

    Raises:
      PlacerError: if there is no graph in it, or a fetch does not exist.
    """
    if isinstance(source, graph_pb2.GraphDef):
        result = GraphSource(source, ())
    elif isinstance(source, meta_graph_pb2.MetaGraphDef):
        result = GraphSource(source.graph_def, (), source)
    elif isinstance(source, str | os.PathLike):
        result = _read_file(Path(source))
    elif hasattr(source, "get_concrete_function") or hasattr(source, "structured_outputs"):
        result = _read_function(source)
    elif hasattr(source, "as_graph_def"):
        result = _read_graph(source)
    else:
        raise PlacerError(
            f"cannot read a graph from {type(source).__name__}; give a GraphDef, MetaGraphDef, "
            "tf.Graph, tf.function or a file name"
        )
    if not result.graph_def.node:
        raise PlacerError(f"{result.origin} has no nodes")
    return dataclasses.replace(
        result,
        fetches=_resolve_fetches(result, fetches),
        init_op=result.init_op or _find_init_op(result),
    )


def _read_file(path: Path) -> GraphSource:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PlacerError(f"cannot read {path}: {error.strerror}") from None
    if not data.strip():
        raise PlacerError(f"{path} is empty")
    for parse, kept in ((_parse_binary, data), (_parse_text, None)):
        found = parse(data)
        if isinstance(found, meta_graph_pb2.MetaGraphDef):
            return GraphSource(found.graph_def, (), found, origin=str(path), data=kept)
        if found is not None:
            return GraphSource(found, (), origin=str(path), data=kept)
    raise PlacerError(f"{path} is neither a GraphDef nor a MetaGraphDef, in binary or text form")


def _plausible(graph_def: graph_pb2.GraphDef) -> bool:
    return bool(graph_def.node) and all(n.name and n.op for n in graph_def.node)


def _parse_binary(data: bytes) -> graph_pb2.GraphDef | meta_graph_pb2.MetaGraphDef | None:
    """Both messages parse much of each other's bytes; only one has nodes with names and ops."""
    for kind in (graph_pb2.GraphDef, meta_graph_pb2.MetaGraphDef):
        proto = kind()
        try:
            proto.ParseFromString(data)
        except message.DecodeError:
            continue
        if _plausible(proto.graph_def if hasattr(proto, "graph_def") else proto):
            return proto
    return None


def _parse_text(data: bytes) -> graph_pb2.GraphDef | meta_graph_pb2.MetaGraphDef | None:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    for kind in (graph_pb2.GraphDef, meta_graph_pb2.MetaGraphDef):
        proto = kind()
        try:
            text_format.Parse(text, proto)
        except text_format.ParseError:
            continue
        if _plausible(proto.graph_def if hasattr(proto, "graph_def") else proto):
            return proto
    return None


def _read_graph(graph: tf.Graph) -> GraphSource:
    import tensorflow as tf

    collection = tf.compat.v1.GraphKeys.TRAIN_OP
    train_ops = tuple(t.name for t in graph.get_collection(collection))
    meta = meta_graph_pb2.MetaGraphDef()
    meta.graph_def.CopyFrom(graph.as_graph_def())
    if train_ops:
        meta.collection_def[collection].node_list.value.extend(train_ops)
    return GraphSource(meta.graph_def, (), meta, origin="tf.Graph")


def _read_function(function: Any) -> GraphSource:
    """Turns a tf.function into a graph that a session can run.

    Captured variables become VarHandleOps of their own name, dtype and shape; other captures,
    which are constants to the function, become Consts.
    """
    import tensorflow as tf

    if hasattr(function, "get_concrete_function") and not hasattr(function, "structured_outputs"):
        try:
            function = function.get_concrete_function()
        except (TypeError, ValueError) as error:
            first = str(error).strip().splitlines()[0]
            raise PlacerError(
                f"tf.function needs its arguments: pass f.get_concrete_function(...) ({first})"
            ) from None
    # The graph of a ConcreteFunction knows its inputs and outputs too.
    graph = getattr(function, "graph", function)
    graph_def = graph.as_graph_def()
    nodes = {n.name: n for n in graph_def.node}
    values: dict[str, np.ndarray] = {}
    new_names: dict[str, str] = {}
    variables = {id(v.handle): v for v in graph.variables}
    for outer, inner in graph.captures:
        node = nodes[inner.op.name]
        node.ClearField("input")
        if inner.dtype == tf.resource:
            variable = variables.get(id(outer))
            if variable is None:
                raise PlacerError(
                    f"tf.function {function.name!r} captures {outer!r}, a resource that is not a "
                    "variable; pass a tf.Graph or MetaGraphDef that creates it"
                )
            shape, dtype = variable.shape, variable.dtype
            name = variable.name.partition(":")[0]
            while name in nodes or name in values:
                name += "_"
            new_names[node.name] = name
            node.name = name
            values[name] = variable.numpy()
            node.op = "VarHandleOp"
            for key in list(node.attr):
                del node.attr[key]
            node.attr["dtype"].type = dtype.as_datatype_enum
            node.attr["shape"].shape.CopyFrom(shape.as_proto())
            node.attr["shared_name"].s = node.name.encode()
        else:
            value = outer.numpy()
            node.op = "Const"
            for key in list(node.attr):
                del node.attr[key]
            node.attr["dtype"].type = inner.dtype.as_datatype_enum
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
    for node in graph_def.node:
        for i, name in enumerate(node.input):
            tensor = name.partition(":")[0].lstrip("^")
            if tensor in new_names:
                node.input[i] = name.replace(tensor, new_names[tensor], 1)
    meta = meta_graph_pb2.MetaGraphDef()
    meta.graph_def.CopyFrom(graph_def)
    signature = meta.signature_def["serving_default"]
    flat = [t for t in tf.nest.flatten(function.outputs) if t is not None]
    for i, tensor in enumerate(flat):
        signature.outputs[f"output_{i}"].name = tensor.name
    if not flat:
        targets = [op.name for op in graph.control_outputs]
        meta.collection_def["train_op"].node_list.value.extend(targets)
    name = getattr(function, "name", b"function")
    name = name.decode() if isinstance(name, bytes) else str(name)
    return GraphSource(
        meta.graph_def, (), meta, initial_values=values, origin=f"tf.function {name}"
    )


def _resolve_fetches(source: GraphSource, fetches: Sequence[str] | None) -> tuple[str, ...]:
    names = {n.name for n in source.graph_def.node}
    if isinstance(fetches, str):
        fetches = [fetches]
    if fetches:
        for fetch in fetches:
            if op_name(fetch) not in names:
                raise PlacerError(f"{source.origin} has no op for the fetch {fetch!r}")
        return tuple(fetches)
    if source.meta_graph is not None:
        train = source.meta_graph.collection_def.get("train_op")
        trained = train.node_list.value if train is not None else ()
        signed = dict.fromkeys(
            info.name
            for key, signature in sorted(source.meta_graph.signature_def.items())
            if key != _INIT_SIGNATURE
            for _, info in sorted(signature.outputs.items())
        )
        for candidates in (trained, signed):
            # A pruned graph may have lost what its collections still name.
            found = tuple(f for f in candidates if op_name(f) in names)
            if found:
                return found
    read_by_others = {op_name(i) for n in source.graph_def.node for i in n.input}
    sinks = tuple(n.name for n in source.graph_def.node if n.name not in read_by_others)
    if not sinks:
        raise PlacerError(f"{source.origin}: every op feeds another; name what to fetch (--fetch)")
    return sinks


def _find_init_op(source: GraphSource) -> str | None:
    """The initialiser that MetaGraphDef writers record, or TensorFlow's usual name for it."""
    nodes = {n.name: n for n in source.graph_def.node}
    if source.meta_graph is not None:
        for key in ("init_op", "saved_model_init_op", "saved_model_main_op", "legacy_init_op"):
            collection = source.meta_graph.collection_def.get(key)
            for name in collection.node_list.value if collection is not None else ():
                if op_name(name) in nodes:
                    return op_name(name)
    return "init" if "init" in nodes and nodes["init"].op == "NoOp" else None
