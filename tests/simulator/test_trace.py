"""Timeline, memory curves and critical path of single runs."""

import itertools

import numpy as np

from placer.simulator import Reason, Simulator, SpanKind, Trace
from tests.simulator.graphs import random_inputs
from tests.simulator.reference import Reference
from tests.simulator.test_simulator import chain


def random_traces(count: int, max_devices: int = 4) -> list[tuple[Trace, Reference]]:
    traces = []
    for seed in range(count):
        rng = np.random.default_rng(seed)
        inputs = random_inputs(rng, max_devices=max_devices)
        placement = rng.integers(0, inputs.num_devices, inputs.num_ops)
        traces.append((Simulator(inputs).simulate(placement), Reference(inputs, placement)))
    return traces


def test_timeline_equals_the_reference() -> None:
    for trace, expected in random_traces(200):
        assert trace.step_seconds == expected.step_seconds
        for op in range(trace.op_start.size):
            if op in expected.op_start:
                assert trace.op_start[op] == expected.op_start[op]
                assert trace.op_end[op] == expected.op_end[op]
            else:
                assert np.isnan(trace.op_start[op])
        np.testing.assert_array_equal(trace.peak_bytes, expected.peak)
        np.testing.assert_array_equal(trace.peak_seconds, expected.peak_seconds)
        wires = trace.spans.kind == SpanKind.WIRE
        assert trace.spans.bytes[wires].sum() == sum(expected.transfer_bytes)


def test_critical_path_is_contiguous() -> None:
    reasons = set()
    for trace, _ in random_traces(200):
        path = trace.critical_path()
        if not path:
            assert np.isnan(trace.op_start).all()
            continue
        assert path[0].start == 0
        assert path[-1].end == trace.step_seconds
        for before, after in itertools.pairwise(path):
            assert before.end == after.start
            assert after.reason != Reason.START
            if after.reason == Reason.DEVICE_BUSY:
                assert before.kind != SpanKind.WIRE
            if after.reason == Reason.LINK_BUSY:
                assert (before.kind, after.kind) == (SpanKind.WIRE, SpanKind.WIRE)
        reasons.update(step.reason for step in path)
    assert reasons == set(Reason)


def test_memory_curve_and_live_tensors_add_up() -> None:
    for trace, _ in random_traces(200):
        for device in range(trace.peak_bytes.size):
            curve = trace.memory_curve(device)
            assert curve.bytes.max() == trace.peak_bytes[device]
            assert (np.diff(curve.seconds) >= 0).all()
            held = sum(
                size
                for op, size in enumerate(trace._persistent_bytes)
                if trace.devices[op] == device
            )
            assert curve.bytes[0] == held
            # Everything but the persistent bytes is freed in the end.
            assert curve.bytes[-1] == held
            alive = trace.live_at_peak(device, None)
            assert sum(live.bytes for live in alive) == trace.peak_bytes[device]
            sizes = [live.bytes for live in alive]
            assert sizes == sorted(sizes, reverse=True)


def test_out_of_memory_names_device_and_tensors() -> None:
    inputs = chain(memory_limit=[100, 15], persistent_bytes=[0, 3, 0])
    trace = Simulator(inputs).simulate([0, 1, 1])
    assert not trace.feasible
    (problem,) = trace.out_of_memory()
    assert (problem.device, problem.peak_bytes, problem.limit_bytes) == (1, 23, 15)
    assert problem.seconds == 2
    assert [(live.kind, live.op, live.bytes) for live in problem.largest] == [
        ("copy", 0, 10),
        ("output", 1, 10),
        ("persistent", 1, 3),
    ]
    assert Simulator(chain()).simulate([0, 0, 0]).out_of_memory() == ()


def test_grouped_trace() -> None:
    trace = Simulator(chain()).simulate([1, 0], [0, 1, 1])
    np.testing.assert_array_equal(trace.devices, [1, 0, 0])
    assert trace.step_seconds == 4
