"""faults: a measuring run whose workers are killed, stopped, starved of memory or slowed."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import tensorflow as tf

from benchmarks.experiment import Experiment, Outcome, setting
from placer.graph import GraphSource, read
from placer.runtime import MeasurementProtocol, Runner, open_runner

FAULTS = ("killed", "stopped", "out of memory", "slowed")
_MATRIX = 384
_CHAIN = 40
# Strings get this much longer each step, which a worker that keeps what it has freed must ask for.
_STRING_BYTES = 32 << 20
_LONGER_BYTES = 1 << 18


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the experiment."""

    measurements: int = setting(100, "measurements")
    part: float = setting(1 / 3, "part of them in which a worker is harmed")
    candidates: int = setting(10, "placements that take turns")
    steps: int = setting(8, "timed steps a measurement")
    seed: int = setting(0, "seed")


def run(settings: Settings) -> Outcome:
    """Measures candidates in turns while workers are harmed at random."""
    source = chains_graph()
    generator = np.random.default_rng(settings.seed)
    candidates = chain_placements(source, settings.candidates, generator)
    protocol = MeasurementProtocol(steps=settings.steps, stop_ratio=0.0, repeats=0)
    with open_runner("workers:2", source) as runner:
        quiet = [runner.measure(c, protocol).seconds for c in candidates]
        best = int(np.argmin(quiet))
        rows = []
        processes: set[int] = set(runner.process_ids)
        addresses: set[str] = set(runner.addresses)
        for i in range(settings.measurements):
            number = i % len(candidates)
            harm = str(generator.choice(FAULTS)) if generator.random() < settings.part else ""
            worker = int(generator.integers(2))
            delay = float(generator.uniform(0, 1.2 * settings.steps * quiet[number]))
            with harmed(runner, harm, worker, delay):
                measured = runner.measure(candidates[number], protocol)
            processes.update(runner.process_ids)
            addresses.update(runner.addresses)
            rows.append(
                {
                    "placement": number,
                    "harm": harm,
                    "worker": worker if harm else -1,
                    "seconds": measured.seconds,
                    "quiet_seconds": quiet[number],
                    "failure": measured.failure or "",
                    "named": "; ".join(measured.faults),
                }
            )
    frame = pd.DataFrame(rows)
    time.sleep(0.5)
    left = [pid for pid in processes if Path(f"/proc/{pid}").exists()]
    open_ports = [a for a in addresses if _open(a)]
    found = int(frame.groupby("placement")["seconds"].median().idxmin())
    summary = pd.DataFrame(
        [
            {
                "measurements": len(frame),
                "harmed": int((frame["harm"] != "").sum()),
                "repeated": int((frame["named"] != "").sum()),
                "healthy_recorded_as_failed": int((frame["failure"] != "").sum()),
                "best": best,
                "best_found": found,
                "worst_ratio_to_quiet": float((frame["seconds"] / frame["quiet_seconds"]).max()),
                "processes_left": len(left),
                "ports_left": len(open_ports),
            }
        ]
    )
    result = summary.iloc[0]
    failures = []
    if result.healthy_recorded_as_failed:
        failures.append(f"{result.healthy_recorded_as_failed} measurements were given up")
    if result.best_found != best:
        failures.append(f"placement {found} came out best, not {best}")
    if left or open_ports:
        failures.append(f"{len(left)} processes and {len(open_ports)} ports were left behind")
    return Outcome(
        tables={"summary": summary, "measurements": frame},
        shown={"summary": summary},
        failures=failures,
    )


def chains_graph() -> GraphSource:
    """Four independent chains of matrix products; how they are shared out decides the step."""
    with tf.Graph().as_default() as graph:
        ends = []
        for i in range(4):
            with tf.name_scope(f"chain_{i}"):
                value = fixed = tf.fill([_MATRIX, _MATRIX], 1.0 / _MATRIX)
                for _ in range(_CHAIN):
                    value = tf.matmul(value, fixed)
                ends.append(tf.reduce_sum(value))
                if i in (0, 3):
                    # More memory every step, so that a limit on it shows at once.
                    steps = tf.compat.v1.get_variable(
                        f"steps_{i}",
                        [],
                        tf.int32,
                        tf.compat.v1.zeros_initializer(),
                        trainable=False,
                        use_resource=True,
                    )
                    size = _STRING_BYTES + _LONGER_BYTES * steps.assign_add(1, read_value=True)
                    text = tf.io.serialize_tensor(tf.fill([size // 4], 0.0))
                    ends.append(tf.cast(tf.strings.length(text), tf.float32))
        tf.add_n(ends, name="out")
    return read(graph.as_graph_def(), ["out"])


def chain_placements(
    source: GraphSource, count: int, generator: np.random.Generator
) -> list[np.ndarray]:
    """`count` placements, int32[N]; the first alone halves the work between two workers.

    The others leave three or four chains on one worker.
    """
    names = [n.name for n in source.graph_def.node]

    def place(moved: set[int]) -> np.ndarray:
        prefixes = tuple(f"chain_{i}/" for i in moved)
        return np.array([int(bool(prefixes) and n.startswith(prefixes)) for n in names], np.int32)

    found = [place({0, 1})]
    while len(found) < count:
        chosen = {int(generator.integers(4))} if generator.random() < 0.7 else set()
        found.append(place(chosen))
    return found


@contextlib.contextmanager
def harmed(runner: Runner, harm: str, worker: int, delay: float) -> Iterator[None]:
    """Harms a worker, the one that runs `delay` seconds from now, once."""
    over = threading.Event()
    pid_then = runner.worker_pids[worker]

    def later() -> None:
        if over.wait(delay):
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            _HARMS[harm](pid_then, over)

    thread = threading.Thread(target=later, daemon=True)
    if harm:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if harm:
            thread.join()


def _kill(pid: int, over: threading.Event) -> None:
    del over
    os.kill(pid, signal.SIGKILL)


def _stop(pid: int, over: threading.Event) -> None:
    del over
    os.kill(pid, signal.SIGSTOP)


def _starve(pid: int, over: threading.Event) -> None:
    """No more address space than it has now, or less: the next allocation fails."""
    del over
    resource.prlimit(pid, resource.RLIMIT_AS, (1 << 20, 1 << 20))


def _slow(pid: int, over: threading.Event) -> None:
    while not over.is_set():
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.03)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.01)


_HARMS: dict[str, Callable[[int, threading.Event], None]] = {
    "killed": _kill,
    "stopped": _stop,
    "out of memory": _starve,
    "slowed": _slow,
}


def _open(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


EXPERIMENT = Experiment(
    name="faults",
    summary="a measuring run on two workers that are killed, stopped, starved or slowed",
    settings=Settings,
    smoke=Settings(measurements=6, part=0.7, candidates=2, steps=3),
    expected_seconds=lambda s: 10 + s.measurements * (0.3 + 2 * s.part + 0.03 * s.steps),
    run=run,
)
