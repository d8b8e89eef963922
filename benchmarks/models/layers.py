"""Layers that several models share, written with plain TensorFlow ops."""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from benchmarks.models.training import TrainingGraph, Weight, scope


@dataclasses.dataclass(frozen=True)
class Dense:
    """A matrix multiplication with an optional bias; kernel [inputs, units], bias [units]."""

    kernel: Weight
    bias: Weight | None

    def __call__(self, inputs: tf.Tensor) -> tf.Tensor:
        """Maps [rows, inputs] to [rows, units], in the current scope."""
        outputs = tf.matmul(inputs, self.kernel.value(), name="MatMul")
        if self.bias is None:
            return outputs
        return tf.nn.bias_add(outputs, self.bias.value(), name="BiasAdd")


def dense(graph: TrainingGraph, path: str, inputs: int, units: int, bias: bool = True) -> Dense:
    """The weights of a `Dense` called `path`/kernel and `path`/bias."""
    kernel = graph.weight(f"{path}/kernel", [inputs, units])
    return Dense(kernel, graph.zeros(f"{path}/bias", [units]) if bias else None)


class LstmLayer:
    """A layer of LSTM cells without peepholes (Hochreiter and Schmidhuber, 1997), forget bias 1.

    Weights `<path>/kernel` [inputs + units, 4 * units] and `<path>/bias` [4 * units]. The ops of
    step t are in scope `<path>/step_<t>`.
    """

    def __init__(self, graph: TrainingGraph, path: str, batch: int, inputs: int, units: int):
        self.path = path
        self._gates = dense(graph, path, inputs + units, 4 * units)
        with scope(f"{path}/zero_state"):
            self._zero_hidden = tf.zeros([batch, units], name="hidden")
            self._zero_cell = tf.zeros([batch, units], name="cell")

    def start(self) -> tuple[tf.Tensor, tf.Tensor]:
        """The zero state (hidden, cell), each [batch, units]."""
        return self._zero_hidden, self._zero_cell

    def step(
        self, time: int, inputs: Sequence[tf.Tensor], state: tuple[tf.Tensor, tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """One cell.

        Args:
          time: number of the step, for the scope's name.
          inputs: tensors [batch, *] that together have the width the layer was made for.
          state: hidden and cell of the step before, [batch, units].

        Returns:
          hidden and cell of this step, [batch, units].
        """
        hidden, cell = state
        with scope(f"{self.path}/step_{time}"):
            gates = self._gates(tf.concat([*inputs, hidden], axis=1, name="concat"))
            write, candidate, forget, output = tf.split(gates, 4, axis=1, name="split")
            kept = tf.multiply(cell, tf.sigmoid(forget + 1.0, name="forget"), name="kept")
            written = tf.multiply(
                tf.sigmoid(write, name="write"), tf.tanh(candidate, name="candidate"), name="new"
            )
            cell = tf.add(kept, written, name="cell")
            hidden = tf.multiply(
                tf.tanh(cell, name="activation"), tf.sigmoid(output, name="output"), name="hidden"
            )
        return hidden, cell

    def run(self, inputs: Sequence[tf.Tensor], reverse: bool = False) -> list[tf.Tensor]:
        """Unrolls the layer over `inputs`, from the last to the first if `reverse`.

        Returns:
          hidden of every step, in the order of `inputs`, each [batch, units].
        """
        state = self.start()
        outputs: list[tf.Tensor | None] = [None] * len(inputs)
        order = range(len(inputs))
        for time in reversed(order) if reverse else order:
            state = self.step(time, [inputs[time]], state)
            outputs[time] = state[0]
        return [output for output in outputs if output is not None]


def embed_steps(
    graph: TrainingGraph, path: str, ids: tf.Tensor, vocabulary: int, units: int
) -> list[tf.Tensor]:
    """Looks up ids [steps, batch] in table `path`/table and cuts the result into steps.

    Returns:
      `steps` tensors [batch, units].
    """
    table = graph.weight(
        f"{path}/table", [vocabulary, units], tf.compat.v1.random_uniform_initializer(-0.1, 0.1)
    )
    with scope(path):
        vectors = tf.nn.embedding_lookup(table.variable, ids, name="lookup")
        return tf.unstack(vectors, axis=0, name="steps")


def sequence_loss(
    graph: TrainingGraph,
    path: str,
    outputs: Sequence[tf.Tensor],
    targets: tf.Tensor,
    vocabulary: int,
    by_step: bool,
) -> tf.Tensor:
    """Softmax over the vocabulary and mean cross-entropy.

    Args:
      graph: where the weights go.
      path: scope; the ops of step t are in `path`/step_<t>.
      outputs: one [batch, units] for each step.
      targets: int32 [steps, batch].
      vocabulary: number of classes.
      by_step: one matrix multiplication for each step, or one for all.

    Returns:
      scalar, in nats a token.
    """
    steps, batch = targets.shape
    units = outputs[0].shape[1]
    project = dense(graph, path, units, vocabulary)
    if not by_step:
        with scope(path):
            rows = tf.concat(outputs, axis=0, name="concat")
            labels = tf.reshape(targets, [steps * batch], name="labels")
            return tf.reduce_mean(_cross_entropy(project(rows), labels), name="mean")
    with scope(path):
        labels_by_step = tf.unstack(targets, axis=0, name="labels")
    losses = []
    for time, (output, labels) in enumerate(zip(outputs, labels_by_step, strict=True)):
        with scope(f"{path}/step_{time}"):
            losses.append(tf.reduce_mean(_cross_entropy(project(output), labels), name="mean"))
    with scope(path):
        return tf.multiply(tf.add_n(losses, name="sum"), 1.0 / steps, name="mean")


def _cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits, name="cross_entropy")


def classification_loss(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Mean cross-entropy of logits [rows, classes] against int32 labels [rows]; scalar, nats."""
    return tf.reduce_mean(_cross_entropy(logits, labels), name="mean")


def convolution(
    graph: TrainingGraph,
    path: str,
    images: tf.Tensor,
    filters: int,
    size: tuple[int, int],
    stride: int = 1,
    padding: str = "SAME",
) -> tf.Tensor:
    """A convolution without bias, NHWC, weights `path`/kernel, ops in scope `path`."""
    kernel = graph.weight(f"{path}/kernel", [*size, images.shape[3], filters])
    with scope(path):
        return tf.nn.conv2d(images, kernel.value(), [1, stride, stride, 1], padding, name="Conv2D")


def batch_norm(
    graph: TrainingGraph, path: str, images: tf.Tensor, momentum: float, scale: bool
) -> tf.Tensor:
    """Batch normalisation in training mode, with its moving averages.

    Args:
      graph: where the weights and the updates of the moving averages go.
      path: scope of the ops and names of the weights.
      images: float32 [batch, height, width, channels].
      momentum: what a step keeps of the moving averages.
      scale: whether gamma is learnt (otherwise it is one).

    Returns:
      tensor like `images`.
    """
    channels = [images.shape[3]]
    ones = tf.compat.v1.ones_initializer()
    beta = graph.zeros(f"{path}/beta", channels)
    gamma = graph.weight(f"{path}/gamma", channels, ones) if scale else None
    zeros = tf.compat.v1.zeros_initializer()
    averages = (
        graph.weight(f"{path}/moving_mean", channels, zeros, trainable=False),
        graph.weight(f"{path}/moving_variance", channels, ones, trainable=False),
    )
    with scope(path):
        if graph.options.batch_norm == "fused":
            factor = gamma.value() if gamma is not None else tf.ones(channels, name="ones")
            outputs, mean, variance = tf.compat.v1.nn.fused_batch_norm(
                images, factor, beta.value(), epsilon=1e-3, is_training=True, name="BatchNorm"
            )
        else:
            mean, variance = tf.nn.moments(images, [0, 1, 2], name="moments")
            outputs = tf.nn.batch_normalization(
                images,
                mean,
                variance,
                beta.value(),
                gamma.value() if gamma is not None else None,
                1e-3,
                name="BatchNorm",
            )
    for average, value in zip(averages, (mean, variance), strict=True):
        with scope(f"{average.variable.op.name}/update"):
            change = (average.variable.value() - value) * (1.0 - momentum)
            graph.add_update(average.variable.assign_sub(change, read_value=False))
    return outputs
