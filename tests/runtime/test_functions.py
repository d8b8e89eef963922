"""A placement applied to a ConcreteFunction."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from placer.errors import PlacerError
from placer.runtime import MeasurementProtocol
from placer.runtime.functions import place_function, time_function

ROOT = Path(__file__).resolve().parents[2]

# Logical devices must be made before TensorFlow starts, so this runs in a process of its own.
SCRIPT = """
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from placer.runtime.functions import place_function
weight = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
steps = tf.Variable(0)

@tf.function
def f(x):
    steps.assign_add(1)
    return {"y": tf.matmul(x, weight), "n": steps.read_value(), "none": None}

original = f.get_concrete_function(tf.TensorSpec([None, 2]))
placed = place_function(original, lambda op: "/device:CPU:1" if "MatMul" in op else "")
devices = {op.type: op.device for op in placed.graph.get_operations()}
assert devices["MatMul"].endswith("CPU:1"), devices
x = tf.ones([3, 2])
one, two = original(x), placed(x)
assert set(two) == {"y", "n", "none"} and two["none"] is None
assert (one["y"].numpy() == two["y"].numpy()).all()
assert int(two["n"]) == 2 and int(steps) == 2
weight.assign(weight * 2)
assert (placed(x)["y"].numpy() == 2 * one["y"].numpy()).all()
"""


def test_a_placed_function_computes_the_same_on_the_same_variables() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_function_is_timed_and_traced(tmp_path: Path) -> None:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.matmul(x, x)

    concrete = place_function(f.get_concrete_function(tf.TensorSpec([64, 64])), lambda op: "")
    measured = time_function(
        concrete, [tf.ones([64, 64])], MeasurementProtocol(steps=3), str(tmp_path)
    )
    assert len(measured.steps) == 3
    assert min(measured.steps) > 0
    assert list(tmp_path.rglob("*.xplane.pb"))


def test_a_failing_function_is_a_failed_measurement() -> None:
    @tf.function
    def f() -> tf.Tensor:
        return tf.debugging.check_numerics(tf.constant(1.0) / 0.0, "endless")

    measured = time_function(place_function(f.get_concrete_function(), lambda op: ""))
    assert "endless" in str(measured.failure)


def test_only_concrete_functions_are_placed() -> None:
    with pytest.raises(PlacerError, match="ConcreteFunction"):
        place_function(tf.function(lambda: 1), lambda op: "")
