"""scale: time and memory of each stage for graphs of 10^3 to 10^6 ops on 2 to 64 devices.

Each size runs in a process of its own, so that its peak memory is its own. Graphs are synthetic
and layered. Up to `reader_ops` ops they are GraphDefs that go through the whole reader; beyond, the
same graph is made as arrays, and reading and costing are not measured.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import multiprocessing
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from benchmarks.cases import parse_method
from benchmarks.experiment import Experiment, Outcome, setting
from benchmarks.plots import COLOURS
from placer.cli.main import import_tensorflow_quietly
from placer.devices import parse
from placer.problem import PlacementProblem

_STAGES = ("read", "cost", "group", "simulate", "first_better", "search")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the experiment."""

    ops: tuple[int, ...] = setting((1_000, 10_000, 100_000, 1_000_000), "sizes of graphs")
    devices: tuple[str, ...] = setting(
        ("v100:2", "v100:8", "v100:8x2", "v100:8x4", "v100:8x8"), "device specs"
    )
    reader_ops: int = setting(
        1_000_000, "largest graph that goes through the reader; arrays beyond"
    )
    all_devices_ops: int = setting(100_000, "largest graph tried on more than the first devices")
    method: str = setting("auto", "method of the first placement")
    budget: float = setting(60.0, "seconds of search at most")
    seed: int = setting(0, "seed")

    def cases(self) -> list[tuple[int, str]]:
        """(ops, devices) in order."""
        return [
            (ops, devices)
            for ops in self.ops
            for devices in (self.devices if ops <= self.all_devices_ops else self.devices[:1])
        ]


def run(settings: Settings) -> Outcome:
    """Runs every case."""
    records = []
    for ops, devices in settings.cases():
        # A process for each case; spawned, since TensorFlow does not survive a fork.
        with concurrent.futures.ProcessPoolExecutor(
            1,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=import_tensorflow_quietly,
        ) as pool:
            records.append(pool.submit(measure, ops, devices, settings).result())
        line = records[-1]
        print(
            f"{ops:>8} ops {devices:<9} "
            + "  ".join(f"{s} {line[f'{s}_seconds']:.2f} s" for s in _STAGES)
            + f"  {line['peak_gib']:.2f} GiB",
            file=sys.stderr,
            flush=True,
        )
    frame = pd.DataFrame(records)
    notes = [
        "first_better is when the search first beats one device, from its start; inf: not within "
        f"{settings.budget:g} s. simulate is one placement on one thread. Memory is the process's "
        "peak, of which TensorFlow itself takes about 0.6 GiB."
    ]
    if max(settings.ops) > settings.reader_ops:
        notes.append(
            f"graphs over {settings.reader_ops} ops are made as arrays, as --reader_ops asks: "
            "reading and costing them is not measured, and their peak memory leaves it out"
        )
    shown = frame.drop(columns=["evaluations", "through_reader"]).round(3)
    shown.columns = [c.replace("_seconds", " s").replace("_", " ") for c in shown.columns]
    return Outcome(
        tables={"stages": frame},
        shown={"stages": shown},
        notes=notes,
        figures={"stages": _figure(frame)},
    )


def measure(num_ops: int, devices: str, settings: Settings) -> dict:
    """One case, in this process: seconds of each stage, peak memory, what the search found."""
    from benchmarks.synthetic import FETCH, layered_graph_def, layered_problem
    from placer.constraints import allowed_devices
    from placer.costs import analytical_costs
    from placer.graph import build_op_graph, read
    from placer.grouping import group_ops
    from placer.methods import get_method
    from placer.search import Budget, Search
    from placer.simulator.build import build_simulator

    seconds = dict.fromkeys(_STAGES, np.nan)

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        seconds[name] = time.perf_counter() - start

    topology = parse(devices)
    reader = num_ops <= settings.reader_ops
    if reader:
        graph_def = layered_graph_def(num_ops, settings.seed)
        # TensorFlow loads its libraries on first use; that is not the graph's doing.
        build_op_graph(read(layered_graph_def(64), [FETCH]))
        with stage("read"):
            source = read(graph_def, [FETCH])
            graph = build_op_graph(source)
        with stage("cost"):
            costs = analytical_costs(source, graph, topology)
            allowed = allowed_devices(graph, topology)
        problem = PlacementProblem(graph, topology, costs, allowed)
    else:
        problem = layered_problem(num_ops, topology, settings.seed)
    with stage("group"):
        grouping = group_ops(problem)
    simulator = build_simulator(problem)
    single = problem.single_device(topology.accelerators[0])
    simulator.evaluate(single[None], threads=1)
    with stage("simulate"):
        one = float(simulator.evaluate(single[None], threads=1).step_seconds[0])
    search = Search(problem, grouping, simulator, Budget(settings.budget), settings.seed)
    with stage("search"):
        name, options = parse_method(settings.method)
        get_method(name, options)(search)
    better = [i.seconds for i in search.improvements if i.step_seconds < one * (1 - 1e-6)]
    seconds["first_better"] = better[0] if better else np.inf
    return {
        "ops": problem.graph.num_ops,
        "devices": devices,
        "through_reader": reader,
        **{f"{name}_seconds": value for name, value in seconds.items()},
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "groups": grouping.num_groups,
        "evaluations": search.evaluations,
        "one_device_step_seconds": one,
        "step_seconds": search.best_seconds,
    }


def _figure(frame: pd.DataFrame) -> Figure:
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    axes = figure.subplots(1, 2)
    first = frame[frame.devices == frame.devices.iloc[0]]
    for i, stage in enumerate(_STAGES[:-1]):
        values = first[f"{stage}_seconds"].replace(np.inf, np.nan)
        axes[0].plot(first.ops, values, "o-", ms=4, color=COLOURS[i], label=stage)
    axes[0].set_yscale("log")
    axes[0].set_ylabel(f"seconds on {frame.devices.iloc[0]}")
    axes[0].legend(frameon=False, fontsize=8)
    axes[1].plot(first.ops, first.peak_gib, "o-", ms=4, color=COLOURS[0])
    axes[1].set_ylabel("peak memory, GiB")
    for ax in axes:
        ax.set_xscale("log")
        ax.set_xlabel("ops")
        ax.grid(alpha=0.25)
    return figure


EXPERIMENT = Experiment(
    name="scale",
    summary="time and memory of each stage, 10^3 to 10^6 ops, 2 to 64 devices",
    settings=Settings,
    smoke=Settings(
        ops=(500, 2_000),
        devices=("v100:2x2",),
        reader_ops=500,
        method="annealing",
        budget=0.3,
    ),
    expected_seconds=lambda s: sum(12 + s.budget + ops * 4e-4 for ops, _ in s.cases()),
    run=run,
)
