"""quality: methods on the six rows with equal time: step time, ÷ lower bound, how soon."""

from __future__ import annotations

import dataclasses

import pandas as pd

from benchmarks.cases import SIX_ROWS, parse_method
from benchmarks.contest import (
    CONSTRUCTIVE,
    EARLY_SECONDS,
    PAPER_POLICY,
    bounds,
    crashes,
    geometric_means,
    run_contest,
    searching_seconds,
    shown_means,
    summary,
)
from benchmarks.experiment import Experiment, Outcome, setting
from benchmarks.plots import anytime
from placer.search import Budget


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the experiment."""

    methods: tuple[str, ...] = setting(
        (
            "auto",
            "policy",
            PAPER_POLICY,
            "annealing",
            "cross_entropy",
            "hdp",
            "random_search",
            *CONSTRUCTIVE,
        ),
        "methods, each a name or name[option=value,...]",
    )
    rows: tuple[str, ...] = setting(
        SIX_ROWS, "rows: model:GPUs (k80), model-size:GPUs or model@devices"
    )
    budget: float = setting(60.0, "seconds a search may take")
    evaluations: int | None = setting(None, "placements a search may evaluate at most")
    seeds: tuple[int, ...] = setting((0, 1, 2), "seeds")
    max_groups: int = setting(256, "op groups at most")


def run(settings: Settings) -> Outcome:
    """Runs every method on every row with every seed."""
    budget = Budget(settings.budget, settings.evaluations or float("inf"))
    frame, history = run_contest(
        settings.methods, settings.rows, settings.seeds, budget, settings.max_groups
    )
    means = geometric_means(frame)
    figures = {}
    if len(history):
        figures["anytime"] = anytime(history, bounds(frame), settings.budget)
    return Outcome(
        tables={"runs": frame, "means": means, "history": history},
        shown={"runs": summary(frame), "means": shown_means(means)},
        notes=tuple(_verdicts(frame, means)),
        figures=figures,
        failures=crashes(frame),
    )


def _verdicts(frame: pd.DataFrame, means: pd.DataFrame) -> list[str]:
    if "auto" not in set(frame.method):
        return []
    notes = []
    step = frame.groupby(["row", "method"]).step_seconds.mean().unstack()
    others = step.drop(columns="auto")
    if len(others.columns):
        wins = int((step.auto <= others.min(axis=1)).sum())
        notes.append(
            f"auto is at least as good as every other method on {wins} of {len(step)} rows "
            "(mean over seeds)"
        )
    constructive = [m for m in others.columns if parse_method(m)[0] in CONSTRUCTIVE]
    if constructive:
        early = frame[frame.method == "auto"].groupby("row").step_seconds_at_5_s.max()
        soon = int((early <= step[constructive].min(axis=1) * (1 + 1e-9)).sum())
        notes.append(
            f"after {EARLY_SECONDS:g} s auto is no worse than the best constructive placer on "
            f"{soon} of {len(step)} rows (worst seed)"
        )
    mean = means.set_index("method").loc["auto"]
    notes.append(
        f"geometric mean of auto over {mean.rows:.0f} rows: {mean.geometric_mean:.3f} x bound, "
        f"{mean.gpu_geometric_mean:.3f} x GPU bound (critical path, or work ÷ GPUs)"
    )
    return notes


EXPERIMENT = Experiment(
    name="quality",
    summary="methods on six rows with equal time: step time, ÷ lower bound, anytime figure",
    settings=Settings,
    smoke=Settings(
        methods=("auto", "annealing", "single_gpu"),
        rows=("rnnlm-tiny:2",),
        budget=1.0,
        seeds=(0,),
    ),
    expected_seconds=lambda s: searching_seconds(s.methods, s.rows, s.seeds, s.budget),
    run=run,
)
