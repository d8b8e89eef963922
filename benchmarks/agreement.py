"""agreement: the simulator against Grappler's own, on random placements with free transfers.

Step times, and out-of-memory verdicts on devices whose memory is within 10 % of the peak.
"""

from __future__ import annotations

import dataclasses

import pandas as pd
from matplotlib.figure import Figure

from benchmarks.experiment import Experiment, Outcome, setting
from benchmarks.grappler_agreement import (
    LIMITS,
    PAPER_MODELS,
    Agreement,
    compare,
    compare_memory,
)
from benchmarks.plots import COLOURS

_MIB = 2.0**20


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the experiment."""

    models: tuple[str, ...] = setting(PAPER_MODELS, "models")
    size: str = setting("paper", "size of the models: paper, small or tiny")
    placements: int = setting(50, "random placements a model whose step times are compared")
    memory_placements: int = setting(
        4, f"random placements a model whose verdicts are compared at {len(LIMITS)} limits; 0: none"
    )


def run(settings: Settings) -> Outcome:
    """Compares step times placement by placement, and verdicts limit by limit."""
    frames, agreements, verdicts = [], [], []
    for model in settings.models:
        frame, agreement = compare(model, settings.size, settings.placements)
        frames.append(frame)
        agreements.append(agreement)
        if settings.memory_placements:
            verdicts.append(compare_memory(model, settings.size, settings.memory_placements))
    placements = pd.concat(frames, ignore_index=True)
    summary = pd.DataFrame([dataclasses.asdict(a) for a in agreements])
    tables = {"summary": summary, "placements": placements}
    shown = {"summary": summary}
    notes = [_step_note(agreement) for agreement in agreements]
    if verdicts:
        memory = tables["memory"] = pd.concat(verdicts, ignore_index=True)
        shown["memory"] = memory_summary(memory)
        notes += memory_notes(memory)
    return Outcome(
        tables=tables, shown=shown, notes=notes, figures={"scatter": _scatter(placements)}
    )


def _step_note(agreement: Agreement) -> str:
    a = agreement
    return (
        f"{a.model}: rank correlation {a.rank_correlation:.4f}, median error "
        f"{100 * a.median_error:.2f} %, worst {100 * a.worst_error:.2f} %, over {a.placements} "
        f"placements; {a.our_rate:,.0f} of them a second here, {a.grappler_rate:.2g} in Grappler"
    )


def memory_summary(memory: pd.DataFrame) -> pd.DataFrame:
    """A line a model and limit: how many placements fit by each of the three accounts."""
    fits = ["grappler_fits", "accounted_fits", "our_fits"]
    lines = memory.groupby(["model", "limit"], sort=False)[fits].sum().astype(int)
    lines.insert(0, "placements", memory.groupby(["model", "limit"], sort=False).size())
    lines.columns = ["placements", "fit: Grappler", "ours, its accounting", "ours"]
    return lines.reset_index().rename(columns={"limit": "memory ÷ Grappler's peak"})


def memory_notes(memory: pd.DataFrame) -> list[str]:
    """Where the verdicts agree, where they do not, and what makes the difference."""
    notes = []
    for model, part in memory.groupby("model", sort=False):
        alike = part.grappler_fits == part.accounted_fits
        apart = (part.accounted_peak_bytes / part.grappler_peak_bytes - 1).abs()
        text = (
            f"{model}, memory counted as Grappler does: {alike.sum()} of {len(part)} verdicts "
            f"agree; peaks are at most {100 * apart.max():.2f} % apart"
        )
        if not alike.all():
            text += (
                f". Where they disagree, memory is {_multiples(part[~alike])} times Grappler's "
                "peak: here an output is there while its op runs, beside the op's inputs, as "
                "TensorFlow allocates it; in Grappler only from the op's end"
            )
        notes.append(text)
        same = part.grappler_fits == part.our_fits
        text = f"{model}, our own accounting: {same.sum()} of {len(part)} verdicts agree"
        refused = part[part.grappler_fits & ~part.our_fits]
        if len(refused):
            state = refused.with_variables_peak_bytes - refused.accounted_peak_bytes
            text += (
                f". {len(refused)} that Grappler lets pass are refused (memory "
                f"{_multiples(refused)} times its peak): counting variables and constants, which "
                f"it leaves out though they are there all the time, adds at most "
                f"{state.max() / _MIB:,.1f} MiB to the fullest device"
            )
        passed = part[~part.grappler_fits & part.our_fits]
        if len(passed):
            shared = passed.with_variables_peak_bytes - passed.our_peak_bytes
            text += (
                f". {len(passed)} that it refuses fit (memory {_multiples(passed)} times its "
                "peak): outputs of Identity, Reshape and the like share their input's buffer in "
                f"TensorFlow, up to {shared.max() / _MIB:,.1f} MiB that it counts twice"
            )
        notes.append(text)
    return notes


def _multiples(part: pd.DataFrame) -> str:
    return ", ".join(f"{limit:g}" for limit in sorted(set(part.limit)))


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
    smoke=Settings(models=("nmt",), size="tiny", placements=5, memory_placements=1),
    expected_seconds=lambda s: (
        len(s.models)
        * (
            (2 if s.size == "tiny" else 10)
            + (0.02 if s.size == "tiny" else 0.8) * (s.placements + 10 * s.memory_placements)
        )
    ),
    run=run,
)
