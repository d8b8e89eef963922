"""The arrays of a graph against naive traversals and against what TensorFlow says of it."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from placer.errors import PlacerError
from placer.graph import OpGraph, build_op_graph, kernel_types, read, topological_order
from placer.pipeline import prepare


@st.composite
def _edges(draw: st.DrawFn, acyclic: bool) -> tuple[int, list[tuple[int, int]]]:
    n = draw(st.integers(1, 12))
    rank = draw(st.permutations(range(n)))
    pairs = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=30))
    if acyclic:
        pairs = [(a, b) if rank[a] < rank[b] else (b, a) for a, b in pairs if a != b]
    return n, pairs


def _kahn(n: int, edges: list[tuple[int, int]]) -> list[list[int]]:
    """Levels of Kahn's algorithm, one edge at a time; misses what is on or behind cycles."""
    done: set[int] = set()
    levels = []
    while True:
        ready = [
            i for i in range(n) if i not in done and all(s in done for s, d in edges if d == i)
        ]
        if not ready:
            return levels
        levels.append(ready)
        done.update(ready)


@hypothesis.given(st.booleans().flatmap(_edges))
@hypothesis.settings(deadline=None, max_examples=200)
def test_topological_order_is_kahns(graph: tuple[int, list[tuple[int, int]]]) -> None:
    n, edges = graph
    src, dst = (np.array([e[k] for e in edges], np.int32) for k in (0, 1))
    expected = [i for level in _kahn(n, edges) for i in level]
    assert topological_order(n, src, dst).tolist() == expected


@hypothesis.given(_edges(acyclic=True), st.data())
@hypothesis.settings(deadline=None, max_examples=25)
def test_edges_and_executed_ops(
    graph: tuple[int, list[tuple[int, int]]], data: st.DataObject
) -> None:
    n, edges = graph
    is_control = [data.draw(st.booleans()) for _ in edges]
    graph_def = graph_pb2.GraphDef()
    for i in range(n):
        reads = [s for (s, d), c in zip(edges, is_control, strict=True) if d == i and not c]
        waits = [s for (s, d), c in zip(edges, is_control, strict=True) if d == i and c]
        node = graph_def.node.add(name=f"n{i}", op="AddN" if reads else "Const")
        node.input.extend([f"n{s}" for s in reads] + [f"^n{s}" for s in waits])
        if reads:
            node.attr["N"].i = len(reads)
            node.attr["T"].type = tf.float32.as_datatype_enum
        else:
            node.attr["dtype"].type = tf.float32.as_datatype_enum
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto([1.0, 2.0]))
    fetch = data.draw(st.integers(0, n - 1))
    found = build_op_graph(read(graph_def, [f"n{fetch}"]))
    pairs = list(zip(found.edge_src.tolist(), found.edge_dst.tolist(), strict=True))
    controls = list(zip(found.control_src.tolist(), found.control_dst.tolist(), strict=True))
    assert sorted(pairs) == sorted(e for e, c in zip(edges, is_control, strict=True) if not c)
    assert sorted(controls) == sorted(e for e, c in zip(edges, is_control, strict=True) if c)
    needed = {fetch}
    while more := {s for s, d in edges if d in needed} - needed:
        needed |= more
    assert np.flatnonzero(found.executed).tolist() == sorted(needed)
    assert found.tensor_bytes.tolist() == [8] * n
    assert found.tensor_known.all()


def test_buffers_that_are_shared_are_not_counted_twice() -> None:
    with tf.Graph().as_default() as graph:
        v = tf.compat.v1.get_variable("v", [4, 5], use_resource=True)
        x = tf.identity(v.read_value(), name="same")
        r = tf.reshape(x, [20], name="flat")
        tf.identity_n([r, x], name="both")
        tf.exp(r, name="new")
    found = build_op_graph(read(graph.as_graph_def(), ["both", "new"]))
    index = {name: i for i, name in enumerate(found.names)}

    def of(op: str, values: np.ndarray) -> list[int]:
        i = index[op]
        return values[found.out_ptr[i] : found.out_ptr[i + 1]].tolist()

    assert of("same", found.tensor_alias) == [0]
    assert of("flat", found.tensor_alias) == [0]
    assert of("both", found.tensor_alias) == [0, 1]
    assert of("new", found.tensor_alias) == [-1]
    assert of("both", found.tensor_bytes) == [80, 80]
    assert found.persistent_bytes[index["v"]] == 80
    read_op = next(i for i in found.names if "ReadVariableOp" in i)
    assert of(read_op, found.tensor_bytes) == [80]
    assert of(read_op, found.tensor_local_bytes) == [0]
    # The variable and what holds its handle are one colocation group; its readers' results not.
    assert found.colocation[index[read_op]] == found.colocation[index["v"]]
    assert found.colocation[index["new"]] != found.colocation[index["v"]]


@hypothesis.given(st.lists(st.lists(st.integers(0, 9), max_size=2), min_size=6, max_size=6))
@hypothesis.settings(deadline=None, max_examples=40)
def test_class_attributes_join_also_through_absent_names(classes: list[list[int]]) -> None:
    graph_def = graph_pb2.GraphDef()
    for i, names in enumerate(classes):  # n6 to n9 are absent
        node = graph_def.node.add(name=f"n{i}", op="Const")
        node.attr["dtype"].type = tf.float32.as_datatype_enum
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(1.0))
        node.attr["_class"].list.s.extend([f"loc:@n{c}".encode() for c in names])
        node.attr["_class"].list.s.append(b"of no concern")
    label = list(range(10))
    for i, names in enumerate(classes):
        for c in names:
            label = [label[i] if x == label[c] else x for x in label]
    found = build_op_graph(read(graph_def)).colocation
    for a in range(6):
        for b in range(6):
            assert (found[a] == found[b]) == (label[a] == label[b])


def test_a_v1_loop_has_no_cycle_and_other_cycles_are_named() -> None:
    with tf.Graph().as_default() as graph:
        tf.compat.v1.disable_control_flow_v2()
        try:
            tf.compat.v1.while_loop(lambda i: i < 5, lambda i: i + 1, [tf.constant(0)])
        finally:
            tf.compat.v1.enable_control_flow_v2()
    found = build_op_graph(read(graph.as_graph_def()))
    assert len(found.topological_order()) == found.num_ops

    graph_def = graph_pb2.GraphDef()
    for name, source in (("a", "b"), ("b", "a"), ("c", "b")):
        node = graph_def.node.add(name=name, op="Tanh", input=[source])
        node.attr["T"].type = tf.float32.as_datatype_enum
    with pytest.raises(PlacerError, match=r"cycle.*'a'.*'b'|cycle.*'b'.*'a'"):
        build_op_graph(read(graph_def))


def _v1_loop(devices: dict[str, str]) -> graph_pb2.GraphDef:
    """A loop of two products and a sum, on these devices by op name."""
    with tf.Graph().as_default() as graph:
        tf.compat.v1.disable_control_flow_v2()
        try:
            start = [tf.constant(0.0), tf.random.uniform([8, 8])]

            def body(i: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                y = tf.matmul(y, y, name="first")
                y = tf.matmul(y, y, name="second")
                return i + 1.0, tf.add(y, 1.0, name="sum")

            tf.while_loop(lambda i, _: i < 5.0, body, start, name="loop")
        finally:
            tf.compat.v1.enable_control_flow_v2()
    graph_def = graph.as_graph_def()
    for node in graph_def.node:
        node.device = devices.get(node.name.removeprefix("loop/"), "")
    return graph_def


def _groups_of_loop(found: OpGraph) -> dict[int, set[str]]:
    """Colocation group -> its ops, of those in the loop that a GPU can run."""
    groups: dict[int, set[str]] = {}
    for i, name in enumerate(found.names):
        if name.startswith("loop/") and found.has_kernel[1, i]:
            groups.setdefault(int(found.colocation[i]), set()).add(name.removeprefix("loop/"))
    return groups


@pytest.mark.parametrize("device", ["", "/device:GPU:1", "/job:localhost", "/job:*"])
@pytest.mark.parametrize("op", ["first", "sum", "Merge"])
def test_a_loop_follows_its_op_that_has_a_device(device: str, op: str) -> None:
    problem = prepare(_v1_loop({op: device}), None, "k80:2").problem
    assert len(_groups_of_loop(problem.graph)) == 1
    if device == "/device:GPU:1":
        at = problem.graph.names.index("loop/second")
        assert np.flatnonzero(problem.allowed[at]).tolist() == [2]


def test_an_op_on_the_cpu_does_not_take_its_loop_there() -> None:
    problem = prepare(_v1_loop({"first": "/cpu:0"}), None, "k80:2").problem
    groups = _groups_of_loop(problem.graph)
    assert len(groups) == 2
    assert {"first"} in groups.values()
    at = problem.graph.names.index("loop/second")
    assert np.flatnonzero(problem.allowed[at]).tolist() == [0, 1, 2]


def test_ops_of_a_loop_on_different_devices_stay_apart() -> None:
    graph_def = _v1_loop({"first": "/gpu:0", "second": "/gpu:1"})
    groups = _groups_of_loop(build_op_graph(read(graph_def)))
    assert len(groups) == 2
    assert {"second"} in groups.values()
    # Devices that are forgotten keep nothing apart, be they none at all.
    for node in graph_def.node:
        node.device = {"loop/sum": "here", "loop/second": "/gpu:7"}.get(node.name, node.device)
    prepared = prepare(graph_def, None, "k80:2", clear_devices=True)
    assert len(_groups_of_loop(prepared.problem.graph)) == 1
    assert prepared.came is None
    with pytest.raises(PlacerError, match=r"'loop/sum'.*'here'"):
        prepare(_v1_loop({"sum": "here"}), None, "k80:2")


def test_reading_a_graph_changes_nothing_of_it() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [4, 32, 16], name="x")
        y = tf.raw_ops.BatchMatMulV3(x=x, y=x, Tout=tf.float32, adj_y=True)
        size = tf.raw_ops.Shape(input=tf.compat.v1.placeholder(tf.float32, [7, 2]))[0]
        loop = [lambda i, t: i < size, lambda i, t: (i + 1, t * 2.0), [0, y]]
        outputs = [tf.while_loop(*loop)[1]]
        tf.compat.v1.disable_control_flow_v2()
        try:
            outputs.append(tf.while_loop(*loop)[1])
        finally:
            tf.compat.v1.enable_control_flow_v2()
        v = tf.compat.v1.get_variable("v", [16, 16], use_resource=True)
        tf.add_n([tf.reduce_sum(o) for o in [*outputs, v.read_value()]], name="out")
    for stripped in (False, True):
        with graph.as_default():
            meta = tf.compat.v1.train.export_meta_graph(strip_default_attrs=stripped)
        before = meta.graph_def.SerializeToString(deterministic=True)
        prepared = prepare(meta, ["out"], "k80:2")
        assert meta.graph_def.SerializeToString(deterministic=True) == before
        assert set(prepared.problem.costs.trip_count_source.values()) == {(7.0, "loop bound")}


def test_dimensions_past_32_bits() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [2**31, 3], name="x")
        tf.tanh(x, name="y")
    found = prepare(graph, None, "k80:2").problem.graph
    assert found.tensor_shape[:, :2].tolist() == [[2**31, 3]] * 2
    assert found.tensor_bytes.tolist() == [2**31 * 3 * 4] * 2


def _sample() -> graph_pb2.GraphDef:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [2, 3], name="x")
        v = tf.compat.v1.get_variable("v", [3, 4], use_resource=True)
        a, b, c = tf.split(tf.tanh(x), 3, axis=1)
        y = tf.concat([tf.matmul(x, v), tf.reshape(c, [2, 1])], 1)
        tf.while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, t * 2), [0, y])
        tf.add_n([a, b], name="out")
    return graph.as_graph_def()


_SAMPLE = _sample()
_INPUTS = ("x", "", "^", "^x", "x:0", "x:-1", "x:99999999999", "v:0", "^nobody", ":", ":0")
_NODE_NAMES = ("", "x", "a b", "^x", "x:0", "/", "é")
_NUMBERS = (-1, 0, 10**12)
_TYPES = (0, 1, 7, 20, 101, 999)
_CLASSES = (b"loc:@\xff", b"loc:@x", b"loc:@", b"loc:@v")


@hypothesis.given(st.data())
@hypothesis.settings(deadline=None, max_examples=400)
def test_a_damaged_graph_is_read_or_refused(data: st.DataObject) -> None:
    graph_def = graph_pb2.GraphDef.FromString(_SAMPLE.SerializeToString())
    inner = [n for f in graph_def.library.function for n in f.node_def]
    for _ in range(data.draw(st.integers(1, 2))):
        node = data.draw(st.sampled_from([*graph_def.node, *inner]))
        kind = data.draw(st.sampled_from(["input", "op", "drop", "change", "class", "name"]))
        key = data.draw(st.sampled_from(sorted(node.attr))) if node.attr else None
        if kind == "input" and node.input:
            position = data.draw(st.integers(0, len(node.input) - 1))
            node.input[position] = data.draw(st.sampled_from(_INPUTS))
        elif kind == "op":
            node.op = data.draw(st.sampled_from(sorted({n.op for n in _SAMPLE.node})))
        elif kind == "drop" and key is not None:
            del node.attr[key]
        elif kind == "change" and key is not None:
            if data.draw(st.booleans()):
                node.attr[key].i = data.draw(st.sampled_from(_NUMBERS))
            else:
                node.attr[key].type = data.draw(st.sampled_from(_TYPES))
        elif kind == "class":
            node.attr["_class"].list.s.append(data.draw(st.sampled_from(_CLASSES)))
        elif kind == "name":
            node.name = data.draw(st.sampled_from(_NODE_NAMES))
    try:
        prepared = prepare(graph_def, None, "k80:2")
    except PlacerError:
        return
    assert prepared.problem.graph.num_ops == len(graph_def.node)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda nodes: setattr(nodes["split"].attr["num_split"], "i", 10**12), "num_split"),
        (lambda nodes: setattr(nodes["out"], "name", "x:0"), "'x:0'"),
    ],
)
def test_damage_is_named(damage, says: str) -> None:
    graph_def = graph_pb2.GraphDef.FromString(_SAMPLE.SerializeToString())
    damage({n.name: n for n in graph_def.node})
    with pytest.raises(PlacerError, match=says):
        build_op_graph(read(graph_def))


@pytest.mark.parametrize("shuffles", [False, True])
@pytest.mark.parametrize("kind", ["while", "if"])
def test_a_functional_loop_runs_where_all_of_its_body_can(kind: str, shuffles: bool) -> None:
    """TensorFlow gives the body's ops the loop's device, and RandomShuffle has no GPU kernel."""

    def body(x: tf.Tensor) -> tf.Tensor:
        return tf.random.shuffle(x) if shuffles else tf.matmul(x, x)

    with tf.Graph().as_default() as graph:
        x = tf.random.uniform([4, 4])
        if kind == "while":
            y = tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, body(x)), (0, x))[1]
        else:
            y = tf.cond(tf.reduce_sum(x) > 0, lambda: body(x), lambda: x)
        tf.identity(y, name="out")
    graph_def = graph.as_graph_def()
    found = kernel_types(graph_def)
    number = next(
        i
        for i, n in enumerate(graph_def.node)
        if n.op in ("While", "StatelessWhile", "If", "StatelessIf")
    )
    assert found[:, number].tolist() == [True, not shuffles]


def test_a_body_s_op_with_a_device_of_its_own_does_not_bind_the_loop() -> None:
    def body(i: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.device("/device:CPU:0"):
            return i + 1, tf.random.shuffle(x)

    with tf.Graph().as_default() as graph:
        y = tf.while_loop(lambda i, _: i < 3, body, (0, tf.random.uniform([4, 4])))[1]
        tf.identity(y, name="out")
    graph_def = graph.as_graph_def()
    number = next(i for i, n in enumerate(graph_def.node) if n.op.endswith("While"))
    assert kernel_types(graph_def)[1, number]
