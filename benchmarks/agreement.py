"""agreement: the simulator against Grappler's own, on random placements with free transfers."""

from __future__ import annotations

import dataclasses

import pandas as pd
from matplotlib.figure import Figure

from benchmarks.experiment import Experiment, Outcome, setting
from benchmarks.grappler_agreement import PAPER_MODELS, compare_all
from benchmarks.plots import COLOURS


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the experiment."""

    models: tuple[str, ...] = setting(PAPER_MODELS, "models")
    size: str = setting("paper", "size of the models: paper, small or tiny")
    placements: int = setting(50, "random placements a model")


def run(settings: Settings) -> Outcome:
    """Compares step times placement by placement."""
    frame, agreements = compare_all(settings.models, settings.size, settings.placements)
    summary = pd.DataFrame([dataclasses.asdict(a) for a in agreements])
    return Outcome(
        tables={"summary": summary, "placements": frame},
        shown={"summary": summary},
        figures={"scatter": _scatter(frame)},
    )


def _scatter(frame: pd.DataFrame) -> Figure:
    figure = Figure(figsize=(5, 4.6), layout="constrained")
    ax = figure.subplots()
    for i, (model, part) in enumerate(frame.groupby("model", sort=False)):
        ax.plot(
            part.grappler_seconds, part.our_seconds, "o", ms=4, color=COLOURS[i], label=str(model)
        )
    ends = [frame.grappler_seconds.min(), frame.grappler_seconds.max()]
    ax.plot(ends, ends, color="black", lw=0.8)
    ax.set_xlabel("Grappler's step time, s")
    ax.set_ylabel("ours, s")
    ax.legend(frameon=False)
    ax.grid(alpha=0.25)
    return figure


EXPERIMENT = Experiment(
    name="agreement",
    summary="the simulator against Grappler's own, with free transfers",
    settings=Settings,
    smoke=Settings(models=("nmt",), size="tiny", placements=5),
    expected_seconds=lambda s: (
        len(s.models) * ((2 if s.size == "tiny" else 20) + 0.8 * s.placements)
    ),
    run=run,
)
