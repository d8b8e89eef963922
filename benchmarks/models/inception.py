"""Inception-V3 (Szegedy et al., 2016, arXiv 1512.00567), the architecture that Keras ships."""

import tensorflow as tf

from benchmarks.models.layers import batch_norm, classification_loss, convolution, dense
from benchmarks.models.training import TrainingGraph, scope
from placer.errors import PlacerError


class _Block:
    """Adds layers under one scope, e.g. `mixed3/branch3x3dbl`."""

    def __init__(self, graph: TrainingGraph, path: str, width: float):
        self._graph = graph
        self._path = path
        self._width = width

    def branch(self, name: str) -> "_Block":
        return _Block(self._graph, f"{self._path}/{name}", self._width)

    def conv(
        self,
        name: str,
        images: tf.Tensor,
        filters: int,
        size: tuple[int, int],
        stride: int = 1,
        padding: str = "SAME",
    ) -> tf.Tensor:
        """Convolution, batch normalisation without scale, ReLU."""
        path = f"{self._path}/{name}"
        filters = max(1, round(filters * self._width))
        images = convolution(self._graph, path, images, filters, size, stride, padding)
        images = batch_norm(self._graph, path, images, momentum=0.99, scale=False)
        with scope(path):
            return tf.nn.relu(images, name="Relu")

    def average_pool(self, images: tf.Tensor) -> tf.Tensor:
        with scope(self._path):
            return tf.nn.avg_pool2d(images, 3, 1, "SAME", name="AvgPool")

    def max_pool(self, images: tf.Tensor) -> tf.Tensor:
        with scope(self._path):
            return tf.nn.max_pool2d(images, 3, 2, "VALID", name="MaxPool")

    def concat(self, branches: list[tf.Tensor]) -> tf.Tensor:
        with scope(self._path):
            return tf.concat(branches, axis=3, name="concat")


def _stem(block: _Block, images: tf.Tensor) -> tf.Tensor:
    images = block.conv("conv1", images, 32, (3, 3), stride=2, padding="VALID")
    images = block.conv("conv2", images, 32, (3, 3), padding="VALID")
    images = block.conv("conv3", images, 64, (3, 3))
    images = block.branch("pool1").max_pool(images)
    images = block.conv("conv4", images, 80, (1, 1), padding="VALID")
    images = block.conv("conv5", images, 192, (3, 3), padding="VALID")
    return block.branch("pool2").max_pool(images)


def _mixed_35(block: _Block, images: tf.Tensor, pool_filters: int) -> tf.Tensor:
    one = block.branch("branch1x1").conv("conv1", images, 64, (1, 1))
    five = block.branch("branch5x5").conv("conv1", images, 48, (1, 1))
    five = block.branch("branch5x5").conv("conv2", five, 64, (5, 5))
    three = block.branch("branch3x3dbl").conv("conv1", images, 64, (1, 1))
    three = block.branch("branch3x3dbl").conv("conv2", three, 96, (3, 3))
    three = block.branch("branch3x3dbl").conv("conv3", three, 96, (3, 3))
    pool = block.branch("branch_pool").average_pool(images)
    pool = block.branch("branch_pool").conv("conv1", pool, pool_filters, (1, 1))
    return block.concat([one, five, three, pool])


def _reduce_35(block: _Block, images: tf.Tensor) -> tf.Tensor:
    three = block.branch("branch3x3").conv("conv1", images, 384, (3, 3), 2, "VALID")
    double = block.branch("branch3x3dbl").conv("conv1", images, 64, (1, 1))
    double = block.branch("branch3x3dbl").conv("conv2", double, 96, (3, 3))
    double = block.branch("branch3x3dbl").conv("conv3", double, 96, (3, 3), 2, "VALID")
    pool = block.branch("branch_pool").max_pool(images)
    return block.concat([three, double, pool])


def _mixed_17(block: _Block, images: tf.Tensor, filters: int) -> tf.Tensor:
    one = block.branch("branch1x1").conv("conv1", images, 192, (1, 1))
    seven = block.branch("branch7x7")
    inner = seven.conv("conv1", images, filters, (1, 1))
    inner = seven.conv("conv2", inner, filters, (1, 7))
    inner = seven.conv("conv3", inner, 192, (7, 1))
    double = block.branch("branch7x7dbl")
    outer = double.conv("conv1", images, filters, (1, 1))
    outer = double.conv("conv2", outer, filters, (7, 1))
    outer = double.conv("conv3", outer, filters, (1, 7))
    outer = double.conv("conv4", outer, filters, (7, 1))
    outer = double.conv("conv5", outer, 192, (1, 7))
    pool = block.branch("branch_pool").average_pool(images)
    pool = block.branch("branch_pool").conv("conv1", pool, 192, (1, 1))
    return block.concat([one, inner, outer, pool])


def _reduce_17(block: _Block, images: tf.Tensor) -> tf.Tensor:
    three = block.branch("branch3x3").conv("conv1", images, 192, (1, 1))
    three = block.branch("branch3x3").conv("conv2", three, 320, (3, 3), 2, "VALID")
    branch = block.branch("branch7x7x3")
    seven = branch.conv("conv1", images, 192, (1, 1))
    seven = branch.conv("conv2", seven, 192, (1, 7))
    seven = branch.conv("conv3", seven, 192, (7, 1))
    seven = branch.conv("conv4", seven, 192, (3, 3), 2, "VALID")
    pool = block.branch("branch_pool").max_pool(images)
    return block.concat([three, seven, pool])


def _mixed_8(block: _Block, images: tf.Tensor) -> tf.Tensor:
    one = block.branch("branch1x1").conv("conv1", images, 320, (1, 1))
    branch = block.branch("branch3x3")
    three = branch.conv("conv1", images, 384, (1, 1))
    left = branch.conv("conv2a", three, 384, (1, 3))
    right = branch.conv("conv2b", three, 384, (3, 1))
    three = branch.concat([left, right])
    branch = block.branch("branch3x3dbl")
    double = branch.conv("conv1", images, 448, (1, 1))
    double = branch.conv("conv2", double, 384, (3, 3))
    left = branch.conv("conv3a", double, 384, (1, 3))
    right = branch.conv("conv3b", double, 384, (3, 1))
    double = branch.concat([left, right])
    pool = block.branch("branch_pool").average_pool(images)
    pool = block.branch("branch_pool").conv("conv1", pool, 192, (1, 1))
    return block.concat([one, three, double, pool])


def inception_v3(
    graph: TrainingGraph, *, batch: int, image: int, classes: int, width: float = 1.0
) -> tf.Tensor:
    """Forward pass, batch normalisation in training mode.

    Scopes: `stem/conv<i>`, `mixed<0..10>/branch*/conv<i>`, `predictions`.

    Args:
      graph: the graph that is being built.
      batch: images a step.
      image: height and width in pixels, at least 75.
      classes: number of labels.
      width: factor on the number of filters of every convolution.

    Returns:
      scalar loss, in nats an image.
    """
    if image < 75:
        raise PlacerError(f"image={image}: Inception-V3 needs at least 75 pixels")
    images = graph.reals("images", [batch, image, image, 3])
    labels = graph.ids("labels", [batch], classes)

    def block(name: str) -> _Block:
        return _Block(graph, name, width)

    values = _stem(block("stem"), images)
    for index, pool_filters in enumerate((32, 64, 64)):
        values = _mixed_35(block(f"mixed{index}"), values, pool_filters)
    values = _reduce_35(block("mixed3"), values)
    for index, filters in enumerate((128, 160, 160, 192), start=4):
        values = _mixed_17(block(f"mixed{index}"), values, filters)
    values = _reduce_17(block("mixed8"), values)
    for index in (9, 10):
        values = _mixed_8(block(f"mixed{index}"), values)
    project = dense(graph, "predictions", values.shape[3], classes)
    with scope("predictions"):
        pooled = tf.reduce_mean(values, axis=[1, 2], name="pool")
        return classification_loss(project(pooled), labels)
