"""explain: one placement against Expert: who runs which layer, time by device, timeline."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from benchmarks.cases import Case, load_case, search_case
from benchmarks.experiment import Experiment, Outcome, setting
from benchmarks.plots import COLOURS
from placer import report
from placer.devices import short_device_names
from placer.errors import PlacerError
from placer.search import Budget
from placer.simulator import Trace


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the experiment."""

    row: str = setting("nmt:4", "row: model:GPUs, model-size:GPUs or model@devices")
    method: str = setting("auto", "method whose placement is explained")
    against: str = setting("expert", "method that it is compared with")
    budget: float = setting(60.0, "seconds a search may take")
    seed: int = setting(0, "seed")


def run(settings: Settings) -> Outcome:
    """Finds both placements and explains them side by side."""
    case = load_case(settings.row)
    layers = report.find_layers(case.problem)
    traces: dict[str, Trace] = {}
    figures: dict[str, Figure] = {}
    files: dict[str, bytes] = {}
    paths, notes = [], []
    for method in (settings.method, settings.against):
        found = search_case(case, method, Budget(settings.budget), settings.seed)
        if found.placement is None:
            raise PlacerError(f"{method} found no placement of {case.name}: {found.failure}")
        trace = case.simulator.simulate(found.placement)
        name = method.partition("[")[0]
        title = f"{case.name}, {method}: {trace.step_seconds:.4g} s a step"
        path = report.critical_path_frame(trace, case.problem, layers)
        paths.append(report.critical_path_summary(path).assign(method=method))
        notes.append(f"{method}: {trace.step_seconds:.4g} s; {report.describe_critical_path(path)}")
        figures[f"{name}-placement"] = report.placement_picture(
            case.problem, found.placement, layers, trace, title
        )
        figures[f"{name}-timeline"] = report.timeline_picture(trace, case.problem, layers, title)
        events = report.simulated_trace(trace, case.problem, layers)
        files[f"{name}-timeline.json"] = json.dumps(events).encode()
        traces[method] = trace
    devices = pd.concat(
        [
            report.device_frame(trace, case.problem.topology).assign(method=method)
            for method, trace in traces.items()
        ],
        ignore_index=True,
    )
    figures["devices"] = _device_bars(case, traces)
    path = pd.concat(paths, ignore_index=True)
    columns = ["method", *(c for c in path.columns if c != "method")]
    return Outcome(
        tables={
            "devices": devices[["method", *devices.columns.drop("method")]],
            "critical_path": path[columns],
        },
        shown={
            "devices": devices[["method", *devices.columns.drop("method")]],
            "critical_path": path[columns].groupby("method", sort=False).head(8),
        },
        notes=tuple(notes),
        figures=figures,
        files=files,
    )


def _device_bars(case: Case, traces: dict[str, Trace]) -> Figure:
    """Compute time and sending time of each device, the methods side by side."""
    names = short_device_names(case.problem.topology.device_names)
    concurrency = np.array([d.concurrency for d in case.problem.topology.devices])
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    width = 0.8 / len(traces)
    for i, (method, trace) in enumerate(traces.items()):
        offset = np.arange(len(names)) + (i - (len(traces) - 1) / 2) * width
        busy = 1e3 * trace.busy_seconds / concurrency
        for ax, values in ((axes[0], busy), (axes[1], 1e3 * trace.transfer_seconds)):
            ax.bar(offset, values, width, color=COLOURS[i], label=method)
    for ax, title in zip(axes, ("computing", "sending to other devices"), strict=True):
        ax.set_title(title, fontsize=10)
        ax.set_xticks(range(len(names)), names)
        ax.grid(axis="y", alpha=0.25)
        ax.set_axisbelow(True)
    axes[0].set_ylabel("ms of a step")
    axes[0].legend(frameon=False)
    return figure


EXPERIMENT = Experiment(
    name="explain",
    summary="one placement against Expert: pictures, time by device, critical path",
    settings=Settings,
    smoke=Settings(row="nmt-tiny:2", budget=0.5),
    expected_seconds=lambda s: (8 if "-tiny" in s.row else 40) + s.budget,
    run=run,
)
