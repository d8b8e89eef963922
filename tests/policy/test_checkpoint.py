"""Checkpoints: a killed run goes on as if nothing had happened."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from placer.errors import PlacerError
from placer.policy import PolicySettings, train
from placer.policy.train import Training
from tests.policy.problems import chains, search_of, two_gpus

SETTINGS = PolicySettings(hidden=16, samples=64, update_samples=32, warm_up=256)
EVALUATIONS = 960

_RUN = """
import sys
from placer.policy import train
from tests.policy.problems import chains, search_of, two_gpus
from tests.policy.test_checkpoint import EVALUATIONS, SETTINGS
train(search_of(chains(two_gpus()), EVALUATIONS), SETTINGS, sys.argv[1], checkpoint_seconds=0.0)
"""


def final_state(directory) -> dict[str, np.ndarray]:
    import tensorflow as tf

    path = tf.train.latest_checkpoint(str(directory))
    reader = tf.train.load_checkpoint(path)
    return {
        name: reader.get_tensor(name)
        for name in reader.get_variable_to_shape_map()
        # Wall-clock times, and the names that Keras gives optimizers in turn, are not the same.
        if not any(
            part in name for part in ("history_numbers", "elapsed", "save_counter", "OBJECT_GRAPH")
        )
    }


def test_a_killed_run_ends_bit_equal(tmp_path):
    whole = search_of(chains(two_gpus()), EVALUATIONS)
    train(whole, SETTINGS, str(tmp_path / "whole"))

    process = subprocess.Popen(
        [sys.executable, "-c", _RUN, str(tmp_path / "killed")],
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    deadline = time.monotonic() + 120
    while len(list((tmp_path / "killed").glob("*.index"))) < 2:
        assert process.poll() is None, "ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL

    resumed = search_of(chains(two_gpus()), EVALUATIONS)
    train(resumed, SETTINGS, str(tmp_path / "killed"))
    assert resumed.evaluations == whole.evaluations == EVALUATIONS
    assert resumed.best_seconds == whole.best_seconds
    np.testing.assert_array_equal(resumed.best, whole.best)
    columns = ["evaluations", "step_seconds", "source"]
    assert resumed.history()[columns].equals(whole.history()[columns])
    one, other = final_state(tmp_path / "whole"), final_state(tmp_path / "killed")
    assert one.keys() == other.keys()
    assert len(one) > 40  # Weights, both moments of Adam, the state.
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    train(search_of(chains(two_gpus(), length=1), 128), SETTINGS, str(tmp_path))
    with pytest.raises(PlacerError, match="another graph"):
        train(search_of(chains(two_gpus(), length=2), 128), SETTINGS, str(tmp_path))
    with pytest.raises(PlacerError, match="another seed"):
        train(search_of(chains(two_gpus(), length=1), 128, seed=1), SETTINGS, str(tmp_path))
    other = dataclasses.replace(SETTINGS, hidden=8)
    with pytest.raises(PlacerError, match="hidden=16, not 8"):
        train(search_of(chains(two_gpus(), length=1), 128), other, str(tmp_path))


@pytest.mark.parametrize("where", ["evaluating", "learning"])
def test_ctrl_c_within_a_batch_leaves_a_whole_checkpoint(tmp_path, monkeypatch, where):
    whole = search_of(chains(two_gpus()), EVALUATIONS)
    train(whole, SETTINGS, str(tmp_path / "whole"))

    cut = search_of(chains(two_gpus()), EVALUATIONS)
    learn = Training._learn

    def interrupted(*arguments):
        learn(*arguments)
        if cut.evaluations > 400:
            raise KeyboardInterrupt

    def on_progress(search):
        if search.evaluations > 400:
            raise KeyboardInterrupt

    if where == "evaluating":
        cut._on_progress = on_progress
    else:
        monkeypatch.setattr(Training, "_learn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(cut, SETTINGS, str(tmp_path / "cut"), checkpoint_seconds=0.0)
    monkeypatch.undo()

    resumed = search_of(chains(two_gpus()), EVALUATIONS)
    train(resumed, SETTINGS, str(tmp_path / "cut"))
    assert resumed.evaluations == whole.evaluations
    assert resumed.best_seconds == whole.best_seconds
    one, other = final_state(tmp_path / "whole"), final_state(tmp_path / "cut")
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], name)


def test_a_damaged_checkpoint_is_refused(tmp_path):
    train(search_of(chains(two_gpus(), length=1), 128), SETTINGS, str(tmp_path))
    data = next(tmp_path.glob("*.data-*"))
    data.write_bytes(data.read_bytes()[: data.stat().st_size // 2])
    with pytest.raises(PlacerError, match="cannot read checkpoint"):
        train(search_of(chains(two_gpus(), length=1), 256), SETTINGS, str(tmp_path))


def test_a_checkpoint_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PlacerError, match="cannot make checkpoint directory"):
        train(search_of(chains(two_gpus(), length=1), 64), SETTINGS, str(tmp_path / "file" / "x"))
