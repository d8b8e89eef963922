"""overhead: what measuring costs besides the steps, for the first placement and for later ones."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import pandas as pd

from benchmarks.cases import training_graph
from benchmarks.experiment import Experiment, Outcome, setting
from placer.errors import PlacerError
from placer.pipeline import prepare
from placer.runtime import PROTOCOLS, MeasurementProtocol, Runner, open_runner


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the experiment."""

    model: str = setting("inception_v3", "model")
    size: str = setting("small", "size of the model: paper, small or tiny")
    devices: str = setting("workers:2", "workers:N")
    placements: int = setting(10, "placements")
    protocol: str = setting("paper", "quick, or paper: 15 steps, the first dropped")
    seed: int = setting(0, "seed")


def run(settings: Settings) -> Outcome:
    """Measures random placements of one graph, one after another.

    Raises:
      PlacerError: for settings that make no sense, or a placement that does not run.
    """
    if settings.protocol not in PROTOCOLS:
        raise PlacerError(f"protocol {settings.protocol!r}: give one of {', '.join(PROTOCOLS)}")
    if settings.placements < 2:
        raise PlacerError(f"placements {settings.placements}: a first and a later one are needed")
    prepared = prepare(training_graph(settings.model, settings.size), None, settings.devices)
    problem = prepared.problem
    protocol = dataclasses.replace(PROTOCOLS[settings.protocol], stop_ratio=0.0)
    generator = np.random.default_rng(settings.seed)
    rows = []
    begin = time.perf_counter()
    with open_runner(settings.devices, prepared.source) as runner:
        opened = time.perf_counter() - begin
        for i in range(settings.placements):
            wishes = np.zeros(problem.graph.num_ops, np.int32)
            cut = generator.uniform(0.1, 0.9) if i else 1.0
            wishes[int(cut * len(wishes)) :] = 1
            rows.append(_measure(runner, problem.repair(wishes), protocol))
    frame = pd.DataFrame(rows)
    frame.insert(0, "placement", range(len(frame)))
    total = time.perf_counter() - begin
    session, setup = frame["build_seconds"], frame["setup_seconds"]
    summary = pd.DataFrame(
        [
            {
                "model": settings.model,
                "placements": len(frame),
                "opening_seconds": opened,
                "first_session_seconds": session.iloc[0],
                "second_session_seconds": session.iloc[1],
                "median_later_session_seconds": float(session.iloc[1:].median()),
                "first_setup_seconds": setup.iloc[0],
                "second_setup_seconds": setup.iloc[1],
                "median_later_setup_seconds": float(setup.iloc[1:].median()),
                "part_in_steps": float(frame["steps_seconds"].sum() / total),
                "part_in_steps_once_open": float(frame["steps_seconds"].sum() / (total - opened)),
            }
        ]
    )
    note = (
        "session is building the session and placing the graph in it; set-up is that, "
        "initialising variables, and what the first step takes beyond a later one; in steps is "
        "the time in which steps ran, the first among them"
    )
    return Outcome(
        tables={"summary": summary, "placements": frame}, notes=[note], shown={"summary": summary}
    )


def _measure(runner: Runner, placement: np.ndarray, protocol: MeasurementProtocol) -> dict:
    begin = time.perf_counter()
    measured = runner.measure(placement, protocol)
    if measured.failure is not None:
        raise PlacerError(f"a placement did not run: {measured.failure}")
    first = max(0.0, measured.warm_up[0] - measured.seconds)
    return {
        "step_seconds": measured.seconds,
        "build_seconds": measured.built_seconds,
        "initialise_seconds": measured.initialised_seconds,
        "first_step_extra_seconds": first,
        "setup_seconds": measured.built_seconds + measured.initialised_seconds + first,
        "steps_seconds": measured.ran_seconds,
        "total_seconds": time.perf_counter() - begin,
        "faults": "; ".join(measured.faults),
    }


EXPERIMENT = Experiment(
    name="overhead",
    summary="what measuring costs besides the steps",
    settings=Settings,
    smoke=Settings(model="nmt", size="tiny", placements=3, protocol="quick"),
    expected_seconds=lambda s: 20 + 13 * s.placements,
    run=run,
)
