"""Step stats as tables and traces, checked against the step that they describe."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from placer.devices import gpu_hosts
from placer.graph.source import GraphSource, read
from placer.pipeline import prepare
from placer.runtime import MeasurementProtocol, Runner, RunnerSettings, open_runner
from placer.runtime.profiling import profile
from placer.runtime.step_stats import (
    chrome_trace,
    device_frame,
    misplaced_ops,
    op_frame,
    save_chrome_trace,
    transfer_frame,
)
from tests.runtime.graphs import everywhere, split_chains

STEPS = MeasurementProtocol(steps=2, stop_ratio=0, repeats=0)


@pytest.fixture(scope="module")
def metadata(workers: Runner, chains: GraphSource) -> tf.compat.v1.RunMetadata:
    measured = workers.measure(split_chains(chains), STEPS, keep_step_stats=True)
    assert measured.run_metadata is not None
    return measured.run_metadata


def test_every_op_has_a_row(metadata: tf.compat.v1.RunMetadata, chains: GraphSource) -> None:
    frame = op_frame(metadata)
    products = frame[frame["op_type"] == "MatMul"]
    assert len(products) == 40
    assert (products["bytes"] == 4 * 256 * 256).all()
    assert (products["duration"] > 0).all()
    assert (frame["start"] >= 0).all()
    # Within a chain each product starts after the one it reads.
    for i in range(2):
        names = [f"chain_{i}/MatMul", *(f"chain_{i}/MatMul_{k}" for k in range(1, 20))]
        starts = frame.set_index("op").loc[names, "start"]
        assert starts.is_monotonic_increasing


def test_transfers_are_those_of_the_cut(metadata: tf.compat.v1.RunMetadata) -> None:
    frame = transfer_frame(metadata)
    assert len(frame) == 1
    row = frame.iloc[0]
    assert row["tensor"] == "chain_1/Sum"
    assert row["source"].endswith("task:1/device:CPU:0")
    assert row["target"].endswith("task:0/device:CPU:0")
    assert row["bytes"] == 4


def test_devices_add_up(metadata: tf.compat.v1.RunMetadata) -> None:
    frame = device_frame(metadata)
    assert len(frame) == 2
    spans = frame["compute"] + frame["idle"]
    assert spans.nunique() == 1 or np.ptp(spans) < 1e-9
    ops = op_frame(metadata)
    for name, row in frame.iterrows():
        # One thread a worker: ops do not overlap, so their durations are its compute time.
        total = ops.loc[ops["device"] == name, "duration"].sum()
        assert row["compute"] == pytest.approx(total, rel=0.02)
    assert frame["received_bytes"].tolist() == [4, 0]


def test_the_trace_has_every_event(metadata: tf.compat.v1.RunMetadata, tmp_path: Path) -> None:
    trace = chrome_trace(metadata)
    events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert len(events) == len(op_frame(metadata)) + 1
    lanes: dict[tuple[int, int], float] = {}
    for event in sorted(events, key=lambda e: e["ts"]):
        lane = (event["pid"], event["tid"])
        assert event["ts"] >= lanes.get(lane, 0.0) - 1e-3
        lanes[lane] = event["ts"] + event["dur"]
    save_chrome_trace(metadata, tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text()) == trace


def test_an_overruled_device_shows() -> None:
    """A variable torn from its reader: TensorFlow moves the reader and says nothing."""
    with tf.Graph().as_default() as graph:
        variable = tf.compat.v1.get_variable("v", [2], use_resource=True)
        tf.identity(variable.read_value(), name="out")
    source = read(graph.as_graph_def(), ["out"])
    names = [n.name for n in source.graph_def.node]
    whole = everywhere(source, 1)
    torn = whole.copy()
    # What is colocated with the variable goes with it.
    torn[[n == "v" or n.startswith(("v/Init", "v/Assign")) for n in names]] = 2
    settings = RunnerSettings(emulate=True, disturbance_ratio=0)
    with open_runner(gpu_hosts("k80", 2), source, settings) as runner:
        for placement, expected in ((whole, 0), (torn, 1)):
            measured = runner.measure(placement, STEPS, keep_step_stats=True)
            assert measured.run_metadata is not None
            found = misplaced_ops(
                source.graph_def, placement, runner.session_devices, measured.run_metadata
            )
            assert len(found) == expected
        assert found[0].placed == runner.session_devices[1]
        assert found[0].ran == runner.session_devices[2]


def test_a_profile_holds_the_time_of_every_op(workers: Runner, chains: GraphSource) -> None:
    problem = prepare(chains.graph_def, ["out"], workers.topology).problem
    result = profile(workers, problem, steps=3)
    assert len(result.devices) == 1
    found = result.devices[0]
    assert found.steps == 3
    times = dict(zip(found.ops, found.mean_seconds, strict=True))
    products = [t for op, t in times.items() if "MatMul" in op]
    assert len(products) == 40
    measured = workers.measure(everywhere(chains, 0), STEPS)
    assert sum(times.values()) == pytest.approx(measured.seconds, rel=0.5)
