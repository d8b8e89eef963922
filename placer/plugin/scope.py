"""Creating variables where a placement wants them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_REF_OPS = ("VariableV2", "Variable", "TemporaryVariable")


@contextlib.contextmanager
def variable_scope(placement: Mapping[str, str]) -> Iterator[None]:
    """A context in which variables are created on the devices that `placement` names.

    The device of a variable is fixed when it is created, and every op that takes it must follow;
    the plugin therefore moves neither. In this scope tf.Variable and Keras variables are created
    by their full name ("dense/kernel"). Entered within a tf.Graph or a function under
    construction, it also covers every other op that creates a variable, table, queue or iterator,
    by op name, tf.import_graph_def included.

    Variables that the placement does not name are created as without the scope, and a device that
    the program asks for within it wins.

    Args:
      placement: op name -> device name.
    """
    import tensorflow as tf

    # In a graph, ops tell their own names, which TensorFlow has made unique; variables of a
    # function under construction are lifted out of it.
    entered = None
    if not tf.executing_eagerly() and not tf.inside_function():
        entered = tf.compat.v1.get_default_graph()

    def creator(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        if entered is not None and tf.compat.v1.get_default_graph() is entered:
            return next_creator(**kwargs)
        device = _lookup(placement, tf.get_current_name_scope(), kwargs.get("name"))
        if device is None:
            return next_creator(**kwargs)
        with tf.device(device):
            return next_creator(**kwargs)

    def device_of(op: Any) -> str:
        if op.device or not _creates_resource(op):
            return op.device
        return placement.get(op.name, "")

    with contextlib.ExitStack() as stack:
        stack.enter_context(tf.variable_creator_scope(creator))
        if not tf.executing_eagerly():
            stack.enter_context(tf.compat.v1.device(device_of))
        yield


def _lookup(placement: Mapping[str, str], scope: str, name: str | None) -> str | None:
    full = "/".join(part for part in (scope, (name or "Variable").partition(":")[0]) if part)
    return placement.get(full)


def _creates_resource(op: Any) -> bool:
    import tensorflow as tf

    if op.type in _REF_OPS:
        return True
    return (
        not op.inputs
        and op.op_def.is_stateful
        and any(output.dtype == tf.resource for output in op.outputs)
    )
