"""Checks of the plugin on tf.functions, for a process of its own with logical CPU devices.

    python -m tests.plugin.programs.functions CHECK

A check returns what it saw as JSON on the last line of standard output; the tests judge it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

import placer.plugin
from placer.graph import read
from placer.placement import Placement
from tests.plugin.programs.models import (
    ConvNet,
    Lstm,
    executed,
    misplaced,
    pieces,
    train,
    training_step,
)

DEVICES = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(3)]


def split_devices() -> None:
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * len(DEVICES),
    )


def train_here(kind: str) -> dict[str, Any]:
    split_devices()
    return train(kind, DEVICES)


def inlined() -> dict[str, Any]:
    """A function with a placement of its own, called twice by another that has none."""
    split_devices()
    model = ConvNet()
    concrete = training_step(model).get_concrete_function()
    placement = pieces(concrete, DEVICES)
    graph = read(concrete).graph_def

    @tf.function
    def outer(f: Any) -> tf.Tensor:
        return f() * 2.0 + f()

    models = [ConvNet(), ConvNet()]
    base = float(outer(training_step(models[0])))
    inner = training_step(models[1])
    with placer.plugin.applied(placement, graph=graph):
        value, devices = executed(lambda: float(outer(inner)))
    prefix = "StatefulPartitionedCall_1/"
    called = {n.removeprefix(prefix): d for n, d in devices.items() if n.startswith(prefix)}
    return {
        "base": base,
        "value": value,
        **misplaced(placement, called, placer.plugin.report(), prefix),
        "moved": placer.plugin.report().moved,
    }


def two_graphs() -> dict[str, Any]:
    """Two functions of one process, each with its placement from a folder."""
    import tempfile

    split_devices()
    result: dict[str, Any] = {}
    placements = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind, model_class in (("conv", ConvNet), ("lstm", Lstm)):
            model = model_class()
            graph = read(training_step(model).get_concrete_function()).graph_def
            device = DEVICES[1 if kind == "conv" else 2]
            placements[kind] = Placement(
                ops=tuple(n.name for n in graph.node),
                op_types=tuple(n.op for n in graph.node),
                devices=tuple(DEVICES),
                device_of_op=np.full(len(graph.node), DEVICES.index(device), np.int32),
                graph_fingerprint=kind,
            )
            placements[kind].save(os.path.join(folder, f"{kind}.pbtxt"))
        with placer.plugin.applied(folder) as activation:
            for kind, model_class in (("conv", ConvNet), ("lstm", Lstm)):
                with placements[kind].scope():
                    model = model_class()
                _, devices = executed(training_step(model))
                result[kind] = misplaced(dict(placements[kind]), devices, placer.plugin.report())
            result["ids"] = list(activation.ids)
            result["active"] = placer.plugin.report().active
    result["after"] = placer.plugin.report().active
    return result


def threads() -> dict[str, Any]:
    """Functions run in threads while others activate and deactivate."""
    split_devices()
    model = Lstm()
    base = float(training_step(model)())
    graph = training_step(model).get_concrete_function().graph.as_graph_def()
    stop = threading.Event()
    wrong: list[Any] = []

    def toggle(seed: int) -> None:
        generator = np.random.default_rng(seed)
        while not stop.is_set():
            placement = {n.name: DEVICES[generator.integers(3)] for n in graph.node}
            with placer.plugin.applied(placement, mode="heuristic"):
                placer.plugin.report()

    def run() -> None:
        for _ in range(6):
            model = Lstm()
            value = float(training_step(model)())
            if value != base:
                wrong.append((value, base))

    toggles = [threading.Thread(target=toggle, args=(seed,)) for seed in range(2)]
    runs = [threading.Thread(target=run) for _ in range(3)]
    for thread in toggles + runs:
        thread.start()
    for thread in runs:
        thread.join()
    stop.set()
    for thread in toggles:
        thread.join()
    return {"wrong": wrong, "active": placer.plugin.report().active}


def fork() -> dict[str, Any]:
    """A child forked after loading and activating; TensorFlow itself starts only afterwards."""
    placer.plugin.load()
    placer.plugin.load()
    placement = dict.fromkeys(("MatMul", "Relu", "mul", "mul/y", "Identity"), DEVICES[1])
    activation = placer.plugin.activate(placement)
    toggling = threading.Event()

    def toggle() -> None:
        while not toggling.is_set():
            placer.plugin.deactivate(placer.plugin.activate({"other": DEVICES[0]}))

    thread = threading.Thread(target=toggle)
    thread.start()
    reading, writing = os.pipe()
    children = []
    for _ in range(5):
        child = os.fork()
        if child == 0:
            split_devices()

            @tf.function
            def f(x: tf.Tensor) -> tf.Tensor:
                return tf.nn.relu(tf.matmul(x, x)) * 3.0

            value, devices = executed(lambda: float(tf.reduce_sum(f(tf.ones([4, 4])))))
            placer.plugin.deactivate(activation)
            os.write(writing, f"{value} {devices.get('MatMul')}\n".encode())
            os._exit(0)
        children.append(child)
    toggling.set()
    thread.join()
    statuses = [os.waitpid(child, 0)[1] for child in children]
    os.close(writing)
    with os.fdopen(reading) as pipe:
        lines = pipe.read().split("\n")[:-1]
    return {"statuses": statuses, "lines": lines, "active": placer.plugin.report().active}


def heuristic() -> dict[str, Any]:
    """A graph with two independent heavy branches and no placement of its own."""
    split_devices()
    a = tf.Variable(tf.random.normal([512, 512], seed=1), name="a")

    def make() -> Any:
        @tf.function
        def f(x: tf.Tensor) -> tf.Tensor:
            left = right = x
            for _ in range(6):
                left = tf.tanh(tf.matmul(left, a))
                right = tf.sin(tf.matmul(right, a))
            return tf.reduce_sum(left) + tf.reduce_sum(right)

        return f

    x = tf.ones([512, 512])
    base = float(make()(x))
    with placer.plugin.applied(mode="heuristic"):
        value, devices = executed(lambda: float(make()(x)))
    matmuls = sorted(devices[n] for n in devices if n.startswith("MatMul") and "Read" not in n)
    latest = placer.plugin.report().latest
    return {
        "base": base,
        "value": value,
        "matmuls": matmuls,
        "outcomes": [g.outcome for g in latest],
        "seconds": max(g.seconds for g in latest),
        "gain": max(g.predicted_before / max(g.predicted_after, 1e-12) for g in latest),
    }


CHECKS: dict[str, Callable[[], dict[str, Any]]] = {
    "conv": lambda: train_here("conv"),
    "lstm": lambda: train_here("lstm"),
    "inception": lambda: train_here("inception"),
    "inlined": inlined,
    "two_graphs": two_graphs,
    "threads": threads,
    "fork": fork,
    "heuristic": heuristic,
}

if __name__ == "__main__":
    print(json.dumps(CHECKS[sys.argv[1]]()), flush=True)
