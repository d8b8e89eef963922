import itertools
import json
from collections import defaultdict

import pytest

from placer import report
from placer.simulator import SpanKind


@pytest.fixture(scope="module")
def events(example, tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "timeline.json"
    report.save_simulated_trace(example.trace, example.problem, example.layers, path)
    return json.loads(path.read_text())["traceEvents"]


def test_every_op_is_there_once(example, events):
    ops = [e for e in events if e["ph"] == "X" and e["cat"] == "op" and e["pid"] > 0]
    graph = example.problem.graph
    ran = {n for n, executed in zip(graph.names, graph.executed, strict=True) if executed}
    assert sorted(e["args"]["op"] for e in ops) == sorted(ran)
    index = {n: i for i, n in enumerate(graph.names)}
    for event in ops:
        op = index[event["args"]["op"]]
        assert event["ts"] == pytest.approx(1e6 * example.trace.op_start[op])
        assert event["pid"] == example.placement[op] + 1


def test_lanes_do_not_overlap(events):
    lanes = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            lanes[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in lanes.values():
        spans.sort()
        for (_, end), (start, _) in itertools.pairwise(spans):
            assert start >= end - 1e-6


def test_transfers_have_arrows_and_the_critical_path_adds_up(example, events):
    wires = int((example.trace.spans.kind == SpanKind.WIRE).sum())
    starts = [e for e in events if e["ph"] == "s"]
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert len(starts) == len(ends) == wires
    assert all(ends[e["id"]]["pid"] != e["pid"] for e in starts)
    path = [e for e in events if e["ph"] == "X" and e["pid"] == 0]
    assert sum(e["dur"] for e in path) == pytest.approx(1e6 * example.trace.step_seconds)


def test_memory_counters_reach_the_peaks(example, events):
    for d, peak in enumerate(example.trace.peak_bytes):
        values = [e["args"]["MiB"] for e in events if e["ph"] == "C" and e["pid"] == d + 1]
        assert max(values) * 2**20 == pytest.approx(peak)
