"""Models for tf.functions, and what their checks under the plugin have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import placer.plugin
from placer.graph import build_op_graph, read


def executed(call: Callable[[], Any]) -> tuple[Any, dict[str, str]]:
    """What `call` returns, and node -> device of the graphs that its functions ran."""
    from tensorflow.python.eager import context

    context.enable_run_metadata()
    result = call()
    metadata = context.export_run_metadata()
    context.disable_run_metadata()
    devices = {}
    for function in metadata.function_graphs:
        for graph in function.partition_graphs:
            devices.update({node.name: node.device for node in graph.node})
    return result, devices


def pieces(concrete: Any, devices: Sequence[str]) -> dict[str, str]:
    """Device by op: contiguous pieces of the function's graph, variables with their last users."""
    source = read(concrete)
    graph = build_op_graph(source)
    nodes = source.graph_def.node
    wanted = np.arange(len(nodes)) * len(devices) // len(nodes)
    of_group = dict(zip(graph.colocation.tolist(), wanted.tolist(), strict=True))
    return {
        node.name: devices[of_group[group]]
        for node, group in zip(nodes, graph.colocation.tolist(), strict=True)
    }


def misplaced(
    placement: dict[str, str], devices: dict[str, str], report: Any, prefix: str = ""
) -> dict[str, Any]:
    """Compares where nodes ran with the placement and with the report's list of those left."""
    left = {
        n.removeprefix(prefix) for graph in report.latest for ns in graph.left.values() for n in ns
    }
    both = [n for n in devices if n in placement]
    elsewhere = [n for n in both if devices[n] != placement[n]]
    return {
        "ran": len(both),
        "used": sorted({devices[n] for n in both}),
        "elsewhere": sorted(elsewhere),
        "unexplained": sorted(set(elsewhere) - left),
    }


class ConvNet(tf.Module):
    """A small convolutional classifier with a training step."""

    rate = 0.05

    def __init__(self) -> None:
        super().__init__()
        generator = np.random.default_rng(0)
        self.variables_ = []
        for name, shape in (
            ("conv/kernel", (3, 3, 3, 8)),
            ("conv_1/kernel", (3, 3, 8, 8)),
            ("dense/kernel", (8, 5)),
        ):
            value = generator.normal(size=shape, scale=0.3).astype(np.float32)
            self.variables_.append(tf.Variable(value, name=name))
        self.images = tf.constant(generator.normal(size=(4, 12, 12, 3)), tf.float32)

    def loss(self) -> tf.Tensor:
        first, second, dense = self.variables_
        h = tf.nn.relu(tf.nn.conv2d(self.images, first, 1, "SAME"))
        h = tf.concat([tf.nn.relu(tf.nn.conv2d(h, second, 2, "SAME")), h[:, ::2, ::2]], -1)
        h = tf.reduce_mean(h[..., :8] + h[..., 8:], [1, 2])
        return tf.reduce_mean(tf.square(tf.matmul(h, dense)))


class Lstm(tf.Module):
    """An LSTM unrolled over four steps with a training step."""

    rate = 0.05

    def __init__(self) -> None:
        super().__init__()
        generator = np.random.default_rng(1)
        kernel = generator.normal(size=(24, 64), scale=0.2).astype(np.float32)
        self.variables_ = [tf.Variable(kernel, name="lstm/kernel"), tf.Variable(tf.zeros([64]))]
        self.inputs = tf.constant(generator.normal(size=(4, 6, 8)), tf.float32)

    def loss(self) -> tf.Tensor:
        kernel, bias = self.variables_
        h = c = tf.zeros([6, 16])
        for x in tf.unstack(self.inputs):
            gates = tf.matmul(tf.concat([x, h], 1), kernel) + bias
            i, j, f, o = tf.split(gates, 4, 1)
            c = c * tf.sigmoid(f + 1.0) + tf.sigmoid(i) * tf.tanh(j)
            h = tf.tanh(c) * tf.sigmoid(o)
        return tf.reduce_sum(tf.square(h))


class Inception(tf.Module):
    """Keras' Inception-V3 on two images of the smallest size it takes, with a training step."""

    rate = 1e-4

    def __init__(self) -> None:
        super().__init__()
        tf.keras.utils.set_random_seed(1)
        self.network = tf.keras.applications.InceptionV3(
            weights=None, input_shape=(75, 75, 3), classes=10
        )
        self.variables_ = [v.value for v in self.network.trainable_variables]
        generator = np.random.default_rng(2)
        self.images = tf.constant(generator.normal(size=(2, 75, 75, 3)), tf.float32)

    def loss(self) -> tf.Tensor:
        probabilities = self.network(self.images, training=True)
        return -tf.reduce_mean(tf.math.log(probabilities[:, 3]))


MODELS = {"conv": ConvNet, "lstm": Lstm, "inception": Inception}


def training_step(model: Any) -> Any:
    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = model.loss()
        gradients = tape.gradient(loss, model.variables_)
        for variable, gradient in zip(model.variables_, gradients, strict=True):
            variable.assign_sub(model.rate * gradient)
        return loss

    return step


def train(kind: str, devices: Sequence[str], steps: int = 3) -> dict[str, Any]:
    """Steps without the plugin, all on the first device, and with it.

    With it, variables are created in the placement's scope.
    """
    tf.keras.backend.clear_session()  # Keras counts the names of layers from here.
    with tf.device(devices[0]):
        model = MODELS[kind]()
        step = training_step(model)
        base = [float(step()) for _ in range(steps)]
    concrete = training_step(model).get_concrete_function()
    placement = pieces(concrete, devices)
    graph = read(concrete).graph_def
    tf.keras.backend.clear_session()
    with placer.plugin.applied(placement, graph=graph):
        with placer.plugin.variable_scope(placement):
            model = MODELS[kind]()
        step = training_step(model)
        losses, ran = executed(lambda: [float(step()) for _ in range(steps)])
    report = placer.plugin.report()
    variables = [
        (v.name.partition(":")[0], v.device, placement[v.name.partition(":")[0]])
        for v in model.variables_
    ]
    return {
        "base": base,
        "losses": losses,
        "variables": variables,
        "moved": report.moved,
        **misplaced(placement, ran, report),
    }
