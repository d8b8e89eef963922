"""speed: placements a second of the simulator, and how its time and memory grow with the graph.

Other programs on the machine should disturb little: rates on one thread are by its CPU time, and
all are sums over small chunks of the batch, each chunk's time the best of several rounds. Every
placement is simulated in full, with memory, unless the row says otherwise.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import gc
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.cases import Case, load_case, training_graph
from benchmarks.experiment import Experiment, Outcome, setting
from benchmarks.grappler_agreement import GrapplerSimulator
from placer.graph import read
from placer.simulator import Simulator

_MIB = 2.0**20
# Simulators whose memory is measured together hold at least so many ops, so that a page more or
# less, or a chunk that was free already, does not count.
_OPS_MEASURED = 1_000_000
# How much time and memory per op may grow from the first size to be called flat.
_FLAT = 1.5
# Placements that are timed together: a few milliseconds.
_CHUNK = 20

# Threads, and what simulates a slice of the placements.
Way = tuple[int, Callable[[slice], object]]


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the experiment."""

    rows: tuple[str, ...] = setting(("inception_v3:4", "nmt:4", "rnnlm:4"), "models and GPUs")
    placements: int = setting(400, "placements to simulate")
    repeats: int = setting(7, "rounds, of which the best counts")
    grappler: int = setting(3, "placements that Grappler's MeasureCosts simulates, 0 for none")
    ops: tuple[int, ...] = setting((10**4, 10**5, 10**6), "sizes of the synthetic graph")


def best_seconds(
    work: Sequence[Callable[[], object]], repeats: int, clock: Callable[[], float]
) -> float:
    """The time of all pieces of work, each the best of several calls; seconds."""
    best = [np.inf] * len(work)
    for _ in range(repeats):
        for i, piece in enumerate(work):
            start = clock()
            piece()
            best[i] = min(best[i], clock() - start)
    return float(sum(best))


def measure_rates(case: Case, placements: int, repeats: int, seed: int = 0) -> pd.DataFrame:
    """Placements a second of one case, in several ways.

    Returns:
      one line a way: row, ops (executed), what, threads, rate (placements a second),
      ns_per_op (of a thread).
    """
    rng = np.random.default_rng(seed)
    simulator, grouping = case.simulator, case.grouping
    group_of = grouping.group_of
    gpus = np.array(list(case.problem.topology.accelerators), np.int32)
    executed = int(case.problem.graph.executed.sum())
    number = int(group_of.max()) + 1
    one = np.full((placements, number), gpus[0], np.int32)
    scattered = rng.choice(gpus, (placements, number))
    # Contiguous parts, cut at random places: what a search looks at after its first seconds.
    parts = np.sort(rng.integers(0, number + 1, (placements, gpus.size - 1)), axis=1)
    contiguous = gpus[(np.arange(number)[None, :, None] >= parts[:, None, :]).sum(axis=2)]
    by_op = rng.choice(gpus, (placements, simulator.num_ops))
    base = contiguous[0]
    slots = rng.integers(0, number, placements)
    devices = rng.choice(gpus, placements)
    moved = np.tile(base, (placements, 1))
    moved[np.arange(placements), slots] = devices
    evaluator = simulator.moves_from(base, group_of)
    cutoff = evaluator.step_seconds

    def full(rows: np.ndarray, threads: int = 1, limit: float = np.inf) -> Way:
        groups = group_of if rows.shape[1] == number else None
        return threads, lambda part: simulator.evaluate(
            rows[part], groups, threads=threads, cutoff=limit
        )

    def moves(limit: float = np.inf) -> Way:
        return 1, lambda part: evaluator.evaluate(
            slots[part], devices[part], threads=1, cutoff=limit
        )

    ways = {
        "one GPU": [full(one)],
        "contiguous groups": [full(contiguous), full(contiguous, 2)],
        "random groups": [full(scattered), full(scattered, 2)],
        "random ops": [full(by_op)],
        "one group moved, full runs": [full(moved)],
        "one group moved, moves": [moves()],
        "one group moved, full runs to the base's step": [full(moved, 1, cutoff)],
        "one group moved, moves to the base's step": [moves(cutoff)],
    }
    chunks = [slice(i, i + _CHUNK) for i in range(0, placements, _CHUNK)]
    records = []
    for what, variants in ways.items():
        for threads, work in variants:
            clock = time.thread_time if threads == 1 else time.perf_counter
            pieces = [functools.partial(work, part) for part in chunks]
            seconds = best_seconds(pieces, repeats, clock)
            records.append(
                {
                    "row": case.name,
                    "ops": executed,
                    "what": what,
                    "threads": threads,
                    "rate": placements / seconds,
                    "ns_per_op": seconds * threads / placements / executed * 1e9,
                }
            )
    return pd.DataFrame(records)


def measure_grappler(case: Case, placements: int) -> float:
    """Placements a second of Grappler's MeasureCosts on the same graph and devices."""
    source = read(training_graph(case.model, case.size))
    simulator = GrapplerSimulator(source, case.problem.topology)
    gpu = next(iter(case.problem.topology.accelerators))
    placement = np.full(case.simulator.num_ops, gpu, np.int32)
    # By the clock that ours is timed with on one thread.
    return 1 / simulator.seconds_a_run(placement, placements, time.thread_time)


def measure_scale(num_ops: int, repeats: int) -> dict[str, float]:
    """Time and memory of one placement of a layered graph; in this process.

    Columns stay together, an equal part of them on each of four GPUs. Small graphs are simulated
    many times a repeat.

    Returns:
      ops, seconds (a placement), ns_per_op, build_seconds, bytes_per_op and peak_mib: of all that
      a simulator holds while it simulates, its input arrays included.
    """
    from benchmarks.synthetic import COLUMNS, layered_problem
    from placer.devices import parse
    from placer.simulator.build import simulator_inputs

    problem = layered_problem(num_ops, parse("k80:4"))
    inputs = simulator_inputs(problem)
    array_bytes = sum(getattr(inputs, f.name).nbytes for f in dataclasses.fields(inputs))
    ops = np.arange(inputs.num_ops)
    gpus = np.array(list(problem.topology.accelerators), np.int32)
    copies = max(1, 200_000 // num_ops)
    placement = np.tile(gpus[ops % COLUMNS * gpus.size // COLUMNS], (copies, 1))
    start = time.perf_counter()
    simulator = Simulator(inputs)
    build_seconds = time.perf_counter() - start
    run = functools.partial(simulator.evaluate, placement, threads=1)
    seconds = best_seconds([run], repeats, time.thread_time) / copies
    del simulator, run

    def simulated() -> Simulator:
        simulator = Simulator(inputs)
        simulator.evaluate(placement[:1], threads=1)
        return simulator

    held = peak_growth(simulated, max(1, _OPS_MEASURED // num_ops)) + array_bytes
    return {
        "ops": num_ops,
        "seconds": seconds,
        "ns_per_op": seconds / num_ops * 1e9,
        "build_seconds": build_seconds,
        "bytes_per_op": held / num_ops,
        "peak_mib": held / _MIB,
    }


def peak_growth(make: Callable[[], object], copies: int) -> float:
    """Bytes by which this process's peak memory grows for each of several objects held at once.

    Linux only. What was free before is returned to the system first, and the system's record of
    the peak is reset (proc(5), clear_refs), so that neither hides what is taken.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _status_bytes("VmRSS")
    held = [make() for _ in range(copies)]
    grown = _status_bytes("VmHWM") - before
    del held
    return grown / copies


def _status_bytes(field: str) -> int:
    """A size of /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def growth_notes(scale: pd.DataFrame) -> list[str]:
    """How time and memory per op grow from the first size to the largest, in words."""
    notes = []
    for column, what, unit in (("ns_per_op", "Time", "ns"), ("bytes_per_op", "Memory", "bytes")):
        first, most = float(scale[column].iloc[0]), float(scale[column].max())
        notes.append(
            f"{what} an op: {first:.0f} {unit} at {scale.ops.iloc[0]:,.0f} ops, at most "
            f"{most:.0f} {unit}, {most / first:.2f} times that; "
            + (f"flat within {_FLAT}." if most <= _FLAT * first else f"not flat within {_FLAT}.")
        )
    return notes


def _measure_scale_apart(num_ops: int, repeats: int) -> dict[str, float]:
    """`measure_scale` in a process of its own, so that its peak memory is its own."""
    code = f"from benchmarks.speed import measure_scale; print(measure_scale({num_ops}, {repeats}))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )
    pairs = (item.split(":") for item in done.stdout.strip().strip("{}").split(","))
    return {name.strip().strip("'"): float(value) for name, value in pairs}


def run(settings: Settings) -> Outcome:
    """Measures rates row by row, then the sizes."""
    frames, notes = [], []
    for row in settings.rows:
        case = load_case(row)
        frame = measure_rates(case, settings.placements, settings.repeats)
        if settings.grappler:
            rate = measure_grappler(case, settings.grappler)
            line = {"row": row, "ops": frame.ops[0], "what": "Grappler, one GPU", "threads": 1}
            line |= {"rate": rate, "ns_per_op": 1e9 / rate / frame.ops[0]}
            frame = pd.concat([frame, pd.DataFrame([line])], ignore_index=True)
        rates = frame.set_index(["what", "threads"]).rate
        one, two = rates["random groups", 1], rates["random groups", 2]
        notes.append(
            f"{row}: {one:,.0f} random placements a second on one thread, {two / one:.2f} times "
            "that on two."
        )
        frames.append(frame)
    scale = pd.DataFrame([_measure_scale_apart(n, settings.repeats) for n in settings.ops])
    if len(scale):
        notes += growth_notes(scale)
    tables = {"rates": pd.concat(frames, ignore_index=True)} if frames else {}
    return Outcome(tables=tables | {"scale": scale}, notes=notes)


EXPERIMENT = Experiment(
    name="speed",
    summary="placements a second, full runs and moves; time and memory from 10^4 to 10^6 ops",
    settings=Settings,
    smoke=Settings(rows=("nmt-tiny:2",), placements=20, repeats=2, grappler=1, ops=(2000,)),
    expected_seconds=lambda s: len(s.rows) * (40 + s.repeats * 3) + len(s.ops) * 12,
    run=run,
)
