"""NMT: LSTM encoder and decoder with attention (Bahdanau et al., 2015; Luong et al., 2015)."""

import tensorflow as tf

from benchmarks.models.attention import ContentAttention
from benchmarks.models.layers import LstmLayer, dense, embed_steps, sequence_loss
from benchmarks.models.training import TrainingGraph, scope
from placer.errors import PlacerError


def nmt(
    graph: TrainingGraph,
    *,
    batch: int,
    layers: int,
    units: int,
    steps: int,
    vocabulary: int,
    score: str = "additive",
    input_feeding: bool = False,
    softmax_by_step: bool = True,
) -> tf.Tensor:
    """Forward pass of a translation model, teacher-forced.

    At each decoder step the top layer's output is the query; context and query give the
    attentional vector tanh(W [context; query]) that the softmax reads (Luong et al., section 3).

    Scopes: `encoder/embedding`, `encoder/layer_<i>/step_<t>`, the same for `decoder`,
    `attention/step_<t>`, `softmax/step_<t>`.

    Args:
      graph: the graph that is being built.
      batch: sentence pairs a step.
      layers: LSTM layers of the encoder, and of the decoder.
      units: width of the embeddings and of each layer.
      steps: tokens a sentence, in both languages.
      vocabulary: distinct tokens of each language.
      score: `additive` or `bilinear` attention scores.
      input_feeding: whether the attentional vector is an input of the next step's bottom layer
        (Luong et al., section 3.3); it makes the decoder's steps strictly sequential.
      softmax_by_step: one softmax multiplication for each step, or one for all.

    Returns:
      scalar loss, in nats a token.
    """
    if score not in ("additive", "bilinear"):
        raise PlacerError(f"score={score!r}: choose additive or bilinear")
    source = graph.ids("source", [steps, batch], vocabulary)
    target = graph.ids("target", [steps, batch], vocabulary)
    labels = graph.ids("labels", [steps, batch], vocabulary)

    values = embed_steps(graph, "encoder/embedding", source, vocabulary, units)
    for index in range(layers):
        values = LstmLayer(graph, f"encoder/layer_{index}", batch, units, units).run(values)
    attend = ContentAttention(graph, values, score)
    combine = dense(graph, "attention/combine", 2 * units, units, bias=False)

    def widths(index: int) -> int:
        return 2 * units if index == 0 and input_feeding else units

    decoder = [
        LstmLayer(graph, f"decoder/layer_{index}", batch, widths(index), units)
        for index in range(layers)
    ]
    words = embed_steps(graph, "decoder/embedding", target, vocabulary, units)
    states = [layer.start() for layer in decoder]
    with scope("attention/zero_state"):
        fed = tf.zeros([batch, units], name="vector") if input_feeding else None
    outputs = []
    for time, word in enumerate(words):
        inputs = [word] if fed is None else [word, fed]
        for index, layer in enumerate(decoder):
            states[index] = layer.step(time, inputs, states[index])
            inputs = [states[index][0]]
        context = attend(time, inputs[0])
        with scope(f"attention/step_{time}/combine"):
            vector = tf.tanh(combine(tf.concat([context, inputs[0]], 1)), name="vector")
        outputs.append(vector)
        fed = vector if input_feeding else None
    return sequence_loss(graph, "softmax", outputs, labels, vocabulary, softmax_by_step)
