"""What a file or object holds is told by its content, and what one step fetches by its graph."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from placer.errors import PlacerError
from placer.graph import build_op_graph, read, save_graph


def _graph_def() -> graph_pb2.GraphDef:
    with tf.Graph().as_default() as graph:
        x = tf.constant([1.0, 2.0], name="x")
        tf.exp(tf.tanh(x, name="y"), name="z")
        tf.negative(x, name="w")
    return graph.as_graph_def()


def _meta_graph() -> meta_graph_pb2.MetaGraphDef:
    meta = meta_graph_pb2.MetaGraphDef(graph_def=_graph_def())
    meta.meta_info_def.tags.append("serve")
    return meta


@pytest.mark.parametrize("name", ["graph.pb", "graph.pbtxt", "graph.meta", "graph"])
@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("is_meta", [False, True])
def test_files_are_told_apart_by_content(
    name: str, text: bool, is_meta: bool, tmp_path: Path
) -> None:
    proto = _meta_graph() if is_meta else _graph_def()
    data = text_format.MessageToString(proto).encode() if text else proto.SerializeToString()
    path = tmp_path / name
    path.write_bytes(data)
    source = read(path)
    assert source.graph_def == _graph_def()
    assert source.meta_graph == (proto if is_meta else None)
    assert source.data == (None if text else data)
    assert source.fetches == ("z", "w")
    # Saved under a binary name, whatever it came as, it is the same message again.
    save_graph(source, tmp_path / "out.pb")
    assert read(tmp_path / "out.pb").meta_graph == source.meta_graph
    assert read(tmp_path / "out.pb").graph_def == source.graph_def
    if not text:
        assert (tmp_path / "out.pb").read_bytes() == data


def test_tensorflows_own_exports_are_read(tmp_path: Path) -> None:
    with tf.Graph().as_default() as graph:
        v = tf.compat.v1.get_variable("v", [3], use_resource=True)
        train = v.assign_add([1.0, 1.0, 1.0], read_value=False)
        tf.compat.v1.add_to_collection("train_op", train)
        tf.compat.v1.train.export_meta_graph(str(tmp_path / "model.meta"), clear_devices=True)
        tf.io.write_graph(graph, str(tmp_path), "text.pbtxt")
    assert read(tmp_path / "model.meta").fetches == (train.name,)
    assert read(tmp_path / "text.pbtxt").graph_def == graph.as_graph_def()
    assert read(graph).fetches == (train.name,)


def test_fetches_train_op_before_signature_before_sinks() -> None:
    meta = _meta_graph()
    assert read(meta).fetches == ("z", "w")
    meta.signature_def["serving_default"].outputs["out"].name = "y:0"
    meta.signature_def["again"].outputs["out"].name = "y:0"
    assert read(meta).fetches == ("y:0",)
    meta.collection_def["train_op"].node_list.value.append("w")
    assert read(meta).fetches == ("w",)
    assert read(meta, ["z:0"]).fetches == ("z:0",)
    assert read(meta, ["z:0"]).fetch_ops == ("z",)
    # What a pruned graph no longer has is no fetch.
    meta.collection_def["train_op"].node_list.value[:] = ["pruned"]
    assert read(meta).fetches == ("y:0",)


def test_a_step_ends_with_what_its_groups_wait_for() -> None:
    with tf.Graph().as_default() as graph:
        updates = [tf.constant(float(i), name=f"update_{i}") for i in range(4)]
        first = tf.group(*updates[:2], name="first")
        second = tf.group(*updates[1:3], first, name="second")
        tf.no_op(name="alone")
        with tf.control_dependencies([first]):
            tf.identity(updates[3], name="loss")
        tf.group(second, name="train")
    graph_def = graph.as_graph_def()
    train = read(graph_def, ["train", "loss:0"])
    assert set(train.step_ops()) == {"update_0", "update_1", "update_2", "loss"}
    assert len(train.step_ops()) == 4
    assert read(graph_def, ["alone"]).step_ops() == ("alone",)
    op_graph = build_op_graph(train)
    executed = {n for n, e in zip(op_graph.names, op_graph.executed, strict=True) if e}
    # The loss waits for the first group, wherever the step ends.
    assert executed == {*(f"update_{i}" for i in range(4)), "first", "loss"}


def test_a_graph_def_is_kept_not_copied() -> None:
    graph_def = _graph_def()
    assert read(graph_def).graph_def is graph_def


def test_a_function_computes_the_same_as_a_graph() -> None:
    weights = tf.Variable([2.0, 3.0], name="weights")
    offset = tf.constant([0.5, 0.25])

    @tf.function(input_signature=[tf.TensorSpec([2])])
    def step(x: tf.Tensor) -> tf.Tensor:
        return x * weights + offset

    source = read(step)
    assert source.initial_values["weights"].tolist() == [2.0, 3.0]
    with tf.Graph().as_default():
        tf.graph_util.import_graph_def(source.graph_def, name="")
        graph = tf.compat.v1.get_default_graph()
        handle = graph.get_tensor_by_name("weights:0")
        assign = tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant([2.0, 3.0]))
        placeholder = next(op for op in graph.get_operations() if op.type == "Placeholder")
        with tf.compat.v1.Session() as session:
            session.run(assign)
            found = session.run(source.fetches[0], {placeholder.outputs[0]: [10.0, 100.0]})
    assert found.tolist() == step(tf.constant([10.0, 100.0])).numpy().tolist()


def test_the_graph_of_a_function_is_read_as_the_function() -> None:
    weights = tf.Variable([2.0, 3.0], name="weights")
    concrete = tf.function(lambda x: x * weights).get_concrete_function(tf.TensorSpec([2]))
    found, expected = read(concrete.graph), read(concrete)
    assert found.graph_def == expected.graph_def
    assert found.fetches == expected.fetches
    assert found.initial_values["weights"].tolist() == [2.0, 3.0]


def test_a_saved_model_fetches_what_it_serves(tmp_path: Path) -> None:
    module = tf.Module()
    module.v = tf.Variable([2.0, 3.0])
    serve = tf.function(lambda x: {"y": x * module.v}).get_concrete_function(
        tf.TensorSpec([None, 2], name="x")
    )
    tf.saved_model.save(module, str(tmp_path), signatures=serve)
    saved = saved_model_pb2.SavedModel.FromString((tmp_path / "saved_model.pb").read_bytes())
    (meta,) = saved.meta_graphs
    assert "__saved_model_init_op" in meta.signature_def
    assert read(meta).fetches == (meta.signature_def["serving_default"].outputs["y"].name,)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (graph_pb2.GraphDef(), "no nodes"),
        (meta_graph_pb2.MetaGraphDef(), "no nodes"),
        (7, "int"),
        (b"bytes", "bytes"),
        ("/", "cannot read"),
        (tf.function(lambda x: x), "get_concrete_function"),
    ],
)
def test_what_is_no_graph_is_named(source: object, says: str) -> None:
    with pytest.raises(PlacerError, match=says):
        read(source)


def test_missing_fetch_is_named() -> None:
    with pytest.raises(PlacerError, match="'nobody:0'"):
        read(_graph_def(), ["z", "nobody:0"])
