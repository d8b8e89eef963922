"""Content-based attention of one decoder step over all encoder steps."""

from collections.abc import Sequence

import tensorflow as tf

from benchmarks.models.layers import dense
from benchmarks.models.training import TrainingGraph, scope


class ContentAttention:
    """Attention with additive scores (Bahdanau et al., 2015) or bilinear ones (Luong et al., 2015).

    The memory [batch, source steps, units] and its keys are made once, in scope `attention`; the
    ops of decoder step t are in `attention/step_<t>`.
    """

    def __init__(self, graph: TrainingGraph, memory: Sequence[tf.Tensor], score: str):
        """Prepares the memory.

        Args:
          graph: where the weights go.
          memory: encoder outputs, one [batch, units] for each source step.
          score: `additive` or `bilinear`.
        """
        batch, units = memory[0].shape
        steps = len(memory)
        self._score = score
        make_keys = dense(graph, "attention/key", units, units, bias=False)
        if score == "additive":
            self._query = dense(graph, "attention/query", units, units, bias=False)
            self._vector = graph.weight("attention/score/vector", [units, 1])
        with scope("attention"):
            self._memory = tf.stack(memory, axis=1, name="memory")
            rows = tf.reshape(self._memory, [batch * steps, units], name="rows")
            self._keys = tf.reshape(make_keys(rows), [batch, steps, units], name="keys")

    def __call__(self, time: int, query: tf.Tensor) -> tf.Tensor:
        """The context [batch, units] of `query` [batch, units] at decoder step `time`."""
        batch, steps, units = self._keys.shape
        with scope(f"attention/step_{time}"):
            if self._score == "additive":
                moved = tf.expand_dims(self._query(query), 1, name="query")
                activation = tf.tanh(tf.add(self._keys, moved, name="sum"), name="activation")
                rows = tf.reshape(activation, [batch * steps, units], name="rows")
                scores = tf.matmul(rows, self._vector.value(), name="scores")
            else:
                column = tf.expand_dims(query, 2, name="query")
                scores = tf.matmul(self._keys, column, name="scores")
            weights = tf.nn.softmax(tf.reshape(scores, [batch, steps]), name="weights")
            row = tf.expand_dims(weights, 1, name="row")
            return tf.squeeze(tf.matmul(row, self._memory, name="context"), 1, name="squeeze")
