"""Transformer, encoder and decoder (Vaswani et al., 2017, arXiv 1706.03762)."""

import tensorflow as tf

from benchmarks.models.layers import Dense, classification_loss, dense
from benchmarks.models.training import TrainingGraph, scope
from placer.errors import PlacerError


class _Stack:
    """Adds sublayers over values of shape [batch * steps, units] (normalised before each)."""

    def __init__(self, graph: TrainingGraph, batch: int, steps: int, units: int, heads: int):
        self._graph = graph
        self._batch, self._steps, self._units, self._heads = batch, steps, units, heads

    def embed(self, path: str, ids: tf.Tensor, vocabulary: int) -> tf.Tensor:
        """Token and position embeddings of ids [batch, steps]."""
        initializer = tf.compat.v1.random_normal_initializer(stddev=self._units**-0.5)
        tokens = self._graph.weight(f"{path}/table", [vocabulary, self._units], initializer)
        places = self._graph.weight(f"{path}/places", [self._steps, self._units], initializer)
        with scope(path):
            vectors = tf.nn.embedding_lookup(tokens.variable, ids, name="lookup")
            vectors = tf.add(vectors, places.value(), name="add")
            return tf.reshape(vectors, [self._batch * self._steps, self._units], name="rows")

    def normalise(self, path: str, values: tf.Tensor) -> tf.Tensor:
        """Layer normalisation with learnt scale and offset."""
        ones = tf.compat.v1.ones_initializer()
        scale = self._graph.weight(f"{path}/scale", [self._units], ones)
        offset = self._graph.zeros(f"{path}/offset", [self._units])
        with scope(path):
            mean, variance = tf.nn.moments(values, axes=[1], keepdims=True)
            return tf.nn.batch_normalization(
                values, mean, variance, offset.value(), scale.value(), 1e-6
            )

    def attention(
        self, path: str, values: tf.Tensor, memory: tf.Tensor | None, causal: bool = False
    ) -> tf.Tensor:
        """Multi-head attention over `memory` (`values` themselves if None), and the residual."""
        units = self._units
        queries = self.normalise(f"{path}/norm", values)
        memory = queries if memory is None else memory
        project = {
            name: dense(self._graph, f"{path}/{name}", units, units, bias=False)
            for name in ("query", "key", "value", "output")
        }
        query = self._heads_of(f"{path}/query", project["query"], queries)
        key = self._heads_of(f"{path}/key", project["key"], memory)
        value = self._heads_of(f"{path}/value", project["value"], memory)
        with scope(path):
            scores = tf.matmul(query, key, transpose_b=True, name="scores")
            scores = tf.multiply(scores, (units // self._heads) ** -0.5, name="scaled")
            if causal:
                scores = tf.add(scores, self._causal_mask(), name="masked")
            weights = tf.nn.softmax(scores, name="weights")
            mixed = tf.transpose(tf.matmul(weights, value, name="mixed"), [0, 2, 1, 3])
            rows = tf.reshape(mixed, [self._batch * self._steps, units], name="rows")
            return tf.add(values, project["output"](rows), name="residual")

    def _heads_of(self, path: str, project: Dense, values: tf.Tensor) -> tf.Tensor:
        """Projects to [batch, heads, steps, units / heads]."""
        with scope(path):
            shape = [self._batch, self._steps, self._heads, self._units // self._heads]
            return tf.transpose(tf.reshape(project(values), shape), [0, 2, 1, 3], name="heads")

    def _causal_mask(self) -> tf.Tensor:
        """[steps, steps]: 0 where a step may look, a large negative number where it may not."""
        ones = tf.ones([self._steps, self._steps])
        return tf.multiply(tf.subtract(ones, tf.linalg.band_part(ones, -1, 0)), -1e9, name="mask")

    def feed_forward(self, path: str, values: tf.Tensor, width: int) -> tf.Tensor:
        """Two dense layers with ReLU between them, and the residual."""
        normal = self.normalise(f"{path}/norm", values)
        expand = dense(self._graph, f"{path}/expand", self._units, width)
        contract = dense(self._graph, f"{path}/contract", width, self._units)
        with scope(f"{path}/expand"):
            hidden = tf.nn.relu(expand(normal), name="Relu")
        with scope(f"{path}/contract"):
            return tf.add(values, contract(hidden), name="residual")


def transformer(
    graph: TrainingGraph,
    *,
    batch: int,
    layers: int,
    units: int,
    heads: int,
    feed_forward: int,
    steps: int,
    vocabulary: int,
) -> tf.Tensor:
    """Forward pass of a translation model, teacher-forced, without dropout.

    Scopes: `encoder/layer_<i>/attention`, `encoder/layer_<i>/feed_forward`, for the decoder also
    `memory_attention`, and `softmax`.

    Args:
      graph: the graph that is being built.
      batch: sentence pairs a step.
      layers: of the encoder, and of the decoder.
      units: width of the model, a multiple of `heads`.
      heads: attention heads.
      feed_forward: width of the hidden layer of the feed-forward sublayers.
      steps: tokens a sentence, in both languages.
      vocabulary: distinct tokens of each language.

    Returns:
      scalar loss, in nats a token.
    """
    if units % heads:
        raise PlacerError(f"units={units}, heads={heads}: units must be a multiple of heads")
    source = graph.ids("source", [batch, steps], vocabulary)
    target = graph.ids("target", [batch, steps], vocabulary)
    labels = graph.ids("labels", [batch * steps], vocabulary)
    stack = _Stack(graph, batch, steps, units, heads)

    values = stack.embed("encoder/embedding", source, vocabulary)
    for index in range(layers):
        path = f"encoder/layer_{index}"
        values = stack.attention(f"{path}/attention", values, None)
        values = stack.feed_forward(f"{path}/feed_forward", values, feed_forward)
    memory = stack.normalise("encoder/norm", values)

    values = stack.embed("decoder/embedding", target, vocabulary)
    for index in range(layers):
        path = f"decoder/layer_{index}"
        values = stack.attention(f"{path}/attention", values, None, causal=True)
        values = stack.attention(f"{path}/memory_attention", values, memory)
        values = stack.feed_forward(f"{path}/feed_forward", values, feed_forward)
    values = stack.normalise("decoder/norm", values)

    project = dense(graph, "softmax", units, vocabulary)
    with scope("softmax"):
        return classification_loss(project(values), labels)
