"""Checkpoints of a training run: weights, optimizer, best placement, history.

Random numbers follow from the seed and the number of the batch.
"""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf
from google.protobuf import text_format

from placer.devices import topology_fingerprint
from placer.errors import PlacerError
from placer.files import write_atomically
from placer.policy.state import TrainingState
from placer.protos import checkpoint_pb2

if TYPE_CHECKING:
    from placer.policy.train import Training
    from placer.search.state import Search

METADATA = "metadata.pbtxt"
# Among the settings: what of the problem the fingerprints do not tell.
_PROBLEM = "problem"


def _problem_digest(search: Search) -> str:
    """Hexadecimal hash of allowed devices, op costs and groups, and of what judges placements."""
    digest = hashlib.sha256(type(search.simulator).__name__.encode())
    problem = search.problem
    for array in (problem.allowed, problem.costs.seconds, search.grouping.group_of):
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:32]


class Checkpoints:
    """Saves and restores one training run in a directory.

    A checkpoint is written beside the last one, which is removed only then; a process killed at
    any moment leaves a whole one. `metadata.pbtxt` (protos/checkpoint.proto) says what the run is.

    Args:
      directory: made if it does not exist.
      training: the run.

    Raises:
      PlacerError: if the directory cannot be made.
    """

    def __init__(self, directory: str, training: Training) -> None:
        self._directory = Path(directory)
        self._training = training
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PlacerError(
                f"cannot make checkpoint directory {directory}: {error.strerror}"
            ) from None
        learner = training.learner
        self._arrays = {
            name: tf.Variable(value, shape=tf.TensorShape(None), trainable=False)
            for name, value in (training.state.arrays() | self._search_arrays()).items()
        }
        # Variables by position: the order in which the policy creates them is fixed.
        self._checkpoint = tf.train.Checkpoint(
            weights=[v.value for v in learner.policy.trainable_variables],
            optimizer=[v.value for v in learner.optimizer.variables],
            state=self._arrays,
        )
        self._manager = tf.train.CheckpointManager(
            self._checkpoint, str(self._directory), max_to_keep=2
        )

    def save(self) -> None:
        """Writes a checkpoint; PlacerError if that fails."""
        values = self._training.state.arrays() | self._search_arrays()
        for name, value in values.items():
            self._arrays[name].assign(value)
        try:
            self._manager.save(checkpoint_number=self._training.state.iteration)
        except (OSError, tf.errors.OpError) as error:
            reason = str(error).splitlines()[0]
            raise PlacerError(f"cannot write a checkpoint to {self._directory}: {reason}") from None
        text = text_format.MessageToString(self.metadata())
        write_atomically(self._directory / METADATA, text.encode())

    def restore(self) -> bool:
        """Takes up the last checkpoint, search included; False if there is none.

        Raises:
          PlacerError: if it is another run's, or cannot be read.
        """
        path = self._manager.latest_checkpoint
        if path is None:
            return False
        self._check_metadata()
        try:
            self._checkpoint.restore(path).assert_consumed()
        except (AssertionError, IndexError, ValueError, tf.errors.OpError) as error:
            reason = str(error).strip().splitlines()[0]
            raise PlacerError(f"cannot read checkpoint {path}: {reason}") from None
        arrays = {name: variable.numpy() for name, variable in self._arrays.items()}
        self._training.state = TrainingState.from_arrays(arrays)
        self._restore_search(arrays)
        return True

    def metadata(self) -> checkpoint_pb2.CheckpointMetadata:
        """What the run is and how far it came."""
        training = self._training
        problem = training.search.problem
        return checkpoint_pb2.CheckpointMetadata(
            graph_fingerprint=problem.graph.fingerprint,
            topology_fingerprint=topology_fingerprint(problem.topology),
            seed=training.search.seed,
            settings={k: str(v) for k, v in dataclasses.asdict(training.settings).items()}
            | {_PROBLEM: _problem_digest(training.search)},
            updates=training.state.updates,
            placements=training.state.placements,
            best_step_seconds=training.search.best_seconds,
        )

    def _check_metadata(self) -> None:
        path = self._directory / METADATA
        try:
            found = text_format.Parse(path.read_text(), checkpoint_pb2.CheckpointMetadata())
        except FileNotFoundError:
            return  # Killed between the first checkpoint and its metadata.
        except (OSError, UnicodeDecodeError, text_format.ParseError) as error:
            raise PlacerError(f"cannot read {path}: {error}") from None
        mine = self.metadata()
        for field, what in (
            ("graph_fingerprint", "graph"),
            ("topology_fingerprint", "topology"),
            ("seed", "seed"),
        ):
            if getattr(found, field) != getattr(mine, field):
                raise PlacerError(
                    f"{self._directory} holds a checkpoint of another {what}; "
                    "give another checkpoint directory or remove it"
                )
        if found.settings[_PROBLEM] != mine.settings[_PROBLEM]:
            raise PlacerError(
                f"{self._directory} holds a checkpoint of a run with other allowed devices, op "
                "costs, groups or kind of reward; give another checkpoint directory or remove it"
            )
        for name, value in mine.settings.items():
            if found.settings[name] != value:
                raise PlacerError(
                    f"{self._directory} holds a checkpoint with {name}={found.settings[name]}, "
                    f"not {value}; give another checkpoint directory or the same settings"
                )

    def _search_arrays(self) -> dict[str, np.ndarray]:
        search = self._training.search
        best = np.zeros(0, np.int32) if search.best is None else search.best
        rows = search.improvements
        return {
            "best": best,
            "best_seconds": np.array(search.best_seconds, np.float64),
            "evaluations": np.array(search.evaluations, np.int64),
            "elapsed": np.array(search.elapsed, np.float64),
            "history_numbers": np.array(
                [(r.seconds, r.evaluations, r.step_seconds) for r in rows], np.float64
            ).reshape(-1, 3),
            "history_sources": np.array([r.source for r in rows], "U").astype("S"),
        }

    def _restore_search(self, arrays: dict[str, np.ndarray]) -> None:
        self._training.search.resume(
            arrays["best"] if arrays["best"].size else None,
            float(arrays["best_seconds"]),
            int(arrays["evaluations"]),
            [
                (float(seconds), int(evaluations), float(step), source.decode())
                for (seconds, evaluations, step), source in zip(
                    arrays["history_numbers"], arrays["history_sources"], strict=True
                )
            ],
            float(arrays["elapsed"]),
        )
