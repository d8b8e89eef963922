"""Contests: methods on rows with equal time, and the tables made of them."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence

import numpy as np
import pandas as pd

from benchmarks.cases import (
    Case,
    Found,
    best_at,
    load_case,
    nothing_found,
    parse_method,
    parse_row,
    search_case,
    seconds_to_within,
)
from benchmarks.models import MODELS
from placer.devices import parse
from placer.errors import PlacerError
from placer.methods import get_method
from placer.search import Budget

# "Soon" in the anytime column.
EARLY_SECONDS = 5.0
# Placers that propose a few placements and are done.
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
# What the failure of a run that ended with an unexpected error begins with.
CRASHED = "crashed:"
# The paper's policy as a method.
PAPER_POLICY = "policy[preset=icml2017]"


def run_contest(
    methods: Sequence[str],
    rows: Sequence[str],
    seeds: Sequence[int],
    budget: Budget,
    max_groups: int = 256,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Runs every method on every row with every seed; says on standard error how it goes.

    Returns:
      A frame with a row a run (see `record`), and the histories of all searches: columns seconds,
      evaluations, step_seconds, source, row, method, seed.

    Raises:
      PlacerError: for a bad method or row, before anything is run.
    """
    check_names(methods, rows)
    records: list[dict[str, object]] = []
    histories: list[pd.DataFrame] = []
    try:
        for row in rows:
            case = load_case(row, max_groups)
            for method in methods:
                for seed in seeds[:1] if not uses_seed(method) else seeds:
                    found = _search(case, method, budget, seed)
                    records.append(record(case, found, seed))
                    print(_progress_line(records[-1]), file=sys.stderr, flush=True)
                    if found.search is not None:
                        history = found.search.history()
                        histories.append(history.assign(row=row, method=method, seed=seed))
    except KeyboardInterrupt:
        # Hours of results are not thrown away.
        if not records:
            raise
        print("interrupted; what was found so far follows", file=sys.stderr, flush=True)
    columns = ["seconds", "evaluations", "step_seconds", "source", "row", "method", "seed"]
    history = pd.concat(histories, ignore_index=True) if histories else pd.DataFrame()
    return pd.DataFrame(records), history.reindex(columns=columns)


def _search(case: Case, method: str, budget: Budget, seed: int) -> Found:
    """`search_case`, with a crash as a failure of the method: it must not end the contest."""
    try:
        return search_case(case, method, budget, seed)
    except Exception as error:
        traceback.print_exc()
        return nothing_found(case, method, f"{CRASHED} {type(error).__name__}: {error}")


def crashes(frame: pd.DataFrame) -> list[str]:
    """A sentence for each run that crashed."""
    failed = frame[frame.failure.str.startswith(CRASHED)]
    return [f"{r.method} on {r.row}, seed {r.seed}: {r.failure}" for r in failed.itertuples()]


def check_names(methods: Sequence[str], rows: Sequence[str]) -> None:
    """Raises PlacerError for a bad method or row before anything is run."""
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
        "over_gpu_bound": found.step_seconds / case.gpu_bound,
        "peak_gib": found.peak_bytes.max() / 2**30,
        "seconds_to_5_percent": seconds_to_within(search) if search else np.nan,
        "step_seconds_at_5_s": best_at(search, EARLY_SECONDS) if search else np.nan,
        "search_seconds": search.elapsed if search else np.nan,
        "evaluations": search.evaluations if search else 0,
        "evaluations_per_second": search.evaluations / max(search.elapsed, 1e-9)
        if search
        else np.nan,
        "lower_bound_seconds": case.lower_bound,
        "gpu_bound_seconds": case.gpu_bound,
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
                "÷ GPU bound": f"{runs.over_gpu_bound.median():.3f}" if fits else "-",
                "peak GiB": f"{runs.peak_gib.max():.2f}",
                "to 5 % s": f"{runs.seconds_to_5_percent.median():.1f}",
                "at 5 s": f"{runs.step_seconds_at_5_s.median():.4f}",
                "placements": f"{runs.evaluations.median():.0f}",
                "a second": f"{runs.evaluations_per_second.median():.0f}",
            }
        )
    return pd.DataFrame(lines)


def geometric_means(frame: pd.DataFrame) -> pd.DataFrame:
    """Per method: geometric means over rows of the mean ratios to both bounds over seeds.

    Rows where a seed ended without a placement that fits are left out and counted.
    """
    columns = ["over_bound", "over_gpu_bound"]
    ratios = frame.groupby(["method", "row"], sort=False)[columns].mean().reset_index()
    lines = []
    for method, runs in ratios.groupby("method", sort=False):
        fits = np.isfinite(runs.over_bound)
        mean, gpu_mean = np.inf, np.inf
        if fits.any():
            mean, gpu_mean = np.exp(np.log(runs.loc[fits, columns]).mean()).tolist()
        lines.append(
            {
                "method": method,
                "geometric_mean": mean,
                "gpu_geometric_mean": gpu_mean,
                "rows": int(fits.sum()),
                "rows_without": int((~fits).sum()),
            }
        )
    return pd.DataFrame(lines).sort_values(["rows_without", "geometric_mean"])


def shown_means(means: pd.DataFrame) -> pd.DataFrame:
    """`geometric_means` as the terminal shows them."""
    return pd.DataFrame(
        {
            "method": means.method,
            "÷ bound (geometric mean)": means.geometric_mean.map("{:.3f}".format),
            "÷ GPU bound": means.gpu_geometric_mean.map("{:.3f}".format),
            "rows": means.rows.astype(str),
            "rows where nothing fits": means.rows_without.astype(str),
        }
    )


def searching_seconds(
    methods: Sequence[str], rows: Sequence[str], seeds: Sequence[int], budget: float
) -> float:
    """About how long a contest takes: iterative methods use their budget, others a second."""
    iterative = sum(uses_seed(m) for m in methods)
    quick = len(methods) - iterative
    preparing = sum(2 if "-tiny" in row else 15 for row in rows)
    return preparing + len(rows) * (quick + budget * len(seeds) * iterative)


def bounds(frame: pd.DataFrame) -> dict[str, float]:
    """Row -> lower bound in seconds."""
    return frame.groupby("row").lower_bound_seconds.first().to_dict()
