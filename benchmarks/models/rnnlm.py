"""RNNLM: a language model of unrolled LSTM layers (Jozefowicz et al., 2016, arXiv 1602.02410)."""

import tensorflow as tf

from benchmarks.models.layers import LstmLayer, embed_steps, sequence_loss
from benchmarks.models.training import TrainingGraph


def rnnlm(
    graph: TrainingGraph,
    *,
    batch: int,
    layers: int,
    units: int,
    steps: int,
    vocabulary: int,
    softmax_by_step: bool = True,
) -> tf.Tensor:
    """Forward pass: embedding, `layers` LSTM layers over `steps` steps, softmax.

    Scopes: `embedding`, `layer_<i>/step_<t>`, `softmax/step_<t>`.

    Args:
      graph: the graph that is being built.
      batch: sentences a step.
      layers: LSTM layers.
      units: width of the embedding and of each layer.
      steps: tokens a sentence.
      vocabulary: distinct tokens.
      softmax_by_step: one softmax multiplication for each step, or one for all.

    Returns:
      scalar loss, in nats a token.
    """
    tokens = graph.ids("tokens", [steps, batch], vocabulary)
    targets = graph.ids("targets", [steps, batch], vocabulary)
    values = embed_steps(graph, "embedding", tokens, vocabulary, units)
    for index in range(layers):
        values = LstmLayer(graph, f"layer_{index}", batch, units, units).run(values)
    return sequence_loss(graph, "softmax", values, targets, vocabulary, softmax_by_step)
