"""Synthetic layered graphs of any size: columns of ops that read each other, layer by layer."""

from __future__ import annotations

from typing import Any

import numpy as np
from tensorflow.core.framework import graph_pb2, types_pb2

from placer.costs import CostOrigin, OpCosts
from placer.costs.peak import operations_per_second
from placer.devices import Topology
from placer.graph.op_graph import MAX_RANK, OpGraph
from placer.problem import PlacementProblem

# Columns; each has a weight that its multiplications read.
COLUMNS = 32
ROWS, UNITS = 64, 512
_TENSOR_BYTES = ROWS * UNITS * 4
_WEIGHT_BYTES = UNITS * UNITS * 4
FETCH = "result"


def layered_edges(num_ops: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """What the body of a graph reads.

    Op i is in layer i // COLUMNS. It reads the op above it and, for every second op at random,
    another of the layer above (else, a weight).

    Returns:
      int64[num_ops] op above (-1 in the first layer), int64[num_ops] the other (-1 for none).
    """
    rng = np.random.default_rng(seed)
    ops = np.arange(num_ops)
    above = np.where(ops < COLUMNS, -1, ops - COLUMNS)
    start = (ops // COLUMNS - 1) * COLUMNS
    other = start + rng.integers(0, COLUMNS, num_ops)
    other = np.where((rng.random(num_ops) < 0.5) & (ops >= COLUMNS), other, -1)
    return above, other


def layered_graph_def(num_ops: int, seed: int = 0) -> graph_pb2.GraphDef:
    """A graph of about `num_ops` ops, fetched as FETCH: AddV2 and MatMul of 64 x 512 matrices."""
    graph = graph_pb2.GraphDef()
    # An empty list of versions means version 0, whose shapes TensorFlow no longer infers.
    graph.versions.producer = 1882

    def add(name: str, op: str, *inputs: str) -> Any:
        node = graph.node.add(name=name, op=op)
        node.input.extend(inputs)
        return node

    shape = add("input/shape", "Const")
    shape.attr["dtype"].type = types_pb2.DT_INT32
    value = shape.attr["value"].tensor
    value.dtype = types_pb2.DT_INT32
    value.tensor_shape.dim.add(size=2)
    value.tensor_content = np.array([ROWS, UNITS], np.int32).tobytes()
    source = add("input/values", "RandomUniform", "input/shape")
    source.attr["dtype"].type = types_pb2.DT_FLOAT
    source.attr["T"].type = types_pb2.DT_INT32
    for column in range(COLUMNS):
        weight = add(f"column_{column}/weight", "VarHandleOp")
        weight.attr["dtype"].type = types_pb2.DT_FLOAT
        for _ in range(2):
            weight.attr["shape"].shape.dim.add(size=UNITS)
        weight.attr["shared_name"].s = weight.name.encode()
        value_of = add(f"column_{column}/read", "ReadVariableOp", weight.name)
        value_of.attr["dtype"].type = types_pb2.DT_FLOAT
    above, other = (a.tolist() for a in layered_edges(num_ops, seed))
    names = [f"column_{i % COLUMNS}/layer_{i // COLUMNS}" for i in range(num_ops)]
    for i, name in enumerate(names):
        first = "input/values" if above[i] < 0 else names[above[i]]
        if other[i] >= 0:
            node = add(name, "AddV2", first, names[other[i]])
        else:
            node = add(name, "MatMul", first, f"column_{i % COLUMNS}/read")
        node.attr["T"].type = types_pb2.DT_FLOAT
    last = names[-COLUMNS:]
    result = add(FETCH, "AddN", *last)
    result.attr["N"].i = len(last)
    result.attr["T"].type = types_pb2.DT_FLOAT
    return graph


def layered_problem(num_ops: int, topology: Topology, seed: int = 0) -> PlacementProblem:
    """The same kind of graph as arrays, without reading it through TensorFlow.

    Ops: COLUMNS weights, then the body; costs are an addition's and a multiplication's at the
    device's peak rates.
    """
    above, other = layered_edges(num_ops, seed)
    total = COLUMNS + num_ops
    ops = np.arange(num_ops)
    second = np.where(other >= 0, other + COLUMNS, ops % COLUMNS)
    has_first = above >= 0
    counts = np.concatenate([np.zeros(COLUMNS, np.int64), 1 + has_first])
    in_ptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    in_tensor = np.empty(int(in_ptr[-1]), np.int32)
    begin = in_ptr[COLUMNS:-1]
    in_tensor[begin[has_first]] = above[has_first] + COLUMNS
    in_tensor[begin + has_first] = second
    kind = np.concatenate([np.full(COLUMNS, 2), np.where(other >= 0, 0, 1)]).astype(np.int32)
    weight = kind == 2
    nbytes = np.where(weight, _WEIGHT_BYTES, _TENSOR_BYTES).astype(np.int64)
    shape = np.zeros((total, MAX_RANK), np.int64)
    shape[:, 0] = np.where(weight, UNITS, ROWS)
    shape[:, 1] = UNITS
    last = np.zeros(total, bool)
    last[-COLUMNS:] = True
    graph = OpGraph(
        names=tuple(
            [f"column_{c}/weight" for c in range(COLUMNS)]
            + [f"column_{i % COLUMNS}/layer_{i // COLUMNS}" for i in range(num_ops)]
        ),
        op_types=("AddV2", "MatMul", "VariableV2"),
        op_type=kind,
        out_ptr=np.arange(total + 1, dtype=np.int64),
        tensor_dtype=np.full(total, types_pb2.DT_FLOAT, np.int32),
        tensor_shape=shape,
        tensor_rank=np.full(total, 2, np.int32),
        tensor_bytes=nbytes,
        tensor_known=np.ones(total, bool),
        tensor_local_bytes=np.where(weight, 0, nbytes),
        tensor_alias=np.full(total, -1, np.int32),
        in_ptr=in_ptr,
        in_tensor=in_tensor,
        control_src=np.zeros(0, np.int32),
        control_dst=np.zeros(0, np.int32),
        executed=np.ones(total, bool),
        persistent_bytes=np.where(weight, _WEIGHT_BYTES, 0).astype(np.int64),
        colocation=np.arange(total, dtype=np.int32),
        has_kernel=np.ones((2, total), bool),
        client_ops=np.zeros(total, bool),
        requested_device=("",) * total,
        fetches=np.flatnonzero(last).astype(np.int32),
        fingerprint=f"layered-{num_ops}-{seed}",
    )
    operations = np.choose(kind, [ROWS * UNITS, 2.0 * ROWS * UNITS * UNITS, 0.0])
    moved = np.where(weight, 0, 3.0 * _TENSOR_BYTES)
    models = topology.models
    seconds = np.stack(
        [operations / operations_per_second(m) + moved / m.bytes_per_second for m in models]
    )
    costs = OpCosts(
        models,
        seconds,
        np.zeros(seconds.shape, np.int64),
        np.full(seconds.shape, CostOrigin.ESTIMATED, np.uint8),
    )
    return PlacementProblem(graph, topology, costs, np.ones((total, topology.num_devices), bool))
