"""Values by dtype and shape: for variables without an initialiser, for inputs nobody feeds.

Step times hardly depend on values, as long as they are legal where they are used: a variance is
positive, an index lies within what it indexes, nothing overflows.
"""

from __future__ import annotations

import dataclasses
import enum
import zlib
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING

import numpy as np

from placer.errors import PlacerError

if TYPE_CHECKING:
    from tensorflow.core.framework import (
        graph_pb2,
        node_def_pb2,
        tensor_pb2,
        tensor_shape_pb2,
    )

INT32 = 3  # DataType enum
# Inputs larger than this many values are one value repeated, which a Const stores in a few bytes.
MAX_RANDOM_VALUES = 1 << 20
# What an index stays below where nothing says what it indexes.
DEFAULT_INDEX_BOUND = 2
# Passing through these, an index is still one.
_INDEX_KEEPERS = frozenset(
    (
        "Cast",
        "ConcatV2",
        "ExpandDims",
        "Identity",
        "IdentityN",
        "Pack",
        "Placeholder",
        "Reshape",
        "Slice",
        "Split",
        "SplitV",
        "Squeeze",
        "StridedSlice",
        "Tile",
        "Transpose",
        "Unpack",
        "GatherV2",
        "PlaceholderWithDefault",
        "Reverse",
        "ReverseV2",
        "StopGradient",
    )
)
_GATHERS = ("Gather", "GatherV2", "ResourceGather")


class Role(enum.Enum):
    """What a variable is to the graph, which decides its initial value."""

    WEIGHT = enum.auto()
    # Moments of Adam and momentum start at zero.
    MOMENT = enum.auto()
    # Variances, accumulators of squares, powers of beta: must be positive.
    POSITIVE = enum.auto()


# Input positions of optimizer kernels and normalisations (tensorflow/core/ops/training_ops.cc,
# nn_ops.cc): op without its Resource/Sparse prefixes -> {position: role}.
_SLOTS = {
    "ApplyAdam": {1: Role.MOMENT, 2: Role.MOMENT, 3: Role.POSITIVE, 4: Role.POSITIVE},
    "ApplyAdamWithAmsgrad": {
        1: Role.MOMENT,
        2: Role.MOMENT,
        3: Role.POSITIVE,
        4: Role.POSITIVE,
        5: Role.POSITIVE,
    },
    "ApplyRMSProp": {1: Role.POSITIVE, 2: Role.MOMENT},
    "ApplyCenteredRMSProp": {1: Role.MOMENT, 2: Role.POSITIVE, 3: Role.MOMENT},
    "ApplyAdagrad": {1: Role.POSITIVE},
    "ApplyAdagradV2": {1: Role.POSITIVE},
    "ApplyAdadelta": {1: Role.POSITIVE, 2: Role.POSITIVE},
    "ApplyFtrl": {1: Role.POSITIVE, 2: Role.MOMENT},
    "ApplyFtrlV2": {1: Role.POSITIVE, 2: Role.MOMENT},
    "ApplyMomentum": {1: Role.MOMENT},
    "ApplyKerasMomentum": {1: Role.MOMENT},
    "FusedBatchNorm": {1: Role.POSITIVE, 4: Role.POSITIVE},
    "FusedBatchNormV2": {1: Role.POSITIVE, 4: Role.POSITIVE},
    "FusedBatchNormV3": {1: Role.POSITIVE, 4: Role.POSITIVE},
    "Rsqrt": {0: Role.POSITIVE},
    "Sqrt": {0: Role.POSITIVE},
    "Log": {0: Role.POSITIVE},
    "RealDiv": {1: Role.POSITIVE},
}
_READS = ("Identity", "ReadVariableOp", "AddV2", "Add", "Sub", "Cast", "Reshape", "ExpandDims")


def _names(graph_def: graph_pb2.GraphDef) -> dict[str, list[tuple[str, int]]]:
    """Op name -> (consumer, input position), data edges only."""
    consumers: dict[str, list[tuple[str, int]]] = {}
    for node in graph_def.node:
        for position, name in enumerate(node.input):
            if not name.startswith("^"):
                consumers.setdefault(name.partition(":")[0], []).append((node.name, position))
    return consumers


def variable_roles(graph_def: graph_pb2.GraphDef) -> dict[str, Role]:
    """Roles of the variables that are not plain weights, from the kernels that use them."""
    consumers = _names(graph_def)
    nodes = {n.name: n for n in graph_def.node}
    roles: dict[str, Role] = {}
    for node in graph_def.node:
        if node.op not in ("VarHandleOp", "Variable", "VariableV2"):
            continue
        waiting, seen = [(node.name, 0)], set()
        while waiting:
            name, depth = waiting.pop()
            for consumer, position in consumers.get(name, ()):
                op = nodes[consumer].op
                kernel = op.removeprefix("Resource").replace("SparseApply", "Apply")
                role = _SLOTS.get(kernel, {}).get(position)
                if role is not None and not (depth and kernel.startswith("Apply")):
                    roles[node.name] = role
                elif op in _READS and depth < 4 and consumer not in seen:
                    seen.add(consumer)
                    waiting.append((consumer, depth + 1))
        if node.name not in roles and node.name.endswith(("_power", "moving_variance", "/ms")):
            roles[node.name] = Role.POSITIVE
    return roles


def static_shape(shape: tensor_shape_pb2.TensorShapeProto) -> tuple[int, ...] | None:
    """The shape, or None if its rank or a dimension is unknown."""
    if shape.unknown_rank or any(d.size < 0 for d in shape.dim):
        return None
    return tuple(d.size for d in shape.dim)


@dataclasses.dataclass(frozen=True)
class InitialValue:
    """Uniform in [-limit, limit), or `constant` everywhere where limit is 0."""

    constant: bool | int | float | str
    limit: float = 0.0


def initial_value(role: Role, dtype: int, shape: Sequence[int], where: str) -> InitialValue:
    """What a variable starts with.

    Weights are uniform with Glorot's limit sqrt(6 / (fan_in + fan_out)), so that activations
    neither vanish nor overflow.

    Args:
      role: of the variable.
      dtype: DataType enum.
      shape: its static shape.
      where: what to call it in an error.

    Raises:
      PlacerError: for a dtype that has no values of its own, such as a resource.
    """
    import tensorflow as tf

    kind = tf.dtypes.as_dtype(dtype)
    if kind == tf.string:
        return InitialValue("")
    if kind == tf.bool:
        return InitialValue(False)
    if kind.is_floating:
        if role is Role.POSITIVE:
            return InitialValue(0.9)
        if role is Role.MOMENT or not shape or kind.size < 2:
            return InitialValue(0.0)
        if len(shape) == 1:
            return InitialValue(0.0, 0.1)
        field = int(np.prod(shape[:-2]))
        return InitialValue(0.0, float(np.sqrt(6.0 / max(1, field * (shape[-1] + shape[-2])))))
    if kind.is_integer or kind.is_complex:
        return InitialValue(0)
    raise PlacerError(f"{where} has dtype {kind.name}, which nothing can be made for; give a value")


def zeros(dtype: int, shape: Sequence[int], where: str) -> np.ndarray:
    """Zeros, false or empty strings; PlacerError for a dtype without values."""
    import tensorflow as tf

    kind = tf.dtypes.as_dtype(dtype)
    if kind == tf.string:
        return np.full(shape, b"", object)
    if not (kind.is_floating or kind.is_integer or kind.is_complex or kind.is_bool):
        raise PlacerError(f"{where}: no value can be made for dtype {kind.name}; feed it")
    return np.zeros(shape, kind.as_numpy_dtype)


@dataclasses.dataclass(frozen=True)
class Splat:
    """One value in a whole tensor."""

    shape: tuple[int, ...]
    value: np.ndarray


Value = np.ndarray | Splat


def tensor_proto(value: Value, dtype: int | None = None) -> tensor_pb2.TensorProto:
    """As a TensorProto; a Splat takes a few bytes, as tensor.proto lets the last value repeat.

    Args:
      value: what it holds.
      dtype: DataType enum, by default the array's own.
    """
    import tensorflow as tf

    kind = dtype and tf.dtypes.as_dtype(dtype)
    if not isinstance(value, Splat):
        return tf.make_tensor_proto(value, kind)
    proto = tf.make_tensor_proto(value.value.reshape((1,)), kind)
    proto.tensor_shape.Clear()
    for size in value.shape:
        proto.tensor_shape.dim.add(size=size)
    return proto


def input_value(
    dtype: int,
    shape: tensor_shape_pb2.TensorShapeProto,
    bound: int | None,
    seed: int,
    where: str,
) -> Value:
    """A value for an input.

    Args:
      dtype: DataType enum.
      shape: unknown dimensions become 1, an unknown rank 0.
      bound: integers are in [0, bound); None is DEFAULT_INDEX_BOUND.
      seed: with `where`, decides the values.
      where: what to call it in an error.

    Returns:
      Floats uniform in [0, 1), integers in [0, bound), true, or "0". A Splat where the tensor is
      large.

    Raises:
      PlacerError: for a dtype that has no values of its own.
    """
    import tensorflow as tf

    kind = tf.dtypes.as_dtype(dtype)
    sizes = () if shape.unknown_rank else tuple(max(d.size, -d.size) for d in shape.dim)
    blank = zeros(dtype, (), where)
    large = int(np.prod(sizes)) > MAX_RANDOM_VALUES
    generator = np.random.default_rng([seed, zlib.crc32(where.encode())])
    bound = bound or DEFAULT_INDEX_BOUND
    if kind.is_floating or kind.is_complex:
        if large:
            return Splat(sizes, np.asarray(0.5).astype(blank.dtype))
        return np.asarray(generator.random(sizes)).astype(blank.dtype)
    if kind == tf.string:
        return np.full(sizes, b"0", object)
    if kind == tf.bool:
        return np.ones(sizes, bool)
    if large:
        return Splat(sizes, np.asarray(bound // 2).astype(blank.dtype))
    limit = min(bound, int(np.iinfo(blank.dtype).max) if kind.is_integer else bound)
    return np.asarray(generator.integers(0, limit, sizes)).astype(blank.dtype)


def index_bounds(graph_def: graph_pb2.GraphDef, name: str) -> dict[int, int]:
    """For each output of op `name` that is used as an index, what it must stay below.

    Follows the output through ops that move values about to what they index: a gather's
    parameters, a one-hot's depth, a sparse cross entropy's classes.
    """
    consumers = _names(graph_def)
    nodes = {n.name: n for n in graph_def.node}
    bounds: dict[int, int] = {}
    shapes: _Shapes | None = None
    outputs = {_output(nodes[c].input[p]) for c, p in consumers.get(name, ())}
    for output in outputs:
        waiting = [
            (c, p) for c, p in consumers.get(name, ()) if _output(nodes[c].input[p]) == output
        ]
        seen: set[str] = set()
        while waiting:
            consumer, position = waiting.pop()
            node = nodes[consumer]
            size: int | None = None
            if node.op in _GATHERS and position == 1:
                shapes = shapes or _Shapes(graph_def)
                size = shapes.indexed(node)
            elif node.op == "SparseSoftmaxCrossEntropyWithLogits" and position == 1:
                shapes = shapes or _Shapes(graph_def)
                size = shapes.dimension(node.input[0], -1)
            elif node.op == "OneHot" and position == 0:
                shapes = shapes or _Shapes(graph_def)
                size = shapes.scalar(node.input[1])
            elif node.op in _INDEX_KEEPERS and consumer not in seen:
                seen.add(consumer)
                waiting += consumers.get(consumer, ())
            if size:
                bounds[output] = min(bounds.get(output, size), size)
    return bounds


def _output(name: str) -> int:
    return int(name.partition(":")[2] or 0)


def drop_absent_colocations(node: node_def_pb2.NodeDef, names: Container[str]) -> None:
    """Takes `loc:@x` of an x that is not there out of a node; TensorFlow refuses to import it."""
    if "_class" not in node.attr:
        return
    classes = node.attr["_class"].list.s
    kept = [
        c for c in classes if not c.startswith(b"loc:@") or c[len(b"loc:@") :].decode() in names
    ]
    if len(kept) < len(classes):
        del node.attr["_class"]
        if kept:
            node.attr["_class"].list.s.extend(kept)


class _Shapes:
    """Static shapes of a graph, by TensorFlow's own inference."""

    def __init__(self, graph_def: graph_pb2.GraphDef):
        import tensorflow as tf

        bare = type(graph_def)()
        bare.CopyFrom(graph_def)
        for node in bare.node:
            node.device = ""
            node.attr.pop("_class", None)
        self._nodes = {n.name: n for n in bare.node}
        self._graph = tf.Graph()
        with self._graph.as_default():
            tf.import_graph_def(bare, name="")

    def dimension(self, name: str, axis: int) -> int | None:
        shape = self._graph.get_tensor_by_name(name if ":" in name else f"{name}:0").shape
        return shape[axis] if shape.rank and -shape.rank <= axis < shape.rank else None

    def scalar(self, name: str) -> int | None:
        import tensorflow as tf

        tensor = self._graph.get_tensor_by_name(name if ":" in name else f"{name}:0")
        value = tf.get_static_value(tensor)
        return None if value is None or np.ndim(value) else int(value)

    def indexed(self, node: object) -> int | None:
        """Size of the dimension that a gather's indices index."""
        if node.op == "ResourceGather":  # type: ignore[attr-defined]
            root = node.input[0]  # type: ignore[attr-defined]
            while root.partition(":")[0] in self._nodes:
                handle = self._nodes[root.partition(":")[0]]
                if handle.op == "VarHandleOp":
                    shape = static_shape(handle.attr["shape"].shape)
                    return shape[0] if shape else None
                if not handle.input:
                    return None
                root = handle.input[0]
            return None
        axis = self.scalar(node.input[2]) if node.op == "GatherV2" else 0  # type: ignore[attr-defined]
        return self.dimension(node.input[0], axis or 0)  # type: ignore[attr-defined]
