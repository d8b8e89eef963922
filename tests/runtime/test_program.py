"""Graphs without initialisers or feeds run, and what is made up is legal."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from placer.devices import gpu_hosts
from placer.errors import PlacerError
from placer.graph.source import read
from placer.runtime import MeasurementProtocol, RunnerSettings, open_runner, synthesis
from placer.runtime.program import prepare
from tests.runtime.graphs import everywhere, stateful, two_chains

ONE_STEP = MeasurementProtocol(steps=1)
EMULATED = RunnerSettings(emulate=True, disturbance_ratio=0)


def test_every_kind_of_state_and_input_is_made_up() -> None:
    source = stateful()
    with open_runner(gpu_hosts("k80", 1), source, EMULATED) as runner:
        measured = runner.measure(everywhere(source, 1), ONE_STEP)
    assert measured.failure is None
    assert measured.seconds > 0


def test_preparation_leaves_the_source_alone_and_keeps_its_nodes_first() -> None:
    source = stateful()
    before = source.graph_def.SerializeToString(deterministic=True)
    program = prepare(source)
    assert source.graph_def.SerializeToString(deterministic=True) == before
    names = [n.name for n in source.graph_def.node]
    assert [n.name for n in program.graph_def.node][: len(names)] == names
    assert np.array_equal(program.owner[: len(names)], np.arange(len(names)))
    assert len({n.name for n in program.graph_def.node}) == len(program.graph_def.node)
    # An added node may only depend on nodes that share its owner: it must add no transfer.
    owner = {n.name: o for n, o in zip(program.graph_def.node, program.owner, strict=True)}
    for node in program.graph_def.node[len(names) :]:
        for name in node.input:
            assert owner[name.lstrip("^").split(":")[0]] == owner[node.name]


def test_indices_stay_within_what_they_index() -> None:
    source = stateful()
    assert synthesis.index_bounds(source.graph_def, "ids") == {0: 7}
    assert synthesis.index_bounds(source.graph_def, "labels") == {0: 3}
    program = prepare(source)
    ids = next(n for n in program.graph_def.node if n.name == "ids")
    value = tf.make_ndarray(ids.attr["value"].tensor)
    assert value.shape == (5, 1)
    assert value.min() >= 0
    assert value.max() < 7


def test_optimizer_slots_get_values_their_kernels_can_take() -> None:
    roles = synthesis.variable_roles(stateful().graph_def)
    assert roles["beta1_power"] is synthesis.Role.POSITIVE
    assert roles["reference/Adam"] is synthesis.Role.MOMENT
    assert "table" not in roles


def test_a_moving_variance_is_positive() -> None:
    with tf.Graph().as_default() as graph:
        variance = tf.compat.v1.get_variable("statistics", [4], use_resource=True)
        ones, x = tf.ones([4]), tf.ones([2, 3, 3, 4])
        tf.raw_ops.FusedBatchNormV3(
            x=x, scale=ones, offset=ones, mean=ones, variance=variance, is_training=False
        )
    assert synthesis.variable_roles(graph.as_graph_def())["statistics"] is synthesis.Role.POSITIVE


def test_given_values_and_feeds_are_used() -> None:
    with tf.Graph().as_default() as graph:
        variable = tf.compat.v1.get_variable("v", [2], use_resource=True)
        x = tf.compat.v1.placeholder(tf.float32, [2], name="x")
        low, high = tf.constant([3.0, 5.0]), tf.constant([3.0, 5.0])
        total = variable.read_value() + x
        tf.group(
            tf.debugging.assert_greater_equal(total, low),
            tf.debugging.assert_less_equal(total, high),
            name="check",
        )
    source = read(graph.as_graph_def(), ["check"])
    settings = RunnerSettings(
        emulate=True,
        disturbance_ratio=0,
        values={"v": np.array([1.0, 2.0], np.float32)},
        feeds=lambda batch: {"x": np.array([2.0, 3.0], np.float32)},
    )
    with open_runner("local", source, settings) as runner:
        assert runner.measure(everywhere(source, 0), ONE_STEP).failure is None
    with open_runner("local", source, EMULATED) as runner:
        assert "assertion failed" in str(runner.measure(everywhere(source, 0), ONE_STEP).failure)


def test_large_inputs_take_few_bytes() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [64, 299, 299, 3], name="x")
        tf.reduce_sum(x, name="sum")
    program = prepare(read(graph.as_graph_def(), ["sum"]))
    assert program.graph_def.ByteSize() < 2000
    value = next(n for n in program.graph_def.node if n.name == "x").attr["value"].tensor
    assert tf.make_ndarray(value).shape == (64, 299, 299, 3)


@pytest.mark.parametrize("dtype", [tf.variant, tf.resource])
def test_what_cannot_be_made_up_is_named(dtype: tf.DType) -> None:
    with tf.Graph().as_default() as graph:
        tf.identity(tf.compat.v1.placeholder(dtype, [], name="odd"), name="out")
    with pytest.raises(PlacerError, match="odd"):
        prepare(read(graph.as_graph_def(), ["out"]))


def test_an_unknown_feed_is_named() -> None:
    with pytest.raises(PlacerError, match="nobody"):
        prepare(two_chains(1, 4), feeds=["nobody:0"])


def test_what_the_step_does_not_need_is_not_initialised() -> None:
    with tf.Graph().as_default() as graph:
        missing = tf.lookup.TextFileInitializer(
            "/nowhere/vocabulary", tf.string, 0, tf.int64, 1, delimiter=" "
        )
        tf.lookup.StaticHashTable(missing, 0)
        tf.reduce_sum(tf.ones([2]), name="sum")
    program = prepare(read(graph.as_graph_def(), ["sum"]))
    assert program.initializers == ()


def test_placeholders_that_make_an_iterator_get_values() -> None:
    with tf.Graph().as_default() as graph:
        values = tf.compat.v1.placeholder(tf.float32, [4, 2], name="values")
        dataset = tf.data.Dataset.from_tensor_slices(values).repeat()
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        tf.reduce_sum(iterator.get_next(), name="sum")
    source = read(graph.as_graph_def(), ["sum"])
    with open_runner("local", source, EMULATED) as runner:
        assert runner.measure(everywhere(source, 0), ONE_STEP).failure is None


def test_a_function_of_an_iterator_is_run() -> None:
    dataset = tf.data.Dataset.from_tensors(tf.ones([4, 2]))

    @tf.function
    def step(iterator: tf.data.Iterator) -> tf.Tensor:
        return tf.reduce_sum(next(iterator))

    source = read(step.get_concrete_function(iter(dataset)))
    with open_runner("local", source, EMULATED) as runner:
        assert runner.measure(everywhere(source, 0), ONE_STEP).failure is None


def test_colocation_with_what_is_not_there_is_dropped() -> None:
    with tf.Graph().as_default() as graph:
        table = tf.compat.v1.get_variable("table", [7, 2], use_resource=True)
        ids = tf.compat.v1.placeholder(tf.int32, [5], name="ids")
        tf.reduce_sum(tf.gather(table, ids), name="sum")
    graph_def = graph.as_graph_def()
    node = next(n for n in graph_def.node if n.name == "sum")
    node.attr["_class"].list.s.extend([b"loc:@gone", b"loc:@ids"])
    source = read(graph_def, ["sum"])
    with open_runner("local", source, EMULATED) as runner:
        assert runner.measure(everywhere(source, 0), ONE_STEP).failure is None
    kept = next(n for n in prepare(source).graph_def.node if n.name == "sum")
    assert list(kept.attr["_class"].list.s) == [b"loc:@ids"]
