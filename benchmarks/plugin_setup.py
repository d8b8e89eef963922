"""Sets up sessions on one graph, on command, with the plugin in one state or another.

    python -m benchmarks.plugin_setup META_GRAPH PLACEMENT

Reads one word a line from standard input and answers each with one line of JSON:

- `plain`: a session without the plugin, only before any other word;
- `idle`: the plugin is loaded and nothing is active;
- `no match`: a placement is active whose ops are called otherwise, but alike;
- `matched`: the graph's own placement is active;
- `whole`: the pass alone on the whole GraphDef, which a session would prune first.

Set-up is the first run of the training step less a later one: TensorFlow prunes, places, optimizes
and partitions the graph in it. Initialising and building the Python graph are not counted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import os
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2

import placer.plugin
from placer.placement import Placement

tf1 = tf.compat.v1
STATES = ("plain", "idle", "no match", "matched")
LATER_STEPS = 3


def set_up(meta: meta_graph_pb2.MetaGraphDef, placement: Placement, state: str) -> dict[str, float]:
    """Times one session.

    Returns:
      `setup_seconds`; and of the graphs of the training step that reached the pass, none unless
      something is active: `pass_seconds`, their sum, `pass_nodes`, of the largest, and `moved`.
    """
    with contextlib.ExitStack() as stack:
        graph = stack.enter_context(tf.Graph().as_default())
        if state == "matched":
            stack.enter_context(placer.plugin.applied(placement, graph=meta.graph_def))
            stack.enter_context(placer.plugin.variable_scope(placement))
        elif state == "no match":
            other = dataclasses.replace(
                placement, ops=tuple(f"other/{name}" for name in placement.ops)
            )
            stack.enter_context(placer.plugin.applied(other))
        elif state == "idle":
            placer.plugin.load()
        tf.graph_util.import_graph_def(meta.graph_def, name="")
        config = tf1.ConfigProto(device_count={"CPU": len(placement.devices)})
        with tf1.Session(graph=graph, config=config) as session:
            session.run("init")
            if state != "plain":
                placer.plugin.reset_report()
            gc.collect()
            seconds = [_timed(session) for _ in range(1 + LATER_STEPS)]
    result = {"setup_seconds": seconds[0] - statistics.median(seconds[1:])}
    if state != "plain":
        report = placer.plugin.report()
        result |= {
            "pass_seconds": report.seconds,
            "pass_nodes": max((g.nodes for g in report.latest), default=0),
            "moved": report.moved,
        }
    return result


def whole(meta: meta_graph_pb2.MetaGraphDef, placement: Placement) -> dict[str, float]:
    """The pass on every node of the GraphDef, all of them on the first device."""
    graph_def = tf1.GraphDef()
    graph_def.CopyFrom(meta.graph_def)
    for node in graph_def.node:
        node.device = placement.devices[0]
    data = graph_def.SerializeToString()
    with placer.plugin.applied(placement, graph=meta.graph_def):
        placer.plugin.reset_report()
        placer.plugin.rewrite(data, placement.devices)
        report = placer.plugin.report()
    nodes = len(graph_def.node)
    return {"pass_seconds": report.seconds, "pass_nodes": nodes, "moved": report.moved}


def _timed(session: tf.compat.v1.Session) -> float:
    start = time.perf_counter()
    session.run("train")
    return time.perf_counter() - start


def main(graph: str, placement_file: str) -> None:
    """Answers until standard input ends."""
    meta = meta_graph_pb2.MetaGraphDef.FromString(Path(graph).read_bytes())
    placement = Placement.load(placement_file)
    for line in sys.stdin:
        state = line.strip()
        answer = whole(meta, placement) if state == "whole" else set_up(meta, placement, state)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
