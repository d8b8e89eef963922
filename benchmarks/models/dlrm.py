"""DLRM: a recommendation model with large embedding tables (Naumov et al., 2019, 1906.00091)."""

import numpy as np
import tensorflow as tf

from benchmarks.models.layers import dense
from benchmarks.models.training import TrainingGraph, scope


def _perceptron(
    graph: TrainingGraph, path: str, values: tf.Tensor, widths: list[int], last_linear: bool
) -> tf.Tensor:
    for index, units in enumerate(widths):
        layer = dense(graph, f"{path}/layer_{index}", values.shape[1], units)
        with scope(f"{path}/layer_{index}"):
            values = layer(values)
            if not (last_linear and index == len(widths) - 1):
                values = tf.nn.relu(values, name="Relu")
    return values


def dlrm(
    graph: TrainingGraph,
    *,
    batch: int,
    tables: int,
    rows: int,
    lookups: int,
    dimension: int,
    reals: int,
    hidden: int,
) -> tf.Tensor:
    """Forward pass: dense features, pooled embeddings, their pairwise products, a click.

    Gradients of the tables are IndexedSlices and their updates sparse.

    Scopes: `bottom/layer_<i>`, `table_<i>`, `interaction`, `top/layer_<i>`, `click`.

    Args:
      graph: the graph that is being built.
      batch: samples a step.
      tables: number of categorical features, each with a table of its own.
      rows: of each table.
      lookups: rows that a sample takes of each table, summed.
      dimension: width of the tables.
      reals: number of real-valued features.
      hidden: width of the widest dense layer.

    Returns:
      scalar loss, in nats a sample.
    """
    values = graph.reals("reals", [batch, reals])
    clicks = graph.ids("clicks", [batch], 2)
    bottom = _perceptron(graph, "bottom", values, [hidden, hidden // 2, dimension], False)
    features = [bottom]
    for index in range(tables):
        ids = graph.ids(f"table_{index}", [batch, lookups], rows, fixed=False)
        initializer = tf.compat.v1.random_uniform_initializer(-(rows**-0.5), rows**-0.5)
        table = graph.weight(f"table_{index}/table", [rows, dimension], initializer)
        with scope(f"table_{index}"):
            vectors = tf.nn.embedding_lookup(table.variable, ids, name="lookup")
            features.append(tf.reduce_sum(vectors, axis=1, name="pooled"))
    with scope("interaction"):
        stacked = tf.stack(features, axis=1, name="features")
        products = tf.matmul(stacked, stacked, transpose_b=True, name="products")
        count = len(features)
        flat = tf.reshape(products, [batch, count * count], name="flat")
        # Each unordered pair of features once: the strict lower triangle.
        pairs = np.flatnonzero(np.tril(np.ones((count, count)), -1)).astype(np.int32)
        joined = tf.concat([bottom, tf.gather(flat, pairs, axis=1, name="pairs")], axis=1)
    logits = _perceptron(graph, "top", joined, [hidden, hidden // 2, 1], True)
    with scope("click"):
        labels = tf.cast(tf.reshape(clicks, [batch, 1]), tf.float32, name="labels")
        entropy = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits, name="cross_entropy")
        return tf.reduce_mean(entropy, name="mean")
