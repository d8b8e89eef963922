import itertools

import numpy as np
import pytest

from placer import report
from placer.report.tables import layer_seconds
from placer.simulator import Reason, SpanKind


def test_layer_seconds_are_the_devices_busy_times(example):
    seconds = layer_seconds(example.problem, example.placement, example.layers)
    # Transfers of K80s take no device time, so devices are busy with ops alone.
    np.testing.assert_allclose(seconds.sum(axis=(0, 1)), example.trace.busy_seconds)
    frame = report.layer_frame(example.problem, example.placement, example.layers)
    assert frame.compute_seconds.sum() == pytest.approx(example.trace.busy_seconds.sum())
    np.testing.assert_allclose(frame[["CPU:0", "GPU:0", "GPU:1"]].sum(axis=1), 1.0)
    encoder = frame[(frame.layer == "encoder/layer_0") & (frame["pass"] == "forward")]
    assert encoder["GPU:0"].item() == 1.0


def test_device_frame(example):
    frame = report.device_frame(example.trace, example.problem.topology)
    assert frame.device.tolist() == ["CPU:0", "GPU:0", "GPU:1"]
    assert frame.ops.sum() == example.problem.graph.executed.sum()
    np.testing.assert_allclose(frame.busy_seconds + frame.idle_seconds, example.trace.step_seconds)
    assert frame.mib_sent.sum() * 2**20 == pytest.approx(example.trace.transfer_bytes.sum())


def test_critical_path_adds_up_to_the_step_time(example):
    frame = report.critical_path_frame(example.trace, example.problem, example.layers)
    step = example.trace.step_seconds
    assert frame.seconds.sum() == pytest.approx(step)
    np.testing.assert_allclose(frame.start[1:], (frame.start + frame.seconds)[:-1])
    wires = sum(s.kind == SpanKind.WIRE for s in example.trace.critical_path())
    assert frame[frame.what == "transfer"].ops.sum() == wires > 0
    summary = report.critical_path_summary(frame)
    assert summary.share.sum() == pytest.approx(1.0)
    assert summary.seconds.is_monotonic_decreasing
    text = report.describe_critical_path(frame)
    assert "compute" in text
    assert "transfer" in text


def test_print_frame_says_what_it_leaves_out(example, capsys):
    frame = report.critical_path_frame(example.trace, example.problem, example.layers)
    report.print_frame(frame, "path", limit=2)
    out = capsys.readouterr().out
    assert frame.first_op[0] in out
    assert f"{len(frame) - 2} lines more" in out


def test_crossings_are_those_that_the_path_goes_along(example):
    frame = report.critical_path_frame(example.trace, example.problem, example.layers)
    path = example.trace.critical_path()
    along = 0
    for step, after in itertools.pairwise(path):
        if step.kind == SpanKind.WIRE:
            # What waits for the link does not read what went before it.
            along += after.reason != Reason.LINK_BUSY
    assert frame.crossings.sum() == along
    assert f"crosses between devices {along} times" in report.describe_critical_path(frame)
