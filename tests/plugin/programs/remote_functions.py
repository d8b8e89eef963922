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
import tempfile
import traceback
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

import placer.plugin
from placer.graph import read
from placer.placement import Placement
from placer.runtime.backends import free_ports
from placer.runtime.worker import preload_loopback, start_server
from tests.plugin.programs.models import Lstm, pieces, train, training_step

MODULE = "tests.plugin.programs.remote_functions"
DEVICES = [f"/job:worker/replica:0/task:{i}/device:CPU:0" for i in range(2)]


class Workers:
    """The workers' processes.

    Attributes:
      placement: file of a placement of the LSTM's training step.
    """

    def __init__(self, folder: str):
        model = Lstm()
        concrete = training_step(model).get_concrete_function()
        graph = read(concrete)
        wanted = pieces(concrete, DEVICES)
        self.placement = os.path.join(folder, "placement.pb")
        Placement(
            ops=tuple(n.name for n in graph.graph_def.node),
            op_types=tuple(n.op for n in graph.graph_def.node),
            devices=tuple(DEVICES),
            device_of_op=np.array(
                [DEVICES.index(wanted[n.name]) for n in graph.graph_def.node], np.int32
            ),
        ).save(self.placement)
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(len(DEVICES))]
        command = [sys.executable, "-m", MODULE, "worker"]
        self._processes = [
            subprocess.Popen(
                [*command, str(task), self.placement, *self.addresses],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for task in range(len(DEVICES))
        ]

    def reports(self) -> list[dict[str, int]]:
        """Ends the workers; what their plugins saw."""
        outputs = [process.communicate()[0] for process in self._processes]
        return [json.loads(output.splitlines()[-1]) for output in outputs]

    def kill(self) -> None:
        """Ends the workers."""
        for process in self._processes:
            process.kill()
            process.wait()


def remote_call(workers: Workers) -> dict[str, Any]:
    """A function that is called on a worker as a whole: that worker's Grappler has the graph.

    The placement is active in the client and in the first worker, not in the second.
    """
    losses = []
    with placer.plugin.applied(workers.placement):
        for device in DEVICES:
            with tf.device(device):
                model = Lstm()
                losses.append(float(training_step(model)()))
    report = placer.plugin.report()
    return {"losses": losses, "client_graphs": report.graphs, "workers": workers.reports()}


CHECKS: dict[str, Callable[[Workers], dict[str, Any]]] = {
    "lstm": lambda _: train("lstm", DEVICES),
    "inception": lambda _: train("inception", DEVICES),
    "remote_call": remote_call,
}


def main(check: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        workers = Workers(folder)
        try:
            cluster = tf.train.ClusterSpec({"worker": workers.addresses})
            tf.config.experimental_connect_to_cluster(cluster, job_name="client")
            print(json.dumps(CHECKS[check](workers)), flush=True)
        except BaseException:
            traceback.print_exc()
        workers.kill()
    os._exit(0)  # TensorFlow would wait for workers that are gone.


def work(task: int, placement: str, addresses: list[str]) -> None:
    """A worker; `placement` is active in the first. Prints its report when its input ends."""
    placer.plugin.load()
    if task == 0:
        placer.plugin.activate(placement)
    server = start_server({"worker": addresses}, "worker", task, cores=1)
    sys.stdin.read()
    report = placer.plugin.report()
    seen = {"matched": report.matched, "moved": report.moved, "idle": report.idle_graphs}
    print(json.dumps(seen), flush=True)
    del server
    os._exit(0)


if __name__ == "__main__":
    preload_loopback()
    if sys.argv[1] == "worker":
        work(int(sys.argv[2]), sys.argv[3], sys.argv[4:])
    main(sys.argv[1])
