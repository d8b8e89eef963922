"""quality: methods on the six rows with equal time: step time, ÷ lower bound, how soon."""

from __future__ import annotations

import dataclasses
import sys

import numpy as np
import pandas as pd

from benchmarks.cases import (
    SIX_ROWS,
    Case,
    Found,
    best_at,
    load_case,
    parse_method,
    parse_row,
    search_case,
    seconds_to_within,
)
from benchmarks.experiment import Experiment, Outcome, setting
from placer.methods import get_method
from placer.search import Budget

# "Soon" in the anytime column.
EARLY_SECONDS = 5.0
# Placers that propose a few placements and are done; "auto" must be no worse than the best of
# them after EARLY_SECONDS.
CONSTRUCTIVE = (
    "single_gpu",
    "expert",
    "scotch",
    "mincut",
    "metis",
    "m_topo",
    "m_etf",
    "m_sct",
    "heft",
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the experiment."""

    methods: tuple[str, ...] = setting(
        (
            "auto",
            "policy",
            "policy[preset=icml2017]",
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
    check_names(settings.methods, settings.rows)
    records, histories = [], []
    for row in settings.rows:
        case = load_case(row, settings.max_groups)
        for method in settings.methods:
            for seed in settings.seeds:
                limit = Budget(settings.budget, settings.evaluations or float("inf"))
                found = search_case(case, method, limit, seed)
                records.append(record(case, found, seed))
                print(_progress_line(records[-1]), file=sys.stderr, flush=True)
                if found.search is not None:
                    history = found.search.history()
                    histories.append(history.assign(row=row, method=method, seed=seed))
                if found.search is None or not uses_seed(method):
                    break
    frame = pd.DataFrame(records)
    history = pd.concat(histories, ignore_index=True) if histories else pd.DataFrame()
    means = geometric_means(frame)
    return Outcome(
        tables={"runs": frame, "means": means, "history": history},
        shown={"runs": summary(frame), "means": _shown_means(means)},
        notes=tuple(_verdicts(frame, means)),
        figures=_figures(frame, history, settings),
    )


def check_names(methods: tuple[str, ...], rows: tuple[str, ...]) -> None:
    """Raises PlacerError for a bad method or row before anything is run."""
    from benchmarks.models import MODELS
    from placer.devices import parse
    from placer.errors import PlacerError

    for method in methods:
        get_method(*parse_method(method))
    for row in rows:
        model, _, devices = parse_row(row)
        if model not in MODELS:
            raise PlacerError(f"row {row!r}: no model {model!r}; models are {', '.join(MODELS)}")
        parse(devices)


def uses_seed(method: str) -> bool:
    """Whether another seed may give another placement; constructive placers run once."""
    return parse_method(method)[0] not in (*CONSTRUCTIVE, "single_cpu")


def record(case: Case, found: Found, seed: int) -> dict[str, object]:
    """One run as a row of the frame; seconds, GiB."""
    search = found.search
    return {
        "row": case.name,
        "method": found.method,
        "seed": seed,
        "step_seconds": found.step_seconds,
        "over_bound": found.step_seconds / case.lower_bound,
        "peak_gib": found.peak_bytes.max() / 2**30,
        "seconds_to_5_percent": seconds_to_within(search) if search else np.nan,
        "step_seconds_at_5_s": best_at(search, EARLY_SECONDS) if search else np.nan,
        "search_seconds": search.elapsed if search else np.nan,
        "evaluations": search.evaluations if search else 0,
        "evaluations_per_second": search.evaluations / max(search.elapsed, 1e-9)
        if search
        else np.nan,
        "lower_bound_seconds": case.lower_bound,
        "prepare_seconds": case.seconds,
        "failure": found.failure,
    }


def _progress_line(row: dict) -> str:
    return (
        f"{row['row']:>15} {row['method']:<24} seed {row['seed']}  "
        f"{row['step_seconds']:.4f} s  {row['over_bound']:.3f} x bound  "
        f"{row['evaluations']} placements in {row['search_seconds']:.1f} s {row['failure']}"
    )


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """Medians over seeds, one line a row and method, as the terminal shows them."""
    lines = []
    for (row, method), runs in frame.groupby(["row", "method"], sort=False):
        fits = np.isfinite(runs.step_seconds).all()
        spread = ""
        if len(runs) > 1 and fits:
            spread = f"{runs.over_bound.min():.3f}–{runs.over_bound.max():.3f}"
        lines.append(
            {
                "row": row,
                "method": method,
                "step s": f"{runs.step_seconds.median():.4f}"
                if fits
                else str(runs.failure.iloc[0])[:60],
                "÷ bound": f"{runs.over_bound.median():.3f}" if fits else "-",
                "seeds": spread,
                "peak GiB": f"{runs.peak_gib.max():.2f}",
                "to 5 % s": f"{runs.seconds_to_5_percent.median():.1f}",
                "at 5 s": f"{runs.step_seconds_at_5_s.median():.4f}",
                "placements": f"{runs.evaluations.median():.0f}",
                "a second": f"{runs.evaluations_per_second.median():.0f}",
            }
        )
    return pd.DataFrame(lines)


def geometric_means(frame: pd.DataFrame) -> pd.DataFrame:
    """Per method: geometric mean over rows of the mean ratio to the lower bound over seeds.

    Rows where a seed ended without a placement that fits are left out and counted.
    """
    ratios = frame.groupby(["method", "row"], sort=False).over_bound.mean().reset_index()
    lines = []
    for method, runs in ratios.groupby("method", sort=False):
        fits = np.isfinite(runs.over_bound)
        mean = float(np.exp(np.log(runs.over_bound[fits]).mean())) if fits.any() else np.inf
        lines.append(
            {
                "method": method,
                "geometric_mean": mean,
                "rows": int(fits.sum()),
                "rows_without": int((~fits).sum()),
            }
        )
    return pd.DataFrame(lines).sort_values(["rows_without", "geometric_mean"])


def _shown_means(means: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "method": means.method,
            "geometric mean ÷ bound": means.geometric_mean.map("{:.3f}".format),
            "rows": means.rows.astype(str),
            "rows where nothing fits": means.rows_without.astype(str),
        }
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
        f"geometric mean of auto over {mean.rows:.0f} rows: {mean.geometric_mean:.3f} x bound"
    )
    return notes


def _figures(frame: pd.DataFrame, history: pd.DataFrame, settings: Settings) -> dict:
    from benchmarks.plots import anytime

    if history.empty:
        return {}
    bounds = frame.groupby("row").lower_bound_seconds.first().to_dict()
    return {"anytime": anytime(history, bounds, settings.budget)}


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
    expected_seconds=lambda s: (
        60
        + s.budget
        * len(s.rows)
        * len(s.seeds)
        * sum(parse_method(m)[0] not in CONSTRUCTIVE for m in s.methods)
    ),
    run=run,
)
