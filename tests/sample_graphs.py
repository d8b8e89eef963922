"""Graphs of every kind that constrains a placement, for the tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from benchmarks import models
from placer.graph import GraphSource, read

tf1 = tf.compat.v1


@dataclasses.dataclass(frozen=True)
class Sample:
    """A graph and the tensors whose values a placement must not change."""

    source: GraphSource
    values: tuple[str, ...]


def _model(name: str) -> Sample:
    return Sample(read(models.build(name, "tiny")), ("loss:0",))


def inception_step() -> Sample:
    return _model("inception_v3")


def lstm_step() -> Sample:
    return _model("rnnlm")


def keras_function() -> Sample:
    tf.keras.utils.set_random_seed(1)
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((8, 8, 3)),
            tf.keras.layers.Conv2D(4, 3, activation="relu"),
            tf.keras.layers.BatchNormalization(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(5, activation="softmax"),
        ]
    )
    x = tf.constant(np.random.default_rng(0).normal(size=(4, 8, 8, 3)), tf.float32)
    function = tf.function(lambda: model(x)).get_concrete_function()
    source = read(function)
    return Sample(source, tuple(source.fetches))


def reference_variables() -> Sample:
    """TF1 variables are tensors of reference type; a Saver adds string and file ops."""
    with tf.Graph().as_default() as graph:
        x = tf1.random_uniform([8, 16], seed=3)
        w = tf1.Variable(tf1.random_normal([16, 4], seed=1), name="w", use_resource=False)
        b = tf1.Variable(tf.zeros([4]), name="b", use_resource=False)
        loss = tf.reduce_mean(tf.square(tf.matmul(x, w) + b), name="loss")
        tf1.train.MomentumOptimizer(0.1, 0.9).minimize(loss, name="train")
        tf1.train.Saver()
        tf1.global_variables_initializer()
        meta = tf1.train.export_meta_graph(graph=graph)
    return Sample(read(meta, ["train"]), ("loss:0", "w:0"))


def v1_while_loop() -> Sample:
    with tf.Graph().as_default() as graph:
        tf1.disable_control_flow_v2()
        try:
            w = tf1.get_variable("w", [6, 6], initializer=tf1.random_normal_initializer(seed=2))
            x = tf1.random_uniform([4, 6], seed=3)
            _, y = tf1.while_loop(
                lambda i, _: i < 5, lambda i, h: (i + 1, tf.tanh(tf.matmul(h, w))), [0, x]
            )
            z = tf1.cond(tf.reduce_sum(y) > 0, lambda: y * 2.0, lambda: y - 1.0)
            loss = tf.reduce_sum(tf.square(z), name="loss")
            step = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
            tf.group(step, name="train")
            tf1.global_variables_initializer()
        finally:
            tf1.enable_control_flow_v2()
        meta = tf1.train.export_meta_graph(graph=graph)
    return Sample(read(meta, ["train"]), ("loss:0",))


def functional_control_flow() -> Sample:
    @tf.function
    def square(v: tf.Tensor) -> tf.Tensor:
        return tf.square(v) + 1.0

    with tf.Graph().as_default() as graph:
        w = tf1.get_variable(
            "w", [6, 6], use_resource=True, initializer=tf1.random_normal_initializer(seed=2)
        )
        x = tf1.random_uniform([4, 6], seed=3)
        _, y = tf.while_loop(
            lambda i, _: i < 5, lambda i, h: (i + 1, tf.tanh(tf.matmul(h, w))), [0, x]
        )
        z = tf.cond(tf.reduce_sum(y) > 0, lambda: y * 2.0, lambda: y - 1.0)
        loss = tf.reduce_sum(square(z), name="loss")
        (gradient,) = tf.gradients(loss, [w])
        update = tf1.assign_sub(w, 0.1 * gradient)
        tf.group(update, name="train")
        tf1.global_variables_initializer()
        graph_def = graph.as_graph_def()
    assert any(n.op in ("While", "StatelessWhile") for n in graph_def.node)
    assert any(n.op in ("If", "StatelessIf") for n in graph_def.node)
    assert any(n.op in ("PartitionedCall", "StatefulPartitionedCall") for n in graph_def.node)
    return Sample(read(graph_def, ["train"]), ("loss:0",))


def table_and_strings() -> Sample:
    with tf.Graph().as_default() as graph:
        words = tf.constant(["a", "b", "c", "b"])
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(
                tf.constant(["a", "b", "c"]), tf.constant([0, 1, 2], tf.int64)
            ),
            default_value=-1,
        )
        ids = table.lookup(tf.strings.lower(words))
        embedding = tf1.get_variable(
            "e", [3, 8], initializer=tf1.random_normal_initializer(seed=2), use_resource=True
        )
        tf.reduce_sum(tf.square(tf.nn.embedding_lookup(embedding, ids)), name="loss")
        variables = tf1.global_variables_initializer()
        tf.group(variables, tf1.tables_initializer(), name="init_all")
        meta = tf1.train.export_meta_graph(graph=graph)
        meta.collection_def["init_op"].node_list.value[:] = ["init_all"]
    return Sample(read(meta, ["loss"]), ("loss:0",))


def user_devices() -> Sample:
    """Full and partial devices that the user fixed; GPU names, as on the topology of the tests."""
    with tf.Graph().as_default() as graph:
        x = tf1.random_uniform([8, 16], seed=3)
        with tf.device("/device:GPU:1"):
            w = tf1.get_variable(
                "w", [16, 16], initializer=tf1.random_normal_initializer(seed=1), use_resource=True
            )
            a = tf.matmul(x, w, name="on_gpu_1")
        with tf.device("/cpu:0"):
            b = tf.matmul(x, w + 0.0, name="on_cpu")
        with tf.device("/job:localhost/task:0/GPU:*"):
            c = tf.matmul(a, b, transpose_b=True, name="on_any_gpu")
        tf.reduce_sum(c, name="loss")
        tf1.global_variables_initializer()
        graph_def = graph.as_graph_def()
    return Sample(read(graph_def, ["loss"]), ("loss:0",))


SAMPLES: dict[str, Callable[[], Sample]] = {
    f.__name__: f
    for f in (
        inception_step,
        lstm_step,
        keras_function,
        reference_variables,
        v1_while_loop,
        functional_control_flow,
        table_and_strings,
        user_devices,
    )
}
