"""large_model: how soon a search beats one GPU on a model of some 50,000 ops, and in what memory.

The model is built in one process and placed in another by `placer.optimize`, so that times count
from before the graph is read, and memory is that of placing alone.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.cases import parse_row
from benchmarks.experiment import Experiment, Outcome, setting


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the experiment."""

    row: str = setting("gnmt:4", "row: model:GPUs (k80), model-size:GPUs or model@devices")
    method: str = setting("auto", "method")
    budget: float = setting(60.0, "seconds that the search may take")
    seed: int = setting(0, "seed")
    most_seconds: float = setting(60.0, "first placement better than one GPU within")
    most_gib: float = setting(4.0, "peak resident memory at most")


def run(settings: Settings) -> Outcome:
    """Builds the model, places it, and checks both figures."""
    with tempfile.TemporaryDirectory() as directory:
        path = str(Path(directory) / "model.pb")
        _in_process(_build, settings.row, path)
        record = _in_process(_place, path, settings, time.time())
    frame = pd.DataFrame([record])
    failures = []
    if not record["seconds_to_better"] <= settings.most_seconds:
        failures.append(f"better than one GPU after {record['seconds_to_better']:.1f} s")
    if not record["peak_gib"] <= settings.most_gib:
        failures.append(f"peak memory {record['peak_gib']:.2f} GiB")
    return Outcome(
        tables={"large_model": frame},
        shown={"large_model": frame.round(3).astype(str)},
        notes=[
            "seconds_to_better counts from before the process starts and loads TensorFlow; "
            "peak_gib is the process's resident memory, TensorFlow's 0.6 GiB included"
        ],
        failures=failures,
    )


def _in_process(function, *arguments):
    """The function's result, from a process of its own."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


def _build(row: str, path: str) -> None:
    from benchmarks.models import build

    model, size, _ = parse_row(row)
    Path(path).write_bytes(build(model, size).SerializeToString())


def _place(path: str, settings: Settings, begun: float) -> dict[str, object]:
    """Places the graph of a file; this process was asked for at `begun`, seconds of the clock."""
    import placer

    _, _, devices = parse_row(settings.row)
    result = placer.optimize(
        path, devices=devices, method=settings.method, budget=settings.budget, seed=settings.seed
    )
    whole = time.time() - begun
    one = next(r.step_seconds for r in result.rows if r.name in ("one GPU", "one device"))
    history = result.history
    better = history.seconds[history.step_seconds < one * (1 - 1e-6)]
    # The search ends the run, but for the table and the writing of devices: what was before it.
    before = whole - result.seconds
    return {
        "row": settings.row,
        "ops": result.problem.graph.num_ops,
        "before_search_seconds": before,
        "seconds_to_better": before + better.iloc[0] if len(better) else np.inf,
        "one_gpu_step_seconds": one,
        "one_gpu_fits": not next(
            r.infeasible for r in result.rows if r.name in ("one GPU", "one device")
        ),
        "step_seconds": result.step_seconds,
        "evaluations": result.evaluations,
        "total_seconds": whole,
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


EXPERIMENT = Experiment(
    name="large_model",
    summary="a 50,000-op model: seconds until better than one GPU, and peak memory",
    settings=Settings,
    smoke=Settings(row="gnmt-tiny:2", budget=2.0),
    expected_seconds=lambda s: 60 + s.budget,
    run=run,
)
