"""ResNet-50 (He et al., 2016, arXiv 1512.03385)."""

import tensorflow as tf

from benchmarks.models.layers import batch_norm, classification_loss, convolution, dense
from benchmarks.models.training import TrainingGraph, scope

# Blocks and filters of the bottleneck of each stage (He et al., table 1, 50 layers).
_STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))


def _conv(
    graph: TrainingGraph,
    path: str,
    images: tf.Tensor,
    filters: int,
    size: int,
    stride: int = 1,
    activate: bool = True,
) -> tf.Tensor:
    images = convolution(graph, path, images, filters, (size, size), stride)
    images = batch_norm(graph, path, images, momentum=0.99, scale=True)
    if not activate:
        return images
    with scope(path):
        return tf.nn.relu(images, name="Relu")


def _bottleneck(
    graph: TrainingGraph, path: str, images: tf.Tensor, filters: int, stride: int
) -> tf.Tensor:
    shortcut = images
    if images.shape[3] != 4 * filters:
        shortcut = _conv(graph, f"{path}/shortcut", images, 4 * filters, 1, stride, False)
    values = _conv(graph, f"{path}/conv1", images, filters, 1, stride)
    values = _conv(graph, f"{path}/conv2", values, filters, 3)
    values = _conv(graph, f"{path}/conv3", values, 4 * filters, 1, activate=False)
    with scope(path):
        return tf.nn.relu(tf.add(shortcut, values, name="add"), name="Relu")


def resnet50(
    graph: TrainingGraph, *, batch: int, image: int, classes: int, width: float = 1.0
) -> tf.Tensor:
    """Forward pass, batch normalisation in training mode.

    Scopes: `stage1/conv`, `stage<2..5>/block<i>/conv<j>`, `predictions`.

    Args:
      graph: the graph that is being built.
      batch: images a step.
      image: height and width in pixels.
      classes: number of labels.
      width: factor on the number of filters of every convolution.

    Returns:
      scalar loss, in nats an image.
    """
    images = graph.reals("images", [batch, image, image, 3])
    labels = graph.ids("labels", [batch], classes)
    values = _conv(graph, "stage1/conv", images, max(1, round(64 * width)), 7, 2)
    with scope("stage1"):
        values = tf.nn.max_pool2d(values, 3, 2, "SAME", name="MaxPool")
    for stage, (blocks, filters) in enumerate(_STAGES, start=2):
        for block in range(blocks):
            stride = 2 if block == 0 and stage > 2 else 1
            path = f"stage{stage}/block{block}"
            values = _bottleneck(graph, path, values, max(1, round(filters * width)), stride)
    project = dense(graph, "predictions", values.shape[3], classes)
    with scope("predictions"):
        pooled = tf.reduce_mean(values, axis=[1, 2], name="pool")
        return classification_loss(project(pooled), labels)
