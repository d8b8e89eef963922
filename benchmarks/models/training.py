"""A training step under construction: variables, inputs, gradients, update, export.

A `TrainingGraph` owns one `tf.Graph`. A model adds its forward pass with the helpers here and
hands the loss to `finish`, which adds the backward pass and the update and exports the whole as
a MetaGraphDef with this layout:

- `train`: NoOp that depends on every update; collection `train_op`;
- `init`: NoOp that initialises every variable; collection `init_op`;
- `loss:0`: scalar float32; collection `losses`;
- the usual `variables` and `trainable_variables` collections;
- no device on any node, every shape static.
"""

import contextlib
import dataclasses
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from placer.errors import PlacerError


class _Adagrad(tf.compat.v1.train.AdagradOptimizer):
    """Adagrad whose accumulators start from Fill ops.

    The base class starts them from constants as large as the variables, which a session keeps.
    """

    def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
        def start(shape: Any, dtype: Any = None, partition_info: Any = None) -> tf.Tensor:
            del partition_info
            return tf.fill(shape, tf.constant(0.1, dtype))

        for variable in var_list:
            self._get_or_make_slot_with_initializer(
                variable, start, variable.shape, variable.dtype, "accumulator", self._name
            )


_OPTIMIZERS = {
    "adagrad": lambda rate: _Adagrad(rate, name="optimizer"),
    "adam": lambda rate: tf.compat.v1.train.AdamOptimizer(rate, name="optimizer"),
    "momentum": lambda rate: tf.compat.v1.train.MomentumOptimizer(rate, 0.9, name="optimizer"),
    "rmsprop": lambda rate: tf.compat.v1.train.RMSPropOptimizer(
        rate, decay=0.9, momentum=0.9, epsilon=1.0, name="optimizer"
    ),
    "sgd": lambda rate: tf.compat.v1.train.GradientDescentOptimizer(rate, name="optimizer"),
}
_AGGREGATIONS = {
    "add_n": tf.AggregationMethod.ADD_N,
    "pairwise": tf.AggregationMethod.EXPERIMENTAL_TREE,
}
_INPUTS = ("synthetic", "placeholder")
_READS = ("variable", "use")
_BATCH_NORMS = ("composed", "fused")


def _check_choice(parameter: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise PlacerError(f"{parameter}={value!r}: choose one of {', '.join(sorted(choices))}")


@dataclasses.dataclass(frozen=True)
class TrainingOptions:
    """How any model is trained; the parameters that all models share.

    Attributes:
      optimizer: adagrad, adam, momentum, rmsprop or sgd.
      learning_rate: positive.
      aggregation: how the gradients of a weight used many times are summed: `add_n`, one AddN
        that needs all of them alive (what `tf.gradients` does), or `pairwise`, a chain of AddN
        of two that frees each as it goes.
      reads: `variable`, one ReadVariableOp a variable that all uses share (as the `read` op of
        reference variables), or `use`, one for each use (as resource variables in Python code).
      colocate_gradients: whether a gradient must run where its forward op runs; off, as is
        TensorFlow 1's default, which the paper's graphs were made with.
      batch_norm: `composed` of means and elementwise ops, as Keras' layer makes it, or `fused`.
      inputs: `synthetic`, data made inside the graph, or `placeholder`.
      seed: of the initial weights and the synthetic data.
    """

    optimizer: str = "adam"
    learning_rate: float = 1e-3
    aggregation: str = "add_n"
    reads: str = "variable"
    colocate_gradients: bool = False
    batch_norm: str = "composed"
    inputs: str = "synthetic"
    seed: int = 1

    def __post_init__(self) -> None:
        _check_choice("optimizer", self.optimizer, tuple(_OPTIMIZERS))
        _check_choice("aggregation", self.aggregation, tuple(_AGGREGATIONS))
        _check_choice("reads", self.reads, _READS)
        _check_choice("batch_norm", self.batch_norm, _BATCH_NORMS)
        _check_choice("inputs", self.inputs, _INPUTS)
        if not self.learning_rate > 0:
            raise PlacerError(f"learning_rate={self.learning_rate}: must be positive")
        if self.seed < 0:
            raise PlacerError(f"seed={self.seed}: must not be negative")


class Weight:
    """A resource variable and the way its value is read."""

    def __init__(self, variable: tf.Variable, shared_read: bool):
        self.variable = variable
        self._shared_read = shared_read
        self._value: tf.Tensor | None = None

    def value(self) -> tf.Tensor:
        """The value, by the shared ReadVariableOp or by a new one in the current scope."""
        if not self._shared_read:
            return self.variable.value()
        if self._value is None:
            with scope(self.variable.op.name):
                self._value = self.variable.value()
        return self._value


def scope(path: str) -> contextlib.AbstractContextManager[Any]:
    """The absolute name scope `path`, entered as it is: no suffix when entered again."""
    return tf.name_scope(path + "/")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps back the deprecation notices that TensorFlow's v1 optimizers cause in TensorFlow."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("ERROR")
    try:
        yield
    finally:
        logger.setLevel(level)


class TrainingGraph:
    """One training step in a graph of its own; see the module's docstring."""

    def __init__(self, options: TrainingOptions):
        self.options = options
        self.graph = tf.Graph()
        self._updates: list[tf.Operation] = []

    @contextlib.contextmanager
    def building(self) -> Iterator["TrainingGraph"]:
        """Makes the graph the default one, with its seed."""
        with self.graph.as_default():
            tf.random.set_seed(self.options.seed)
            yield self

    def weight(
        self, name: str, shape: Sequence[int], initializer: Any = None, trainable: bool = True
    ) -> Weight:
        """A float32 variable called `name`.

        Args:
          name: full name, whatever the current scope.
          shape: static shape.
          initializer: a `tf.compat.v1` initializer; Glorot uniform if None.
          trainable: whether the optimizer updates it.
        """
        variable = tf.compat.v1.get_variable(
            name,
            shape,
            tf.float32,
            initializer or tf.compat.v1.glorot_uniform_initializer(),
            trainable=trainable,
            use_resource=True,
        )
        return Weight(variable, self.options.reads == "variable")

    def zeros(self, name: str, shape: Sequence[int]) -> Weight:
        """A trainable variable that starts at zero."""
        return self.weight(name, shape, tf.compat.v1.zeros_initializer())

    def add_update(self, operation: tf.Operation) -> None:
        """Has `train` run `operation` too."""
        self._updates.append(operation)

    def ids(self, name: str, shape: Sequence[int], limit: int, fixed: bool = True) -> tf.Tensor:
        """int32 `inputs/<name>` of static `shape` with values in [0, limit).

        Synthetic ids are a constant if `fixed`, so that a model can learn them; else every step
        draws new ones.
        """
        with scope("inputs"):
            if self.options.inputs == "placeholder":
                return tf.compat.v1.placeholder(tf.int32, shape, name=name)
            if not fixed:
                return self._uniform(name, shape, limit, tf.int32)
            generator = np.random.default_rng([self.options.seed, zlib.crc32(name.encode())])
            values = generator.integers(0, limit, size=tuple(shape), dtype=np.int32)
            return tf.constant(values, name=name)

    def reals(self, name: str, shape: Sequence[int]) -> tf.Tensor:
        """float32 `inputs/<name>` of static `shape`; synthetic ones uniform in [0, 1)."""
        with scope("inputs"):
            if self.options.inputs == "placeholder":
                return tf.compat.v1.placeholder(tf.float32, shape, name=name)
            return self._uniform(name, shape, 1.0, tf.float32)

    def _uniform(self, name: str, shape: Sequence[int], limit: float, dtype: tf.DType) -> tf.Tensor:
        seed = zlib.crc32(name.encode()) % 2**31
        values = tf.random.uniform(shape, 0, limit, dtype, seed=seed, name=f"{name}/uniform")
        return tf.identity(values, name=name)

    def finish(self, loss: tf.Tensor) -> tf.compat.v1.MetaGraphDef:
        """Adds gradients, update and init op, and exports the graph.

        Args:
          loss: scalar float32.

        Returns:
          The MetaGraphDef laid out as the module's docstring says.
        """
        loss = tf.identity(loss, name="loss")
        variables = tf.compat.v1.trainable_variables()
        gradients = tf.compat.v1.gradients(
            loss,
            variables,
            name="gradients",
            colocate_gradients_with_ops=self.options.colocate_gradients,
            aggregation_method=_AGGREGATIONS[self.options.aggregation],
        )
        unused = [v.op.name for v, g in zip(variables, gradients, strict=True) if g is None]
        if unused:
            raise PlacerError(f"the loss does not depend on variable {unused[0]}: remove it")
        optimizer = _OPTIMIZERS[self.options.optimizer](self.options.learning_rate)
        with _quiet():
            update = optimizer.apply_gradients(
                list(zip(gradients, variables, strict=True)), name="optimizer"
            )
        train = tf.group(update, *self._updates, name="train")
        init = tf.compat.v1.variables_initializer(tf.compat.v1.global_variables(), name="init")
        # The v1 optimizers and losses add to these collections on their own.
        for collection, item in (("train_op", train), ("init_op", init), ("losses", loss)):
            self.graph.clear_collection(collection)
            self.graph.add_to_collection(collection, item)
        return tf.compat.v1.train.export_meta_graph(graph=self.graph)
