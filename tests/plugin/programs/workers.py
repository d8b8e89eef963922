"""Runs a training step on two workers: as it is, as an annotated GraphDef, through the plugin.

    python -m tests.plugin.programs.workers MODEL SIZE ROUNDS

The process is worker 0 and the client; a child is worker 1. Each is pinned to a core of its own.
Prints a JSON object: losses and median step seconds by variant, the nodes that ran and those that
ran elsewhere than the placement says, and the plugin's report.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1
MODULE = "tests.plugin.programs.workers"


def two_towers(size: str) -> tf1.MetaGraphDef:
    """A training step of two towers that share nothing but the loss."""
    batch, width = {"tiny": (16, 128), "small": (384, 1024)}[size]
    with tf.Graph().as_default() as graph:
        x = tf1.random_uniform([batch, width], seed=1)
        outputs = []
        for tower in ("left", "right"):
            h = x
            for layer in range(4):
                w = tf1.get_variable(
                    f"{tower}/{layer}",
                    [width, width],
                    initializer=tf1.random_normal_initializer(stddev=width**-0.5, seed=layer),
                    use_resource=True,
                )
                h = tf.tanh(tf.matmul(h, w, name=f"{tower}/matmul_{layer}"))
            outputs.append(tf.reduce_mean(tf.square(h)))
        loss = tf.identity(outputs[0] + outputs[1], name="loss")
        train = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
        tf.group(train, name="train")
        tf.group(tf1.global_variables_initializer(), name="init")
        meta = tf1.train.export_meta_graph(graph=graph)
    meta.collection_def["train_op"].node_list.value[:] = ["train"]
    return meta


def start_server(task: int, ports: list[int]) -> Any:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[task % len(cores)]})
    config = tf1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    cluster = tf.train.ClusterSpec({"worker": [f"127.0.0.1:{port}" for port in ports]})
    return tf.distribute.Server(cluster, job_name="worker", task_index=task, config=config)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


def halves(meta: tf1.MetaGraphDef) -> dict[str, str]:
    """A legal placement: the first half of the model's layers on worker 0, the rest on 1."""
    from placer.pipeline import prepare

    problem = prepare(meta, None, "workers:2").problem
    nodes = meta.graph_def.node
    if any(n.name.startswith("left/") for n in nodes):
        wanted = np.array(["right" in n.name or "_1" in n.name for n in nodes], np.int32)
        for i, node in enumerate(nodes):
            if "left" in node.name:
                wanted[i] = 0
    else:
        wanted = (np.arange(len(nodes)) >= len(nodes) // 2).astype(np.int32)
    names = problem.topology.device_names
    placed = problem.repair(wanted)
    return {n.name: names[d] for n, d in zip(nodes, placed, strict=True)}


class Variant:
    """A session of its own on the cluster."""

    def __init__(
        self,
        meta: tf1.MetaGraphDef,
        target: str,
        annotate: dict[str, str] | None,
        scope: Any = None,
    ):
        graph_def = tf1.GraphDef()
        graph_def.CopyFrom(meta.graph_def)
        for node in graph_def.node:
            node.device = "/job:worker/task:0" if annotate is None else annotate[node.name]
        if scope is not None:
            for node in graph_def.node:
                node.device = ""
        self.graph = tf.Graph()
        with self.graph.as_default(), scope or contextlib.nullcontext():
            tf.graph_util.import_graph_def(graph_def, name="")
        self.session = tf1.Session(target, graph=self.graph)
        self.session.run("init")
        self.losses = [float(self.session.run(["loss:0", "train"])[0]) for _ in range(2)]
        self.metadata = tf1.RunMetadata()
        options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
        loss, _ = self.session.run(["loss:0", "train"], options=options, run_metadata=self.metadata)
        self.losses.append(float(loss))
        self.seconds: list[float] = []
        self.session.run("train")

    def step(self) -> None:
        start = time.perf_counter()
        self.session.run("train")
        self.seconds.append(time.perf_counter() - start)


def main(model: str, size: str, rounds: int) -> None:
    import placer.plugin
    from benchmarks.models import build

    ports = free_ports(2)
    worker = subprocess.Popen(
        [sys.executable, "-m", MODULE, "worker", *map(str, ports)], stdin=subprocess.PIPE
    )
    try:
        meta = two_towers(size) if model == "two_towers" else build(model, size)
        placement = halves(meta)
        server = start_server(0, ports)
        variants = {
            "one": Variant(meta, server.target, None),
            "annotated": Variant(meta, server.target, placement),
        }
        with placer.plugin.applied(placement, graph=meta.graph_def):
            scope = placer.plugin.variable_scope(placement)
            variants["plugin"] = Variant(meta, server.target, placement, scope)
        report = placer.plugin.report()
        for _ in range(rounds):
            for variant in variants.values():
                variant.step()
        left = {n for g in report.latest for names in g.left.values() for n in names}
        ran, elsewhere = [], []
        for device in variants["plugin"].metadata.step_stats.dev_stats:
            for stats in device.node_stats:
                if stats.node_name in placement:
                    ran.append(stats.node_name)
                    if placement[stats.node_name] != device.device:
                        elsewhere.append(stats.node_name)
        print(
            json.dumps(
                {
                    "losses": {k: v.losses for k, v in variants.items()},
                    "seconds": {
                        k: statistics.median(v.seconds) if v.seconds else None
                        for k, v in variants.items()
                    },
                    "best": {k: min(v.seconds) if v.seconds else None for k, v in variants.items()},
                    "devices": sorted(set(placement.values())),
                    "ran": len(ran),
                    "moved": report.moved,
                    "elsewhere": elsewhere,
                    "unexplained": sorted(set(elsewhere) - left),
                }
            ),
            flush=True,
        )
    finally:
        worker.kill()
        worker.wait()
        os._exit(0)  # A tf.distribute.Server cannot be stopped.


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        served = start_server(1, [int(port) for port in sys.argv[2:]])
        sys.stdin.read()  # Until the parent is gone.
        os._exit(0)
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
