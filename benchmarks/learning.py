"""learning: best step time against seconds and against placements, several seeds with bands."""

from __future__ import annotations

import dataclasses

from benchmarks.contest import (
    PAPER_POLICY,
    bounds,
    crashes,
    run_contest,
    searching_seconds,
    summary,
)
from benchmarks.experiment import Experiment, Outcome, setting
from benchmarks.plots import anytime
from placer.search import Budget


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the experiment."""

    methods: tuple[str, ...] = setting(
        (PAPER_POLICY, "policy", "annealing", "cross_entropy", "random_search"), "methods"
    )
    rows: tuple[str, ...] = setting(("rnnlm:4", "nmt:4", "inception_v3:4"), "rows")
    budget: float = setting(120.0, "seconds a search may take")
    seeds: tuple[int, ...] = setting((0, 1, 2), "seeds")


def run(settings: Settings) -> Outcome:
    """Runs the searches and draws their curves."""
    frame, history = run_contest(
        settings.methods, settings.rows, settings.seeds, Budget(settings.budget)
    )
    figures = {}
    if len(history):
        most = float(frame.evaluations.max())
        figures["seconds"] = anytime(history, bounds(frame), settings.budget)
        figures["placements"] = anytime(history, bounds(frame), most, x="evaluations")
    return Outcome(
        tables={"runs": frame, "history": history},
        shown={"runs": summary(frame)},
        notes=("lines are medians over seeds, bands the range",),
        figures=figures,
        failures=crashes(frame),
    )


EXPERIMENT = Experiment(
    name="learning",
    summary="search curves of the policies and other searches, several seeds with bands",
    settings=Settings,
    smoke=Settings(methods=("policy", "annealing"), rows=("nmt-tiny:2",), budget=4.0, seeds=(0, 1)),
    expected_seconds=lambda s: searching_seconds(s.methods, s.rows, s.seeds, s.budget),
    run=run,
)
