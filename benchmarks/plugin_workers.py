"""Steps of one graph on two workers, three ways: unplaced, annotated and through the plugin.

    python -m benchmarks.plugin_workers META_GRAPH PLACEMENT ROUNDS STEPS GRAPPLER

The process is worker 0 and the client, since the Grappler of a session on gRPC workers is that of
the worker it is opened at; a child is worker 1. Each has one core. Every round
opens three sessions, the same graph in each:

- `unplaced`: without devices, so that all of it runs on worker 0;
- `annotated`: with the placement in its device fields;
- `plugin`: without devices, resources created in the placement's scope, the rest moved by the
  plugin.

Their steps take turns, in another order each time. The last line of standard output is JSON, see
`main`.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2

import placer.plugin
from placer.placement import Placement
from placer.runtime.backends import free_ports
from placer.runtime.worker import preload_loopback, start_server

tf1 = tf.compat.v1
MODULE = "benchmarks.plugin_workers"
VARIANTS = ("unplaced", "annotated", "plugin")
WORKERS = 2
# Steps before the timed ones; their losses are compared.
WARM_UP = 3


class Variant:
    """A session of its own, initialised and warm.

    Attributes:
      losses: before each warm-up step.
      devices: node -> device of the last warm-up step, by its step stats.
      seconds: of timed steps.
    """

    def __init__(
        self,
        meta: meta_graph_pb2.MetaGraphDef,
        target: str,
        variant: str,
        placement: Placement,
        grappler: str,
    ):
        graph_def = tf1.GraphDef()
        graph_def.CopyFrom(meta.graph_def)
        for node in graph_def.node:
            node.device = placement[node.name] if variant == "annotated" else ""
        with contextlib.ExitStack() as stack:
            graph = stack.enter_context(tf.Graph().as_default())
            if variant == "plugin":
                stack.enter_context(placer.plugin.applied(placement, graph=meta.graph_def))
                stack.enter_context(placer.plugin.variable_scope(placement))
            tf.graph_util.import_graph_def(graph_def, name="")
            config = tf1.ConfigProto(isolate_session_state=True)
            if grappler == "no_memory":
                rewrites = config.graph_options.rewrite_options
                rewrites.memory_optimization = rewrites.NO_MEM_OPT
            self._session = tf1.Session(target, graph=graph, config=config)
            self._session.run("init")
            metadata = tf1.RunMetadata()
            traced = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
            self.losses = []
            for i in range(WARM_UP):
                options = {"options": traced, "run_metadata": metadata} if i == WARM_UP - 1 else {}
                loss, _ = self._session.run(["loss:0", "train"], **options)
                self.losses.append(float(loss))
            self._step = self._session.make_callable(graph.get_operation_by_name("train"))
            self._step()
        self.devices = {
            stats.node_name: device.device
            for device in metadata.step_stats.dev_stats
            for stats in device.node_stats
        }
        self.seconds: list[float] = []

    def step(self) -> None:
        """Times a step."""
        start = time.perf_counter()
        self._step()
        self.seconds.append(time.perf_counter() - start)

    def close(self) -> None:
        """Ends the session; its variables go with it."""
        self._session.close()


def measure(
    meta: meta_graph_pb2.MetaGraphDef,
    placement: Placement,
    target: str,
    rounds: int,
    steps: int,
    grappler: str,
) -> dict[str, Any]:
    """Opens and times the variants; see `main` for what it returns."""
    seconds: dict[str, list[list[float]]] = {name: [] for name in VARIANTS}
    result: dict[str, Any] = {"seconds": seconds, "losses": {}}
    for i in range(max(1, rounds)):
        placer.plugin.reset_report()
        variants = {name: Variant(meta, target, name, placement, grappler) for name in _turn(i)}
        report = placer.plugin.report()
        for k in range(steps):
            for name in _turn(i + k):
                variants[name].step()
        for name, variant in variants.items():
            seconds[name].append(variant.seconds)
            result["losses"][name] = variant.losses
            variant.close()
        left = {n for graph in report.latest for names in graph.left.values() for n in names}
        ran = {n: d for n, d in variants["plugin"].devices.items() if n in placement}
        elsewhere = sorted(n for n, d in ran.items() if d != placement[n])
        result |= {
            "ran": len(ran),
            "moved": report.moved,
            "pass_seconds": report.seconds,
            "used": sorted(set(ran.values())),
            "elsewhere": elsewhere,
            "unexplained": sorted(set(elsewhere) - left),
        }
    return result


def _turn(i: int) -> Sequence[str]:
    """The variants in the i-th of their orders."""
    start = i % len(VARIANTS)
    return VARIANTS[start:] + VARIANTS[:start]


@contextlib.contextmanager
def cluster() -> Iterator[str]:
    """Starts worker 1 in a child and worker 0 here; yields the target of sessions."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(WORKERS)]
    child = subprocess.Popen(
        [sys.executable, "-m", MODULE, "worker", "1", *addresses], stdin=subprocess.PIPE
    )
    try:
        yield serve(0, addresses).target
    finally:
        child.kill()
        child.wait()


def serve(task: int, addresses: Sequence[str]) -> Any:
    """Makes this process a worker, on a core of its own."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[task % len(cores)]})
    return start_server({"worker": addresses}, "worker", task, cores=1)


def main(graph: str, placement: str, rounds: int, steps: int, grappler: str) -> None:
    """Measures and prints a JSON object.

    Its fields: `seconds`, by variant a list of step times for each round; `losses`, by variant;
    `ran`, placed ops in the plugin's step stats; `moved` and `pass_seconds`, by the plugin's
    report; `used`, devices that ran; `elsewhere`, ops that ran on another device than the
    placement names; `unexplained`, those of them that the report does not list.

    Args:
      graph: file of a MetaGraphDef as benchmarks.models makes it.
      placement: placement file for `workers:2`.
      rounds: at least 1.
      steps: timed steps of each variant in each round.
      grappler: default, or no_memory for sessions without Grappler's memory optimizer.
    """
    meta = meta_graph_pb2.MetaGraphDef.FromString(Path(graph).read_bytes())
    with cluster() as target:
        placed = Placement.load(placement)
        print(json.dumps(measure(meta, placed, target, rounds, steps, grappler)))
        sys.stdout.flush()
    os._exit(0)  # A tf.distribute.Server cannot be stopped.


if __name__ == "__main__":
    preload_loopback()
    if sys.argv[1] == "worker":
        served = serve(int(sys.argv[2]), sys.argv[3:])
        sys.stdin.read()  # Until the parent is gone.
        os._exit(0)
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
