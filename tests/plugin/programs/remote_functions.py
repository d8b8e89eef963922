"""Checks of the plugin on tf.functions that run on two gRPC workers.

    python -m tests.plugin.programs.remote_functions CHECK

The process is the client, whose Grappler sees the functions that it calls; two children are the
workers. A check returns what it saw as JSON on the last line of standard output.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

import placer.plugin
from placer.graph import read
from placer.runtime.backends import free_ports
from placer.runtime.worker import preload_loopback, start_server
from tests.plugin.programs.models import Lstm, executed, pieces, train, training_step

MODULE = "tests.plugin.programs.remote_functions"
DEVICES = [f"/job:worker/replica:0/task:{i}/device:CPU:0" for i in range(2)]


def remote_call() -> dict[str, Any]:
    """A function that is called on a worker as a whole: that worker's Grappler has the graph."""
    with tf.device(DEVICES[1]):
        model = Lstm()
        step = training_step(model)
        base = float(step())
        concrete = step.get_concrete_function()
        placement = pieces(concrete, DEVICES)
        with placer.plugin.applied(placement, graph=read(concrete).graph_def):
            model = Lstm()
            step = training_step(model)
            loss, _ = executed(lambda: float(step()))
    report = placer.plugin.report()
    return {"base": base, "loss": loss, "graphs": report.graphs, "moved": report.moved}


CHECKS: dict[str, Callable[[], dict[str, Any]]] = {
    "lstm": lambda: train("lstm", DEVICES),
    "inception": lambda: train("inception", DEVICES),
    "remote_call": remote_call,
}


def main(check: str) -> None:
    addresses = [f"127.0.0.1:{port}" for port in free_ports(len(DEVICES))]
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", MODULE, "worker", str(task), *addresses],
            stdin=subprocess.PIPE,
        )
        for task in range(len(DEVICES))
    ]
    try:
        cluster = tf.train.ClusterSpec({"worker": addresses})
        tf.config.experimental_connect_to_cluster(cluster, job_name="client")
        print(json.dumps(CHECKS[check]()), flush=True)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        os._exit(0)  # TensorFlow would wait for workers that are gone.


if __name__ == "__main__":
    preload_loopback()
    if sys.argv[1] == "worker":
        served = start_server({"worker": sys.argv[3:]}, "worker", int(sys.argv[2]), threads=1)
        sys.stdin.read()  # Until the client is gone.
        os._exit(0)
    main(sys.argv[1])
