"""policy: the learned policy alone against annealing, random search and the paper's policy."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd

from benchmarks.cases import SIX_ROWS
from benchmarks.contest import PAPER_POLICY, check_names, crashes, run_contest
from benchmarks.experiment import Experiment, Outcome, setting
from placer.search import Budget

# The policy must come as near to annealing, and be as fast, on so many rows.
NEAR, PACE = 1.05, 400.0
RIVALS = ("random_search", PAPER_POLICY)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the experiment."""

    rows: tuple[str, ...] = setting(SIX_ROWS, "rows")
    policy: str = setting("policy", "the policy, with options in brackets")
    annealing_seconds: float = setting(60.0, "seconds for annealing")
    policy_seconds: float = setting(120.0, "seconds for the policy")
    placements: int = setting(8192, "placements for random search and the paper's policy")
    seed: int = setting(0, "seed of every search")


def run(settings: Settings) -> Outcome:
    """Runs the searches, one after the other; PlacerError for bad names, before any is run."""
    check_names((settings.policy,), settings.rows)
    runs, histories = [], []
    for row in settings.rows:
        for methods, budget in (
            (("annealing",), Budget(seconds=settings.annealing_seconds)),
            ((settings.policy,), Budget(seconds=settings.policy_seconds)),
            (RIVALS, Budget(evaluations=settings.placements)),
        ):
            frame, history = run_contest(methods, (row,), (settings.seed,), budget)
            runs.append(frame)
            histories.append(history)
    frame, history = pd.concat(runs, ignore_index=True), pd.concat(histories, ignore_index=True)
    table = _compare(frame, history, settings)
    near = int((table.policy_over_annealing <= NEAR).sum())
    ahead = int(table.beats_rivals.sum())
    fast = int((table.placements_per_second >= PACE).sum())
    return Outcome(
        tables={"comparison": table, "runs": frame, "history": history},
        shown={"comparison": _shown(table, settings)},
        notes=(
            f"of {len(table)} rows, the policy is within 5 % of annealing on {near}, ahead of "
            f"random search and the paper's policy on {ahead}, and samples, simulates and learns "
            f"from {PACE:.0f} placements a second on {fast}",
            f"the last three columns of step times are after {settings.placements} placements",
        ),
        failures=crashes(frame),
    )


def _compare(frame: pd.DataFrame, history: pd.DataFrame, settings: Settings) -> pd.DataFrame:
    """One line a row; step times in seconds, inf where nothing fits.

    `policy_at_placements` is the policy's best after as many placements as its rivals had; its
    schedules are those of the whole run.
    """
    lines = []
    for row in settings.rows:
        runs = frame[frame.row == row].set_index("method")
        own = history[(history.row == row) & (history.method == settings.policy)]
        early = own[own.evaluations <= settings.placements].step_seconds.min()
        early = float(early) if np.isfinite(early) else np.inf
        rivals = [float(runs.step_seconds[rival]) for rival in RIVALS]
        annealing = float(runs.step_seconds["annealing"])
        policy = float(runs.step_seconds[settings.policy])
        lines.append(
            {
                "row": row,
                "annealing_seconds": annealing,
                "policy_seconds": policy,
                "policy_over_annealing": policy / annealing,
                "policy_at_placements": early,
                "random_search_seconds": rivals[0],
                "icml2017_seconds": rivals[1],
                "beats_rivals": early < min(rivals),
                "placements": int(runs.evaluations[settings.policy]),
                "placements_per_second": float(runs.evaluations_per_second[settings.policy]),
            }
        )
    return pd.DataFrame(lines)


def _shown(table: pd.DataFrame, settings: Settings) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "row": table.row,
            f"annealing {settings.annealing_seconds:g} s": table.annealing_seconds.map(
                "{:.4f}".format
            ),
            f"policy {settings.policy_seconds:g} s": table.policy_seconds.map("{:.4f}".format),
            "ratio": table.policy_over_annealing.map("{:.3f}".format),
            "policy": table.policy_at_placements.map("{:.4f}".format),
            "random": table.random_search_seconds.map("{:.4f}".format),
            "icml2017": table.icml2017_seconds.map("{:.4f}".format),
            "placements": table.placements.astype(str),
            "a second": table.placements_per_second.map("{:.0f}".format),
        }
    )


EXPERIMENT = Experiment(
    name="policy",
    summary="the learned policy against annealing, random search and the paper's policy",
    settings=Settings,
    smoke=Settings(rows=("nmt-tiny:2",), annealing_seconds=1.0, policy_seconds=6.0, placements=200),
    expected_seconds=lambda s: (
        len(s.rows) * (15 + s.annealing_seconds + s.policy_seconds + s.placements / 150)
    ),
    run=run,
)
