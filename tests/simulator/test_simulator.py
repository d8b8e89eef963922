"""The native simulator against a slow one in Python, and what it refuses."""

import dataclasses
import os
import threading

import numpy as np
import pytest

from placer.simulator import Simulator, SimulatorInputs, SpanKind
from tests.simulator.graphs import random_inputs
from tests.simulator.reference import Reference

FIGURES = ("step_seconds", "peak_bytes", "busy_seconds", "transfer_seconds", "transfer_bytes")


def chain(**changes: object) -> SimulatorInputs:
    """Ops 0 -> 1 -> 2 of one second, tensors of 10 bytes, two devices with one second between."""
    inputs = SimulatorInputs(
        executed=[True] * 3,
        op_seconds=[[1.0] * 3],
        launch_seconds=[0.0] * 2,
        persistent_bytes=[0] * 3,
        temporary_bytes=[[0] * 3],
        out_ptr=[0, 1, 2, 2],
        tensor_bytes=[10, 10],
        tensor_local_bytes=[10, 10],
        tensor_alias=[-1, -1],
        in_ptr=[0, 0, 1, 2],
        in_tensor=[0, 1],
        control_src=np.zeros(0, np.int32),
        control_dst=np.zeros(0, np.int32),
        device_class=[0, 0],
        memory_limit=[100, 100],
        concurrency=[1, 1],
        executor_threads=[0, 0],
        contention=np.zeros((2, 2)),
        inline_op=[False] * 3,
        latency=np.ones((2, 2)),
        seconds_per_byte=np.zeros((2, 2)),
        channels=np.full((2, 2, 2), -1),
        send_cpu_seconds=np.zeros((2, 2)),
        send_cpu_seconds_per_byte=np.zeros((2, 2)),
        recv_cpu_seconds=np.zeros((2, 2)),
        recv_cpu_seconds_per_byte=np.zeros((2, 2)),
    )
    return dataclasses.replace(inputs, **changes)


def ops(count: int, **changes: object) -> SimulatorInputs:
    """Ops of one second, to be joined by what `changes` says of edges."""
    return chain(
        executed=[True] * count,
        op_seconds=[[1.0] * count],
        persistent_bytes=[0] * count,
        temporary_bytes=[[0] * count],
        inline_op=[False] * count,
        **changes,
    )


@pytest.mark.parametrize("part", range(4))
def test_equals_the_reference_to_the_last_bit(part: int) -> None:
    for seed in range(part * 100, part * 100 + 100):
        rng = np.random.default_rng(seed)
        inputs = random_inputs(rng)
        placements = rng.integers(0, inputs.num_devices, (4, inputs.num_ops))
        result = Simulator(inputs).evaluate(placements, threads=1)
        for row, placement in enumerate(placements):
            expected = Reference(inputs, placement).totals()
            for name in FIGURES:
                np.testing.assert_array_equal(
                    getattr(result, name)[row], expected[name], f"seed {seed}: {name}"
                )
            assert result.feasible[row] == (expected["peak_bytes"] <= inputs.memory_limit).all()


def test_many_devices_equal_the_reference() -> None:
    # More lanes than the scanned set of events holds.
    for seed in range(30):
        rng = np.random.default_rng(seed)
        inputs = random_inputs(rng, max_ops=60, max_devices=14)
        placement = rng.integers(0, inputs.num_devices, inputs.num_ops)
        result = Simulator(inputs).evaluate(placement[np.newaxis])
        expected = Reference(inputs, placement).totals()
        for name in FIGURES:
            np.testing.assert_array_equal(getattr(result, name)[0], expected[name])


def test_chain_by_hand() -> None:
    simulator = Simulator(chain())
    result = simulator.evaluate([[0, 0, 0], [0, 1, 1], [0, 1, 0]])
    np.testing.assert_array_equal(result.step_seconds, [3, 4, 5])
    # Both tensors are alive while op 1 runs; a copy takes the place of a tensor that was sent.
    np.testing.assert_array_equal(result.peak_bytes, [[20, 0], [10, 20], [10, 20]])
    np.testing.assert_array_equal(result.transfer_bytes, [[0, 0], [10, 0], [10, 10]])
    assert result.feasible.all()


def test_grouped_placements_equal_expanded_ones() -> None:
    rng = np.random.default_rng(5)
    inputs = random_inputs(rng, max_ops=60)
    groups = rng.integers(0, 7, inputs.num_ops)
    placements = rng.integers(0, inputs.num_devices, (20, 7))
    simulator = Simulator(inputs)
    grouped = simulator.evaluate(placements, groups)
    expanded = simulator.evaluate(placements[:, groups])
    for name in FIGURES:
        np.testing.assert_array_equal(getattr(grouped, name), getattr(expanded, name))


def test_results_do_not_depend_on_threads_or_order() -> None:
    rng = np.random.default_rng(7)
    inputs = random_inputs(rng, max_ops=200, max_devices=4)
    simulator = Simulator(inputs)
    placements = rng.integers(0, inputs.num_devices, (300, inputs.num_ops))
    expected = simulator.evaluate(placements, threads=1)
    order = rng.permutation(300)
    for threads in (1, 2, 5):
        result = simulator.evaluate(placements[order], threads=threads)
        for name in (*FIGURES, "feasible"):
            np.testing.assert_array_equal(getattr(result, name), getattr(expected, name)[order])


def test_one_simulator_serves_several_threads() -> None:
    rng = np.random.default_rng(8)
    inputs = random_inputs(rng, max_ops=100)
    simulator = Simulator(inputs)
    placements = rng.integers(0, inputs.num_devices, (200, inputs.num_ops))
    expected = simulator.evaluate(placements, threads=1).step_seconds
    results: list[np.ndarray] = []

    def work() -> None:
        for _ in range(5):
            results.append(simulator.evaluate(placements, threads=2).step_seconds)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(results) == 20
    for result in results:
        np.testing.assert_array_equal(result, expected)


def test_works_after_a_fork() -> None:
    simulator = Simulator(chain())
    placements = np.zeros((50, 3), np.int32)
    simulator.evaluate(placements, threads=2)
    child = os.fork()
    if child == 0:
        try:
            ok = (simulator.evaluate(placements, threads=2).step_seconds == 3).all()
        finally:
            os._exit(0 if ok else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_cutoff_is_infinite_exactly_above_it() -> None:
    for seed in range(200):
        rng = np.random.default_rng(seed)
        inputs = random_inputs(rng, max_ops=50)
        simulator = Simulator(inputs)
        placements = rng.integers(0, inputs.num_devices, (8, inputs.num_ops))
        full = simulator.evaluate(placements)
        median = float(np.median(full.step_seconds))
        for cutoff in (np.nextafter(full.step_seconds[0], 0), full.step_seconds[0], median):
            cut = simulator.evaluate(placements, cutoff=cutoff)
            kept = full.step_seconds <= cutoff
            np.testing.assert_array_equal(
                cut.step_seconds, np.where(kept, full.step_seconds, np.inf)
            )
            np.testing.assert_array_equal(cut.feasible, full.feasible & kept)
            np.testing.assert_array_equal(cut.peak_bytes[kept], full.peak_bytes[kept])


def test_cutoff_by_row() -> None:
    result = Simulator(chain()).evaluate([[0, 0, 0], [0, 1, 0]], cutoff=[2.0, 6.0])
    np.testing.assert_array_equal(result.step_seconds, [np.inf, 5])


def test_nothing_to_run() -> None:
    inputs = chain(executed=[False] * 3, persistent_bytes=[5, 0, 7])
    result = Simulator(inputs).evaluate([[0, 0, 1]])
    assert result.step_seconds[0] == 0
    np.testing.assert_array_equal(result.peak_bytes, [[5, 7]])
    assert Simulator(inputs).evaluate(np.zeros((0, 3), np.int32)).step_seconds.shape == (0,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"op_seconds": [[1.0, np.nan, 1.0]]}, r"op_seconds\[0, 1\] is nan"),
        ({"op_seconds": [[1.0, 1.0, -2.0]]}, r"op_seconds\[0, 2\] is -2"),
        ({"launch_seconds": [0.0, np.inf]}, r"launch_seconds\[1\] is inf"),
        ({"latency": [[0, -1.0], [0, 0]]}, r"latency\[0, 1\] is -1"),
        ({"tensor_bytes": [10, -1]}, r"tensor_bytes\[1\] is -1"),
        ({"executor_threads": [0, -1]}, r"executor_threads\[1\] is -1"),
        ({"executor_threads": [257, 0]}, r"executor_threads\[0\] is 257"),
        ({"executor_threads": [0, 2], "concurrency": [1, 2]}, r"concurrency\[1\] is 2, must be 1"),
        ({"contention": [[0, np.nan], [0, 0]]}, r"contention\[0, 1\] is nan"),
        ({"contention": [0.0, 0.0]}, "contention"),
        ({"tensor_bytes": [2**61, 2**61]}, "exceed 2\\^62 bytes"),
        ({"persistent_bytes": [0, 0, -7]}, r"persistent_bytes\[2\] is -7"),
        ({"in_tensor": [0, 2]}, r"in_tensor\[1\] is 2"),
        ({"in_tensor": [-1, 1]}, r"in_tensor\[0\] is -1"),
        ({"in_tensor": [1, 0]}, "cycle: 1 -> 1"),
        ({"control_src": [2], "control_dst": [0]}, "cycle: "),
        ({"control_src": [3], "control_dst": [0]}, r"control_src\[0\] is 3"),
        ({"control_src": [1], "control_dst": [-1]}, r"control_dst\[0\] is -1"),
        ({"control_src": [1, 2]}, "control_dst has shape"),
        ({"out_ptr": [0, 1, 2, 3]}, r"out_ptr\[3\] is 3"),
        ({"out_ptr": [0, 2, 1, 2]}, r"out_ptr\[2\] is 1"),
        ({"out_ptr": [1, 1, 2, 2]}, r"out_ptr\[0\] is 1"),
        ({"in_ptr": [0, 0, 1]}, "in_ptr has shape"),
        ({"tensor_alias": [-1, 1]}, r"tensor_alias\[1\] is 1: op 1 has 1"),
        ({"tensor_alias": [0, -1]}, r"tensor_alias\[0\] is 0: op 0 has 0"),
        ({"device_class": [0, 1]}, r"device_class\[1\] is 1"),
        ({"concurrency": [0, 1]}, r"concurrency\[0\] is 0"),
        ({"channels": np.full((2, 2, 2), -2)}, r"channels\[0\] is -2"),
        ({"channels": np.full((2, 2), -1)}, "channels has shape"),
        ({"memory_limit": [1, -1]}, r"memory_limit\[1\] is -1"),
    ],
)
def test_refuses_bad_arrays(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Simulator(chain(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"in_tensor": [0.0, 1.0]}, "in_tensor has dtype float64"),
        ({"in_tensor": [0, 2**40]}, "in_tensor holds 0 to"),
        ({"executed": ["yes", "no", "no"]}, "executed has dtype"),
        ({"op_seconds": [[1.0, 2.0], [1.0]]}, "op_seconds is not an array"),
    ],
)
def test_refuses_other_dtypes(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        chain(**changes)


def test_refuses_bad_placements() -> None:
    simulator = Simulator(chain())
    with pytest.raises(ValueError, match=r"placements\[1, 2\] is 2"):
        simulator.evaluate([[0, 0, 0], [0, 0, 2]])
    with pytest.raises(ValueError, match=r"placements\[0, 0\] is -1"):
        simulator.evaluate([[-1, 0, 0]])
    with pytest.raises(ValueError, match="shape"):
        simulator.evaluate([[0, 0]])
    with pytest.raises(ValueError, match="shape"):
        simulator.evaluate([0, 0, 0])
    with pytest.raises(ValueError, match=r"group_of\[1\] is 2"):
        simulator.evaluate([[0, 1]], [0, 2, 1])
    with pytest.raises(ValueError, match="cutoff has shape"):
        simulator.evaluate([[0, 0, 0]], cutoff=[1.0, 2.0])
    with pytest.raises(ValueError, match="NaN"):
        simulator.evaluate([[0, 0, 0]], cutoff=np.nan)
    with pytest.raises(ValueError, match="threads"):
        simulator.evaluate([[0, 0, 0]], threads=0)
    with pytest.raises(ValueError, match="one dimension"):
        simulator.simulate([[0, 0, 0]])


def test_fuzzed_arrays_run_or_raise() -> None:
    """Whatever integers, sizes and numbers come in: a ValueError, or a run that ends."""
    values = [-(2**31), -2, -1, 0, 1, 2, 3, 7, 2**31 - 1]
    numbers = [np.nan, np.inf, -np.inf, -1.0, -0.0, 0.0, 1e-300, 1e30, 1e31]
    refused = 0
    for seed in range(600):
        rng = np.random.default_rng(seed)
        inputs = random_inputs(rng, max_ops=12)
        changes = {}
        for field in rng.choice(dataclasses.fields(SimulatorInputs), int(rng.integers(1, 4))):
            array = np.array(getattr(inputs, field.name))
            if rng.random() < 0.15 and array.ndim:
                shape = list(array.shape)
                shape[int(rng.integers(len(shape)))] += int(rng.choice([-1, 1]))
                array = np.resize(array, [max(0, size) for size in shape])
            elif array.size and array.dtype.kind in "if":
                where = int(rng.integers(array.size))
                array.flat[where] = rng.choice(numbers if array.dtype.kind == "f" else values)
            changes[field.name] = array
        try:
            simulator = Simulator(dataclasses.replace(inputs, **changes))
        except ValueError:
            refused += 1
            continue
        placements = rng.integers(0, simulator.num_devices, (2, simulator.num_ops))
        result = simulator.evaluate(placements)
        assert (result.step_seconds >= 0).all()
        assert simulator.simulate(placements[0]).step_seconds == result.step_seconds[0]
    assert 100 < refused < 600


def test_an_executor_s_thread_takes_the_newest_expensive_op_first() -> None:
    # 0 makes 1, 2 and 3 ready; 3 runs next, then what it makes ready (4), then the stack's top.
    inputs = ops(
        5,
        out_ptr=[0, 1, 1, 1, 2, 2],
        in_ptr=[0, 0, 1, 2, 3, 4],
        in_tensor=[0, 0, 0, 1],
        executor_threads=[1, 0],
    )
    trace = Simulator(inputs).simulate(np.zeros(5, np.int32))
    assert trace.op_start.tolist() == [0, 4, 3, 1, 2]
    inline = dataclasses.replace(inputs, inline_op=np.array([False, True, False, False, False]))
    trace = Simulator(inline).simulate(np.zeros(5, np.int32))
    assert trace.op_start.tolist() == [0, 1, 4, 2, 3]


def test_transfers_share_the_core_of_an_executor() -> None:
    # Op 0 ends at 1 and sends to device 1 for 0.5 s of processor time, next to op 1 that runs 1 s:
    # both advance at half speed for 1 s, so op 1 ends at 2.5 and the tensor is there at 2.
    inputs = chain(
        out_ptr=[0, 1, 1, 1],
        tensor_bytes=[10],
        tensor_local_bytes=[10],
        tensor_alias=[-1],
        in_ptr=[0, 0, 1, 2],
        in_tensor=[0, 0],
        executor_threads=[1, 0],
        latency=np.full((2, 2), 0.25),
        send_cpu_seconds=np.full((2, 2), 0.5),
    )
    trace = Simulator(inputs).simulate(np.array([0, 0, 1], np.int32))
    assert trace.op_end.tolist() == [1, 2.5, 3]
    # The tensor is one span, from the end of op 0 to its arrival.
    spans = trace.spans
    wire = spans.kind == SpanKind.WIRE
    assert (spans.start[wire].tolist(), spans.end[wire].tolist()) == ([1], [2])


def independent(count: int, **changes: object) -> SimulatorInputs:
    """Ops of one second without edges."""
    none = np.zeros(0, np.int32)
    return ops(
        count,
        out_ptr=[0] * (count + 1),
        tensor_bytes=none,
        tensor_local_bytes=none,
        tensor_alias=none,
        in_ptr=[0] * (count + 1),
        in_tensor=none,
        **changes,
    )


def test_threads_of_an_executor_share_its_core() -> None:
    # Three ops of 1 s on two threads: the first two end at 2, the third runs alone.
    inputs = independent(3, executor_threads=[2, 0])
    trace = Simulator(inputs).simulate(np.zeros(3, np.int32))
    assert trace.op_start.tolist() == [0, 0, 2]
    assert trace.op_end.tolist() == [2, 2, 3]


def test_a_free_thread_steals_from_the_bottom() -> None:
    # 0 makes 1 to 4 ready on thread 0: 4 stays, 3, 2, 1 lie on its stack from top to bottom. The
    # free thread 1 steals 1, then 2. Two run at a time, at half speed.
    inputs = ops(
        5,
        out_ptr=[0, 1, 1, 1, 1, 1],
        tensor_bytes=[10],
        tensor_local_bytes=[10],
        tensor_alias=[-1],
        in_ptr=[0, 0, 1, 2, 3, 4],
        in_tensor=[0, 0, 0, 0],
        executor_threads=[2, 0],
    )
    trace = Simulator(inputs).simulate(np.zeros(5, np.int32))
    assert trace.op_start.tolist() == [0, 1, 3, 3, 1]
    assert trace.busy_seconds.tolist() == [5, 0]


def test_a_neighbour_that_works_on_transfers_slows_too() -> None:
    # From 1 on, device 0 sends for 0.5 s. Op 1 on device 1 is slowed by a half while that lasts.
    inputs = chain(
        out_ptr=[0, 1, 1, 1],
        tensor_bytes=[10],
        tensor_local_bytes=[10],
        tensor_alias=[-1],
        in_ptr=[0, 0, 0, 1],
        in_tensor=[0],
        op_seconds=[[1.0, 2.0, 1.0]],
        executor_threads=[1, 1],
        contention=np.array([[0.0, 0.0], [0.5, 0.0]]),
        latency=np.full((2, 2), 0.25),
        send_cpu_seconds=np.full((2, 2), 0.5),
    )
    trace = Simulator(inputs).simulate(np.array([0, 1, 1], np.int32))
    # Slowed until 1.5, when 1 s is done.
    np.testing.assert_allclose(trace.op_end, [1, 2.5, 3.5])


def test_working_neighbours_slow_each_other() -> None:
    # Ops 0 and 1 on device 0, op 2 on device 1, each 1 s. Device 0 is slowed by a half while
    # device 1 works, which is slowed by a quarter: until 1.25. By then 1.25 / 1.5 s are done.
    contention = np.array([[0.0, 0.5], [0.25, 0.0]])
    inputs = independent(3, executor_threads=[1, 1], contention=contention)
    trace = Simulator(inputs).simulate(np.array([0, 0, 1], np.int32))
    done = 1.25 / 1.5
    np.testing.assert_allclose(trace.op_end, [1.25 + 1 - done, 2.25 + 1 - done, 1.25])
    alone = Simulator(inputs).simulate(np.zeros(3, np.int32))
    assert alone.op_end.tolist() == [1, 2, 3]
