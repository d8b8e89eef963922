"""policy_ablation: what each part of the policy is worth, at equal numbers of placements."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd

from benchmarks.contest import (
    PAPER_POLICY,
    check_names,
    crashes,
    geometric_means,
    run_contest,
    shown_means,
)
from benchmarks.experiment import Experiment, Outcome, setting
from placer.search import Budget

# Setting changed -> what is missing then, or what is there instead.
VARIANTS = {
    "policy": "the modern preset",
    "policy[incumbents=false]": "every placement is decoded from nothing",
    "policy[tolerance=0.0]": "the incumbent is always the best placement so far",
    "policy[tolerance=0.02]": "and is nearer to it at first",
    "policy[window=32]": "at most 32 groups are decoded anew within an incumbent",
    "policy[window=128]": "at most 128",
    "policy[fresh=0.0]": "after the warm-up nothing is decoded from nothing",
    "policy[imitation=0.0]": "the best placements are not imitated",
    "policy[baseline=rank]": "advantages by rank instead of by reward",
    "policy[device_features=false]": "no device is scored by what placing a group there would do",
    "policy[features=shapes]": "the paper's embedding of the groups",
    "policy[break_symmetry=false]": "identical devices are not numbered by first use",
    "policy[ppo_clip=0.0]": "plain REINFORCE",
    "policy[entropy=0.0]": "no entropy bonus",
    "policy[samples=256]": "larger batches, half as many updates",
    # So small that nothing is learnt: the proposals of the untrained decoder.
    "policy[learning_rate=1e-9,final_learning_rate=1e-9]": "selection without learning",
    PAPER_POLICY: "the paper's policy",
    "random_search": "no policy",
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the experiment."""

    methods: tuple[str, ...] = setting(tuple(VARIANTS), "variants of the policy, and others")
    rows: tuple[str, ...] = setting(("rnnlm:2", "nmt:4", "inception_v3:2"), "rows")
    placements: int = setting(8192, "placements that each search may evaluate")
    seeds: tuple[int, ...] = setting((0,), "seeds")


def run(settings: Settings) -> Outcome:
    """Runs the variants; PlacerError for bad names, before anything is run."""
    check_names(settings.methods, settings.rows)
    budget = Budget(evaluations=settings.placements)
    frame, history = run_contest(settings.methods, settings.rows, settings.seeds, budget)
    means = geometric_means(frame)
    shown = shown_means(means)
    shown.insert(1, "that is", [VARIANTS.get(method, "") for method in means.method])
    return Outcome(
        tables={"means": means, "runs": frame, "curves": _curves(frame, history, settings)},
        shown={"means": shown},
        notes=(f"every search evaluates {settings.placements} placements",),
        failures=crashes(frame),
    )


def _curves(frame: pd.DataFrame, history: pd.DataFrame, settings: Settings) -> pd.DataFrame:
    """Best step time, in seconds, after an eighth, a quarter, a half and all placements."""
    lines = []
    for run in frame.itertuples():
        line = {"row": run.row, "method": run.method, "seed": run.seed}
        own = history
        if len(history):
            own = history[
                (history.row == run.row)
                & (history.method == run.method)
                & (history.seed == run.seed)
            ]
        for part in (8, 4, 2, 1):
            count = settings.placements // part
            best = own.step_seconds[own.evaluations <= count].min() if len(own) else np.inf
            line[str(count)] = best
        lines.append(line)
    return pd.DataFrame(lines)


EXPERIMENT = Experiment(
    name="policy_ablation",
    summary="what each part of the policy is worth, at equal numbers of placements",
    settings=Settings,
    smoke=Settings(methods=("policy", PAPER_POLICY), rows=("nmt-tiny:2",), placements=300),
    expected_seconds=lambda s: (
        len(s.methods) * len(s.rows) * len(s.seeds) * (10 + s.placements / 400)
    ),
    run=run,
)
