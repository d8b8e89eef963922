"""peers: every placer with equal time, all models, 2, 4 and 8 GPUs."""

from __future__ import annotations

import dataclasses

from benchmarks.contest import (
    PAPER_POLICY,
    crashes,
    geometric_means,
    run_contest,
    searching_seconds,
    shown_means,
    summary,
)
from benchmarks.experiment import Experiment, Outcome, setting
from benchmarks.models import MODELS
from placer.placers import PLACERS
from placer.search import Budget

# Exhaustive search is for graphs of a few groups.
_LEFT_OUT = ("exhaustive",)


def every_method() -> tuple[str, ...]:
    """The registry's placers, the policy with both presets, and auto first."""
    placers = (name for name in PLACERS if name not in _LEFT_OUT)
    return tuple(dict.fromkeys(("auto", "policy", PAPER_POLICY, *placers)))


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the experiment."""

    methods: tuple[str, ...] = setting(every_method(), "methods")
    models: tuple[str, ...] = setting(tuple(MODELS), "models, or model-size")
    gpus: tuple[int, ...] = setting((2, 4, 8), "numbers of K80 GPUs")
    budget: float = setting(30.0, "seconds a search may take")
    seeds: tuple[int, ...] = setting((0,), "seeds")

    @property
    def rows(self) -> tuple[str, ...]:
        """Rows of the contest."""
        return tuple(f"{model}:{count}" for model in self.models for count in self.gpus)


def run(settings: Settings) -> Outcome:
    """Runs the contest."""
    frame, history = run_contest(
        settings.methods, settings.rows, settings.seeds, Budget(settings.budget)
    )
    means = geometric_means(frame)
    lines = summary(frame)
    return Outcome(
        tables={"runs": frame, "means": means, "history": history},
        shown={"runs": lines, "means": shown_means(means)},
        notes=(f"every method had {settings.budget:g} s a row; constructive ones end earlier",),
        failures=crashes(frame),
    )


EXPERIMENT = Experiment(
    name="peers",
    summary="every placer with equal time, all models, 2, 4 and 8 GPUs",
    settings=Settings,
    smoke=Settings(models=("nmt-tiny",), gpus=(2,), budget=0.2),
    expected_seconds=lambda s: searching_seconds(s.methods, s.rows, s.seeds, s.budget),
    run=run,
)
