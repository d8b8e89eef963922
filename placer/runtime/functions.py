"""Running a tf.function under a placement, in this process.

Sessions give step stats and a process of their own, and are what everything else here uses. This
is for programs that stay eager: the placed function computes what the original does, on the same
variables.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from placer.errors import PlacerError
from placer.runtime.measurement import QUICK, Measurement, MeasurementProtocol

if TYPE_CHECKING:
    import tensorflow as tf


def place_function(
    function: Any, device_of: Callable[[str], str]
) -> tf.types.experimental.Callable:
    """A ConcreteFunction with other devices.

    Captured variables and constants are the original's; devices of ops that make up the function
    change, those of functions that it calls do not.

    Args:
      function: a ConcreteFunction.
      device_of: op name in `function.graph` -> device name, "" for no wish.

    Returns:
      A ConcreteFunction that takes the tensors of the original's arguments, flattened, as
      positional arguments, and returns the same structure.

    Raises:
      PlacerError: if it is not a ConcreteFunction.
    """
    import tensorflow as tf

    if not hasattr(function, "structured_outputs"):
        raise PlacerError(
            "give a ConcreteFunction, as f.get_concrete_function(...) returns, not "
            f"{type(function).__name__}"
        )
    graph_def = function.graph.as_graph_def()
    for node in graph_def.node:
        node.device = device_of(node.name)
    captures = list(function.graph.captures)
    inner = {id(inner) for _, inner in captures}
    arguments = [t for t in function.graph.inputs if id(t) not in inner]
    internal = [i for _, i in captures]
    outputs = [t for t in tf.nest.flatten(function.outputs) if t is not None]
    controls = [op.name for op in function.graph.control_outputs]

    @tf.function(
        input_signature=[tf.TensorSpec(t.shape, t.dtype) for t in arguments], autograph=False
    )
    def placed(*values: tf.Tensor) -> Any:
        graph = tf.compat.v1.get_default_graph()
        outer = [graph.capture(tensor) for tensor, _ in captures]
        mapping = {
            t.name: v for t, v in zip([*arguments, *internal], [*values, *outer], strict=True)
        }
        found = tf.graph_util.import_graph_def(
            graph_def,
            input_map=mapping,
            return_elements=[*(t.name for t in outputs), *controls],
            name="",
        )
        with tf.control_dependencies(found[len(outputs) :]):
            flat = [tf.identity(t) for t in found[: len(outputs)]]
        if not flat:
            with tf.control_dependencies(found):
                tf.no_op()
            return None
        # None is a leaf of the structure, but no output.
        structure = function.structured_outputs
        leaves = iter(flat)
        packed = [
            None if leaf is None else next(leaves)
            for leaf in tf.nest.flatten(structure, expand_composites=True)
        ]
        return tf.nest.pack_sequence_as(structure, packed, expand_composites=True)

    concrete = placed.get_concrete_function()
    # The variables live as long as the function does.
    concrete._placer_original = function
    return concrete


def time_function(
    function: Callable[..., Any],
    arguments: Sequence[Any] = (),
    protocol: MeasurementProtocol = QUICK,
    trace_directory: str | None = None,
) -> Measurement:
    """Times calls of a function in this process.

    Args:
      function: a ConcreteFunction, such as `place_function` returns.
      arguments: of each call.
      protocol: warm-up and steps; nothing is stopped early.
      trace_directory: where to write a trace of one more call by TensorFlow's profiler, which
        TensorBoard and Perfetto read; None for none.

    Returns:
      The step times; a TensorFlow error is a failure, in one line.
    """
    import tensorflow as tf

    def call() -> float:
        start = time.perf_counter()
        # Waits for the results: a GPU's ops are still running when the call returns.
        for value in tf.nest.flatten(function(*arguments)):
            if value is not None:
                value.numpy()
        return time.perf_counter() - start

    try:
        begin = time.perf_counter()
        warm_up = [call() for _ in range(protocol.warm_up)]
        steps = [call() for _ in range(protocol.steps)]
        ran = time.perf_counter() - begin
        if trace_directory is not None:
            with tf.profiler.experimental.Profile(trace_directory):
                call()
    except tf.errors.OpError as error:
        return Measurement(failure=f"{type(error).__name__}: {_reason(error.message or '')}")
    return Measurement(steps=tuple(steps), warm_up=tuple(warm_up), ran_seconds=ran)


def _reason(message: str) -> str:
    """What an op said, out of an eager error that also says where its graph was built."""
    said = message.partition("[[{{node")[0].splitlines()
    return next((line.strip() for line in reversed(said) if line.strip()), message)[:500]
