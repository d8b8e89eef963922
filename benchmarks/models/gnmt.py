"""GNMT: deep LSTM encoder and decoder with attention (Wu et al., 2016, arXiv 1609.08144)."""

import tensorflow as tf

from benchmarks.models.attention import ContentAttention
from benchmarks.models.layers import LstmLayer, embed_steps, sequence_loss
from benchmarks.models.training import TrainingGraph, scope
from placer.errors import PlacerError

# Residual connections start at the third layer (Wu et al., section 3.1).
_FIRST_RESIDUAL = 2


def _encoder(graph: TrainingGraph, values: list[tf.Tensor], layers: int) -> list[tf.Tensor]:
    """Bidirectional bottom layer, the others forward (Wu et al., section 3.2)."""
    batch, units = values[0].shape
    ahead = LstmLayer(graph, "encoder/layer_0/forward", batch, units, units).run(values)
    back = LstmLayer(graph, "encoder/layer_0/backward", batch, units, units).run(values, True)
    with scope("encoder/layer_0"):
        values = [tf.concat(pair, axis=1) for pair in zip(ahead, back, strict=True)]
    for index in range(1, layers):
        path = f"encoder/layer_{index}"
        outputs = LstmLayer(graph, path, batch, values[0].shape[1], units).run(values)
        if index >= _FIRST_RESIDUAL:
            outputs = [
                _residual(path, time, *pair)
                for time, pair in enumerate(zip(values, outputs, strict=True))
            ]
        values = outputs
    return values


def _residual(path: str, time: int, inputs: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    with scope(f"{path}/step_{time}"):
        return tf.add(inputs, outputs, name="residual")


def gnmt(
    graph: TrainingGraph,
    *,
    batch: int,
    layers: int,
    units: int,
    steps: int,
    vocabulary: int,
    softmax_by_step: bool = True,
) -> tf.Tensor:
    """Forward pass of a deep translation model, teacher-forced.

    The query of the attention is the bottom decoder layer's output of the step before, and the
    context is an input of every decoder layer (Wu et al., section 3), so that the layers of
    different steps can run at the same time.

    Scopes: `encoder/embedding`, `encoder/layer_<i>/step_<t>` (`layer_0/forward` and
    `layer_0/backward` at the bottom), the same for `decoder`, `attention/step_<t>`,
    `softmax/step_<t>`.

    Args:
      graph: the graph that is being built.
      batch: sentence pairs a step.
      layers: LSTM layers of the encoder, and of the decoder, at least 2.
      units: width of the embeddings and of each layer.
      steps: tokens a sentence, in both languages.
      vocabulary: distinct tokens of each language.
      softmax_by_step: one softmax multiplication for each step, or one for all.

    Returns:
      scalar loss, in nats a token.
    """
    if layers < 2:
        raise PlacerError(f"layers={layers}: GNMT needs at least 2")
    source = graph.ids("source", [steps, batch], vocabulary)
    target = graph.ids("target", [steps, batch], vocabulary)
    labels = graph.ids("labels", [steps, batch], vocabulary)

    words = embed_steps(graph, "encoder/embedding", source, vocabulary, units)
    attend = ContentAttention(graph, _encoder(graph, words, layers), "additive")
    decoder = [
        LstmLayer(graph, f"decoder/layer_{index}", batch, 2 * units, units)
        for index in range(layers)
    ]
    states = [layer.start() for layer in decoder]
    outputs = []
    words = embed_steps(graph, "decoder/embedding", target, vocabulary, units)
    for time, value in enumerate(words):
        context = attend(time, states[0][0])
        for index, layer in enumerate(decoder):
            states[index] = layer.step(time, [value, context], states[index])
            hidden = states[index][0]
            if index >= _FIRST_RESIDUAL:
                hidden = _residual(layer.path, time, value, hidden)
            value = hidden
        outputs.append(value)
    return sequence_loss(graph, "softmax", outputs, labels, vocabulary, softmax_by_step)
