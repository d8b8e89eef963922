"""Stated estimates for what Grappler does not cost: unknown dimensions and unknown op types.

An unknown dimension that begins at an op (Unique, Where, a boolean mask...) is taken to be as large
as it can get from that op's largest input; ops behind it inherit it. Grappler counts it as 1.

An op type that Grappler does not know moves its inputs and outputs through memory, as Grappler
says, and does one operation an element of its largest tensor, or what the tables here say.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from tensorflow.core.framework import node_def_pb2

from placer.costs.known_ops import FREE_OPS, KNOWN_OPS, MINIMUM_OPS
from placer.graph.kernels import attribute
from placer.graph.op_graph import OpGraph

# Outputs share a buffer or carry no data, as with Grappler's minimum-cost ops.
_PASSING_OPS = frozenset(
    [
        "Assert",
        "CheckNumerics",
        "ControlTrigger",
        "EnsureShape",
        "LoopCond",
        "PlaceholderV2",
        "PlaceholderWithDefault",
        "RefEnter",
        "RefExit",
        "RefMerge",
        "RefNextIteration",
        "RefSwitch",
        "Snapshot",
        "_Arg",
        "_DeviceArg",
        "_DeviceRetval",
        "_Retval",
    ]
)
# As many elements can come out as go in, whatever the shape of the input.
_FLATTENING_OPS = frozenset(
    ["Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2", "Where"]
)
# Outputs of unknown shape that hold next to nothing: the scratch space of cuDNN's batch norm.
_EMPTY_OUTPUTS = {"FusedBatchNormV3": 5, "_FusedBatchNormEx": 5}
# As many operations an element as Grappler counts for FusedBatchNorm in training and its gradient.
_OPERATIONS_PER_ELEMENT = {
    "FusedBatchNormV2": 4,
    "FusedBatchNormV3": 4,
    "_FusedBatchNormEx": 4,
    "FusedBatchNormGradV2": 11,
    "FusedBatchNormGradV3": 11,
    "_FusedBatchNormGradEx": 11,
}
_MATMULS = frozenset(["BatchMatMulV3", "_FusedMatMul", "_FusedBatchMatMulV2", "_MklMatMul"])
# Convolutions: the input that has a number for every multiply-add of one filter application, and
# the one (None: output 0) that holds the filter. The filter's last dimension is the output depth.
_CONVOLUTIONS: dict[str, tuple[int | None, int | None]] = {
    "Conv3D": (None, 1),
    "_FusedConv2D": (None, 1),
    "Conv3DBackpropInput": (2, 1),
    "Conv3DBackpropInputV2": (2, 1),
    "Conv3DBackpropFilter": (2, None),
    "Conv3DBackpropFilterV2": (2, None),
}
# Recurrent layers in one op: the sequence [time, batch, inputs] or cell input [batch, inputs], the
# weights that every row of it meets, and how often (forward 1, gradient 2).
_RECURRENT: dict[str, tuple[int, int, int]] = {
    "BlockLSTM": (1, 4, 1),
    "BlockLSTMV2": (1, 4, 1),
    "BlockLSTMGrad": (1, 4, 2),
    "BlockLSTMGradV2": (1, 4, 2),
    "LSTMBlockCell": (0, 3, 1),
    "CudnnRNN": (0, 3, 1),
    "CudnnRNNV2": (0, 3, 1),
    "CudnnRNNV3": (0, 3, 1),
    "CudnnRNNBackprop": (0, 3, 2),
    "CudnnRNNBackpropV2": (0, 3, 2),
    "CudnnRNNBackpropV3": (0, 3, 2),
}
# Dense linear algebra: cubic in the last dimension.
_CUBIC = frozenset(
    [
        "Cholesky",
        "CholeskyGrad",
        "LogMatrixDeterminant",
        "MatrixDeterminant",
        "MatrixExponential",
        "MatrixInverse",
        "MatrixSolve",
        "MatrixSolveLs",
        "MatrixTriangularSolve",
        "Qr",
        "SelfAdjointEigV2",
        "Svd",
    ]
)


@dataclasses.dataclass(frozen=True, eq=False)
class Sizes:
    """Sizes of T tensors, unknown dimensions included.

    Attributes:
      elements: float64[T]; as the shape says where it is known.
      unknown_dimension: float64[T]; what its unknown dimension was taken to be, 0 where known.
    """

    elements: np.ndarray
    unknown_dimension: np.ndarray


def estimate_sizes(graph: OpGraph) -> Sizes:
    """Element counts of all tensors of a graph; see the module's docstring."""
    within = np.arange(graph.tensor_shape.shape[1])[None, :] < graph.tensor_rank[:, None]
    shape = np.where(within & (graph.tensor_shape >= 0), graph.tensor_shape, 1)
    elements = shape.astype(np.float64).prod(axis=1)
    dimension = np.zeros(elements.size)
    if graph.tensor_known.all():
        return Sizes(elements, dimension)
    unknown_op = np.zeros(graph.num_ops, bool)
    unknown_op[graph.tensor_op[~graph.tensor_known]] = True
    for op in graph.topological_order()[unknown_op[graph.topological_order()]].tolist():
        inputs = graph.in_tensor[graph.in_ptr[op] : graph.in_ptr[op + 1]]
        size = 1.0
        largest = 1.0
        if inputs.size:
            inherited = float(dimension[inputs].max())
            source = int(inputs[elements[inputs].argmax()])
            largest = float(elements[source])
            if graph.type_of(op) in _FLATTENING_OPS:
                size = largest
            elif inherited > 0:
                size = inherited
            elif graph.tensor_rank[source] > 0:
                size = float(max(shape[source, 0], 1))
        for t in range(graph.out_ptr[op], graph.out_ptr[op + 1]):
            if graph.tensor_known[t]:
                continue
            if t - graph.out_ptr[op] == _EMPTY_OUTPUTS.get(graph.type_of(op)):
                continue
            dimension[t] = max(size, 1.0)
            if graph.tensor_rank[t] < 0:
                elements[t] = largest
            else:
                elements[t] *= dimension[t]
    return Sizes(elements, dimension)


@dataclasses.dataclass(frozen=True, eq=False)
class Estimate:
    """Work of N ops after estimates.

    Attributes:
      operations, bytes: float64[N].
      minimum: bool[N]; the op costs the minimum instead.
      estimated: bool[N]; the figures are not Grappler's alone.
    """

    operations: np.ndarray
    bytes: np.ndarray
    minimum: np.ndarray
    estimated: np.ndarray


def estimate_work(
    graph: OpGraph,
    nodes: list[node_def_pb2.NodeDef],
    operations: np.ndarray,
    moved: np.ndarray,
    measured: np.ndarray,
) -> Estimate:
    """Fills in what Grappler's counts lack.

    Args:
      graph: N ops.
      nodes: the N NodeDefs.
      operations, moved: float64[N] Grappler's counts of operations and bytes.
      measured: bool[N]; Grappler counted the op.
    """
    sizes = estimate_sizes(graph)
    minimum_types = MINIMUM_OPS | _PASSING_OPS
    known_types = KNOWN_OPS | _PASSING_OPS
    type_known = np.array([t in known_types for t in graph.op_types], bool)[graph.op_type]
    minimum = np.array([t in minimum_types for t in graph.op_types], bool)[graph.op_type]
    free = np.array([t in FREE_OPS for t in graph.op_types], bool)[graph.op_type]
    dimension = np.ones(graph.num_ops)
    np.maximum.at(dimension, graph.tensor_op, sizes.unknown_dimension)
    np.maximum.at(dimension, graph.edge_dst, sizes.unknown_dimension[graph.in_tensor])
    shape_unknown = np.zeros(graph.num_ops, bool)
    shape_unknown[graph.tensor_op[~graph.tensor_known]] = True
    shape_unknown[graph.edge_dst[~graph.tensor_known[graph.in_tensor]]] = True

    operations, moved = operations.copy(), moved.copy()
    item_bytes = graph.tensor_bytes / np.maximum(_counted_elements(graph), 1)
    tensor_bytes = sizes.elements * item_bytes
    through_memory = _through_memory(graph, tensor_bytes)
    # Grappler counts an unknown dimension as 1, and its counts are linear in each dimension.
    scaled = shape_unknown & measured & ~minimum
    operations[scaled] *= dimension[scaled]
    moved[scaled] = np.maximum(moved, through_memory)[scaled]
    uncosted = ~measured
    moved[uncosted] = through_memory[uncosted]
    for op in np.flatnonzero(~minimum & ~free & (~type_known | uncosted)).tolist():
        operations[op] = _operations(graph, nodes[op], op, sizes.elements)
        moved[op] = max(moved[op], _resource_bytes(graph, op, tensor_bytes))
    estimated = ~(type_known & measured) | (shape_unknown & ~free)
    moved[minimum | free] = 0.0
    operations[minimum | free] = 0.0
    return Estimate(operations, moved, minimum, estimated)


def _counted_elements(graph: OpGraph) -> np.ndarray:
    within = np.arange(graph.tensor_shape.shape[1])[None, :] < graph.tensor_rank[:, None]
    shape = np.where(within & (graph.tensor_shape >= 0), graph.tensor_shape, 1)
    return shape.astype(np.float64).prod(axis=1)


def _through_memory(graph: OpGraph, tensor_bytes: np.ndarray) -> np.ndarray:
    """float64[N]: bytes of all inputs and outputs of each op."""
    outputs = np.bincount(graph.tensor_op, tensor_bytes, minlength=graph.num_ops)
    inputs = np.bincount(graph.edge_dst, tensor_bytes[graph.in_tensor], minlength=graph.num_ops)
    return outputs + inputs


def _operations(graph: OpGraph, node: node_def_pb2.NodeDef, op: int, elements: np.ndarray) -> float:
    """Arithmetic operations of one op of a type that Grappler does not know."""
    inputs = graph.in_tensor[graph.in_ptr[op] : graph.in_ptr[op + 1]]
    outputs = np.arange(graph.out_ptr[op], graph.out_ptr[op + 1])

    def last_dimension(tensor: int, transposed: bool = False) -> float:
        rank = int(graph.tensor_rank[tensor])
        position = rank - 2 if transposed else rank - 1
        return float(max(graph.tensor_shape[tensor, position], 1)) if position >= 0 else 1.0

    tensors = np.concatenate([inputs, outputs])
    largest = float(elements[tensors].max()) if tensors.size else 0.0
    kind = node.op
    if kind in _MATMULS and len(inputs) >= 2 and len(outputs):
        transposed = attribute(node, "adj_x").b or attribute(node, "transpose_a").b
        return 2.0 * elements[outputs[0]] * last_dimension(inputs[0], transposed)
    if kind in _CONVOLUTIONS and len(inputs) >= 2 and len(outputs):
        image_input, filter_input = _CONVOLUTIONS[kind]
        image = outputs[0] if image_input is None else inputs[min(image_input, len(inputs) - 1)]
        weights = outputs[0] if filter_input is None else inputs[filter_input]
        return 2.0 * elements[image] * elements[weights] / last_dimension(weights)
    if kind in _RECURRENT:
        sequence, weights, passes = _RECURRENT[kind]
        if len(inputs) > max(sequence, weights):
            rows = elements[inputs[sequence]] / last_dimension(inputs[sequence])
            return 2.0 * passes * rows * elements[inputs[weights]]
    if kind in _CUBIC and inputs.size:
        return float(elements[inputs[0]]) * last_dimension(inputs[0])
    return _OPERATIONS_PER_ELEMENT.get(kind, 1) * largest


def _resource_bytes(graph: OpGraph, op: int, tensor_bytes: np.ndarray) -> float:
    """Bytes moved by an op that reads or updates variables through their handles, or 0.

    Grappler sees the handles only. A sparse or dense update reads and writes as much of each
    variable as its update holds; a gather reads what it returns.
    """
    kind = graph.type_of(op)
    inputs = graph.in_tensor[graph.in_ptr[op] : graph.in_ptr[op + 1]]
    total = float(tensor_bytes[inputs].sum())
    if kind.startswith("ResourceGather"):
        outputs = tensor_bytes[graph.out_ptr[op] : graph.out_ptr[op + 1]]
        return total + 2.0 * float(outputs.sum())
    if kind.startswith(("ResourceApply", "ResourceSparseApply", "ResourceScatter")):
        variables = int((graph.tensor_dtype[inputs] == _DT_RESOURCE).sum())
        return total + 2.0 * variables * float(tensor_bytes[inputs].max(initial=0.0))
    return 0.0


_DT_RESOURCE = 20
