"""Installing the plugin where TensorFlow finds it, and loading what is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import placer.plugin
from placer.errors import PlacerError
from placer.plugin.library import FILE_NAME, open_library


def test_install_status_remove(tmp_path: Path) -> None:
    folder = tmp_path / "tensorflow-plugins"
    assert placer.plugin.status(folder).installed is None
    copy = placer.plugin.install(folder)
    status = placer.plugin.status(folder)
    assert status.installed == copy
    assert status.current
    copy.write_bytes(b"older")
    assert not placer.plugin.status(folder).current
    assert "of another build" in str(placer.plugin.status(folder))
    assert placer.plugin.remove(folder)
    assert not folder.exists()
    assert not placer.plugin.remove(folder)


def test_a_file_that_is_no_plugin_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"no library")
    with pytest.raises(PlacerError, match="not Placer's plugin"):
        open_library(tmp_path / FILE_NAME)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PlacerError, match="cannot create"):
        placer.plugin.install(tmp_path / "file" / "tensorflow-plugins")


def test_a_copy_that_tensorflow_loaded_is_the_one_used(tmp_path: Path) -> None:
    """TensorFlow takes a second registration of one device type for a fatal error."""
    copy = placer.plugin.install(tmp_path / "plugins")
    program = (
        "import tensorflow as tf, placer.plugin\n"
        "from placer.plugin.library import mapped_path\n"
        "assert placer.plugin.loaded()\n"
        "placer.plugin.load()\n"
        "print(mapped_path())\n"
        "f = tf.function(lambda x: tf.nn.relu(tf.matmul(x, x)) * 3.0)\n"
        "f(tf.ones([2, 2]))\n"
        "print(placer.plugin.report().idle_graphs > 0)\n"
    )
    environment = os.environ | {
        "TF_PLUGGABLE_DEVICE_LIBRARY_PATH": str(copy.parent),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == [str(copy), "True"]
