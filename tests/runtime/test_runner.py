"""Measuring on real workers, whatever happens to them."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from placer.errors import PlacerError
from placer.graph.source import GraphSource, read
from placer.pipeline import prepare
from placer.runtime import MeasurementProtocol, Runner, RunnerSettings, open_runner
from placer.runtime.step_stats import op_frame, transfer_frame
from placer.simulator.build import build_simulator
from tests.runtime.graphs import everywhere, fed_chain, large_block, split_chains

STEPS = MeasurementProtocol(steps=4, stop_ratio=0, repeats=0)
LONG = MeasurementProtocol(steps=100, stop_ratio=0, repeats=0)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def refused(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) != 0


def test_a_placement_is_measured(workers: Runner, chains: GraphSource) -> None:
    measured = workers.measure(split_chains(chains), STEPS)
    assert measured.failure is None
    assert len(measured.steps) == 4
    assert len(measured.warm_up) == 1
    assert measured.seconds == pytest.approx(np.median(measured.steps))
    assert measured.ran_seconds >= sum(measured.steps)


def test_workers_are_devices_of_their_own(workers: Runner, chains: GraphSource) -> None:
    """Each op runs on the worker, that is the process and the core, that it was placed on."""
    measured = workers.measure(split_chains(chains), STEPS, keep_step_stats=True)
    assert measured.run_metadata is not None
    ran = {
        stats.node_name: device.device
        for device in measured.run_metadata.step_stats.dev_stats
        for stats in device.node_stats
    }
    for i in range(2):
        assert ran[f"chain_{i}/MatMul"] == f"/job:worker/replica:0/task:{i}/device:CPU:0"
    cores = [os.sched_getaffinity(pid) for pid in workers.worker_pids]
    assert all(len(c) == 1 for c in cores)
    assert cores[0] != cores[1]


def test_the_supervisor_does_without_tensorflow() -> None:
    """It forks, which a process with TensorFlow's threads must not."""
    program = "import sys, placer.runtime.supervisor; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_a_busy_worker_hands_its_tensors_on() -> None:
    """Worker 1 gets what worker 0 made first while worker 0 is busy with the rest of its chain."""
    source = fed_chain()
    placement = split_chains(source)
    with open_runner("workers:2", source, RunnerSettings(disturbance_ratio=0.0)) as runner:
        measured = runner.measure(placement, STEPS, keep_step_stats=3)
    gained = []
    for metadata in measured.traced_steps:
        frame = op_frame(metadata)
        chains = [frame[frame.op.str.startswith(f"chain_{i}/MatMul")] for i in range(2)]
        ends = chains[0].start + chains[0].duration
        gained.append(chains[1].start.min() < np.median(ends))
    assert sum(gained) >= 2


def test_workers_listen_on_loopback_only(workers: Runner) -> None:
    ports = {int(a.rsplit(":", 1)[1]) for a in workers.addresses}
    listening = []
    for family in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{family}").read_text().splitlines()[1:]:
            fields = line.split()
            address, port = fields[1].split(":")
            if fields[3] == "0A" and int(port, 16) in ports:
                listening.append(address)
    assert len(listening) == 2
    assert set(listening) <= {"0000000000000000FFFF00000100007F", "0100007F"}


@pytest.mark.parametrize("worker", [0, 1])
@pytest.mark.parametrize("when", ["before", "during"])
def test_a_killed_worker_costs_no_placement(
    workers: Runner, chains: GraphSource, worker: int, when: str
) -> None:
    pid = workers.worker_pids[worker]
    if when == "before":
        os.kill(pid, signal.SIGKILL)
    else:
        threading.Timer(0.2, os.kill, (pid, signal.SIGKILL)).start()
    measured = workers.measure(split_chains(chains), LONG)
    assert measured.failure is None
    assert f"worker {worker} was killed by signal 9" in measured.faults[0]
    assert pid not in workers.worker_pids


def test_a_dead_supervisor_is_an_error_in_one_line(chains: GraphSource) -> None:
    with open_runner("workers:2", chains, RunnerSettings(disturbance_ratio=0.0)) as runner:
        workers = runner.worker_pids
        os.kill(runner.process_ids[0], signal.SIGKILL)
        with pytest.raises(PlacerError, match="the process that measures is gone"):
            runner.measure(split_chains(chains), STEPS)
        assert wait_until(lambda: not any(alive(pid) for pid in workers))


@pytest.mark.parametrize("faults", [0, 1])
def test_ctrl_c_leaves_no_answers_for_the_next_placement(
    chains: GraphSource, faults: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next measurement is of the next placement: what ran says where."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with open_runner("workers:2", chains, RunnerSettings(disturbance_ratio=0.0)) as runner:
            attempt, begun = runner._attempt, []

            def interrupted(*arguments: Any) -> Any:
                begun.append(arguments)
                if len(begun) <= faults:
                    os.kill(runner.worker_pids[0], signal.SIGKILL)
                else:
                    signal.setitimer(signal.ITIMER_REAL, 0.5)
                return attempt(*arguments)

            monkeypatch.setattr(runner, "_attempt", interrupted)
            with pytest.raises(KeyboardInterrupt):
                runner.measure(everywhere(chains, 0), LONG)
            assert len(begun) == faults + 1
            monkeypatch.undo()
            measured = runner.measure(everywhere(chains, 1), STEPS, keep_step_stats=True)
            assert len(measured.steps) == STEPS.steps
            assert measured.run_metadata is not None
            frame = op_frame(measured.run_metadata)
            products = frame[frame.op.str.contains("MatMul")]
            assert products.device.str.contains("task:1").all()
            again = runner.measure(everywhere(chains, 0), STEPS, keep_step_stats=True)
            assert again.run_metadata is not None
            frame = op_frame(again.run_metadata)
            assert frame[frame.op.str.contains("MatMul")].device.str.contains("task:0").all()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_stopped_worker_is_replaced(workers: Runner, chains: GraphSource) -> None:
    pid = workers.worker_pids[1]
    threading.Timer(0.2, os.kill, (pid, signal.SIGSTOP)).start()
    measured = workers.measure(split_chains(chains), LONG)
    assert measured.failure is None
    assert "worker 1 was stopped" in measured.faults[0]
    assert not alive(pid)


def test_a_slowed_worker_does_not_make_a_placement_slow(
    workers: Runner, chains: GraphSource
) -> None:
    undisturbed = workers.measure(split_chains(chains), STEPS)
    pid = workers.worker_pids[1]

    def slow() -> None:
        try:
            while True:
                os.kill(pid, signal.SIGSTOP)
                time.sleep(0.05)
                os.kill(pid, signal.SIGCONT)
                time.sleep(0.005)
        except ProcessLookupError:
            pass

    thread = threading.Thread(target=slow)
    thread.start()
    measured = workers.measure(split_chains(chains), LONG)
    thread.join()
    assert measured.failure is None
    assert "worker 1 ran" in measured.faults[0]
    assert measured.seconds < 3 * undisturbed.seconds


def test_a_worker_limited_from_outside_costs_no_placement() -> None:
    # A worker keeps memory that was freed, and so feels a limit only where it needs more.
    source = large_block()
    with open_runner("workers:1", source, RunnerSettings(disturbance_ratio=0)) as runner:
        limited = runner.worker_pids[0]
        limit = 1 << 28
        resource.prlimit(limited, resource.RLIMIT_AS, (limit, limit))
        measured = runner.measure(everywhere(source, 0), STEPS)
        assert measured.failure is None
        assert len(measured.faults) == 1
        assert runner.worker_pids[0] != limited


def test_a_group_of_ops_elsewhere_costs_no_transfers() -> None:
    with tf.Graph().as_default() as graph:
        tf.group(*(tf.random.uniform([4], name=f"update_{i}") for i in range(8)), name="train")
    source = read(graph.as_graph_def(), ["train"])
    placement = everywhere(source, 1)
    placement[[n.name for n in source.graph_def.node].index("train")] = 0
    with open_runner("workers:2", source) as runner:
        measured = runner.measure(placement, STEPS, keep_step_stats=True)
    assert measured.run_metadata is not None
    ran = op_frame(measured.run_metadata)
    assert (ran["op_type"] == "RandomUniform").sum() == 8
    assert transfer_frame(measured.run_metadata).empty
    simulator = build_simulator(prepare(source.graph_def, ["train"], "workers:2").problem)
    evaluation = simulator.evaluate(placement[None])
    assert evaluation.transfer_seconds.sum() == 0


def test_a_killed_session_process_is_replaced(workers: Runner, chains: GraphSource) -> None:
    driver = next(p for p in workers.process_ids[1:] if p not in workers.worker_pids)
    threading.Timer(0.2, os.kill, (driver, signal.SIGKILL)).start()
    measured = workers.measure(split_chains(chains), LONG)
    assert measured.failure is None
    assert "session's process was killed" in measured.faults[0]


def test_a_placement_of_another_graph_is_refused(workers: Runner, chains: GraphSource) -> None:
    for bad in (np.zeros(3, int), everywhere(chains, 2), everywhere(chains, -1)):
        with pytest.raises(PlacerError, match="placement"):
            workers.measure(bad)


def test_a_clearly_worse_placement_stops_early(workers: Runner, chains: GraphSource) -> None:
    protocol = MeasurementProtocol(steps=20, stop_ratio=1.5)
    measured = workers.measure(everywhere(chains, 0), protocol, best_so_far=1e-6)
    assert measured.stopped_early
    assert len(measured.steps) == 2


def failing(message: str) -> GraphSource:
    with tf.Graph().as_default() as graph:
        zero = tf.compat.v1.get_variable("v", [], use_resource=True).read_value() * 0
        tf.debugging.Assert(zero > 1, [message], name="never").mark_used()
    return read(graph.as_graph_def(), [graph.get_operations()[-1].name])


def test_an_op_that_fails_is_the_placements_fault_at_once() -> None:
    source = failing("by design")
    with open_runner("workers:1", source) as runner:
        before = runner.worker_pids
        measured = runner.measure(everywhere(source, 0), STEPS)
        assert "by design" in str(measured.failure)
        assert measured.seconds == float("inf")
        assert measured.faults == ()
        assert runner.worker_pids == before


def test_a_hang_ends() -> None:
    with tf.Graph().as_default() as graph:
        queue = tf.raw_ops.FIFOQueueV2(component_types=[tf.float32])
        tf.raw_ops.QueueDequeueV2(handle=queue, component_types=[tf.float32])
        never = graph.get_operations()[-1].name
    source = read(graph.as_graph_def(), [never])
    settings = RunnerSettings(build_timeout_seconds=2, step_timeout_seconds=1, attempts=2)
    with open_runner("workers:1", source, settings) as runner:
        measured = runner.measure(everywhere(source, 0), STEPS)
    assert "the first step took longer than 2 s" in str(measured.failure)


def test_running_out_of_memory_is_the_placements_fault() -> None:
    with tf.Graph().as_default() as graph:
        tf.reduce_sum(tf.random.uniform([1 << 31]), name="sum")  # 8 GiB
    source = read(graph.as_graph_def(), ["sum"])
    settings = RunnerSettings(worker_address_space_bytes=6 << 30, attempts=2)
    with open_runner("workers:1", source, settings) as runner:
        measured = runner.measure(everywhere(source, 0), STEPS)
    assert "out of memory" in str(measured.failure)


def test_close_leaves_nothing_behind(chains: GraphSource) -> None:
    with open_runner("workers:2", chains, RunnerSettings(disturbance_ratio=0)) as runner:
        pids, addresses = runner.process_ids, runner.addresses
        assert len(pids) == 4
        assert all(alive(p) for p in pids)
    assert wait_until(lambda: not any(alive(p) for p in pids))
    assert all(refused(a) for a in addresses)


def test_killing_the_caller_leaves_nothing_behind() -> None:
    script = (
        "import os, signal, sys\n"
        "from placer.runtime import RunnerSettings, open_runner\n"
        "from tests.runtime.graphs import two_chains\n"
        "runner = open_runner('workers:2', two_chains(), RunnerSettings(disturbance_ratio=0))\n"
        "print(*runner.process_ids, *runner.addresses, flush=True)\n"
        "os.kill(runner.worker_pids[1], signal.SIGSTOP)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": root, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGKILL
    words = done.stdout.split()
    pids, addresses = [int(w) for w in words[:4]], words[4:]
    assert len(addresses) == 2
    assert wait_until(lambda: not any(alive(p) for p in pids))
    assert all(refused(a) for a in addresses)
