"""A search's history as TensorBoard scalars."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from placer.errors import PlacerError

if TYPE_CHECKING:
    import pandas as pd


def write_tensorboard(history: pd.DataFrame, directory: str | os.PathLike[str]) -> None:
    """Writes an event file; its steps are placements, its relative times seconds of the search.

    Scalars: best_step_seconds of all, and best_step_seconds/SOURCE of each part of the search.

    Args:
      history: `Result.history`.
      directory: for TensorBoard's --logdir, made if it does not exist.

    Raises:
      PlacerError: if it cannot be written.
    """
    import tensorflow as tf

    begin = time.time() - float(history.seconds.max() if len(history) else 0.0)
    try:
        os.makedirs(directory, exist_ok=True)
        with tf.Graph().as_default():
            writer = tf.compat.v1.summary.FileWriter(os.fspath(directory))
        for row in history.itertuples():
            event = tf.compat.v1.Event(wall_time=begin + row.seconds, step=int(row.evaluations))
            for tag in ("best_step_seconds", f"best_step_seconds/{row.source}"):
                event.summary.value.add(tag=tag, simple_value=row.step_seconds)
            writer.add_event(event)
        writer.close()
    except (OSError, tf.errors.OpError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise PlacerError(f"cannot write TensorBoard events to {directory}: {reason}") from None
