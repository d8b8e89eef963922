"""tight_memory: does a search find a placement that fits where memory is hardly enough?

For each row, the packing that is known to need least on its fullest GPU is looked for among the
constructive placers and a search under ever smaller limits. Devices then get what it needs and
`headroom` more, and the methods search under these limits, from nothing.
"""

from __future__ import annotations

import dataclasses
import sys

import numpy as np
import pandas as pd

from benchmarks.cases import SIX_ROWS, Case, load_case, make_case, search_case
from benchmarks.contest import CONSTRUCTIVE
from benchmarks.experiment import Experiment, Outcome, setting
from placer.errors import PlacerError
from placer.search import Budget

# Rounds of search for a better packing, each under limits so much lower than the last one needs.
_ROUNDS = 6
_SQUEEZE = 0.93


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the experiment."""

    methods: tuple[str, ...] = setting(("auto",), "methods, each a name or name[option=value,...]")
    rows: tuple[str, ...] = setting(SIX_ROWS, "rows: model:GPUs (k80) or model-size:GPUs")
    headroom: float = setting(0.05, "memory beyond the best known packing, a part of it")
    budget: float = setting(15.0, "seconds a search may take")
    packing_budget: float = setting(5.0, "seconds of each round of search for a packing")
    seed: int = setting(0, "seed")


def run(settings: Settings) -> Outcome:
    """Runs every method on every row under tight limits."""
    records: list[dict[str, object]] = []
    for row in settings.rows:
        case = load_case(row)
        peaks, source = best_packing(case, settings.packing_budget, settings.seed)
        # A device that the packing leaves empty has a limit too.
        limits = np.maximum(np.ceil(peaks * (1 + settings.headroom)), 1).astype(np.int64)
        tight = with_memory(case, limits)
        for method in settings.methods:
            found = search_case(tight, method, Budget(settings.budget), settings.seed)
            search = found.search
            records.append(
                {
                    "row": row,
                    "method": method,
                    "packing": source,
                    "packing_gib": peaks.max() / 2**30,
                    "limit_gib": limits.max() / 2**30,
                    "fits": bool(np.isfinite(found.step_seconds)),
                    "step_seconds": found.step_seconds,
                    "fullest": float((found.peak_bytes / limits).max()),
                    "seconds_to_fit": _first_fit(search.improvements) if search else np.inf,
                    "failure": found.failure,
                }
            )
            print(records[-1], file=sys.stderr, flush=True)
    frame = pd.DataFrame(records)
    failed = frame[~frame.fits]
    return Outcome(
        tables={"tight_memory": frame},
        shown={"tight_memory": frame.round(4).astype(str)},
        notes=[f"{len(frame) - len(failed)} of {len(frame)} searches found a placement that fits"],
        failures=[f"{r.method} on {r.row}: nothing that fits" for r in failed.itertuples()],
    )


def best_packing(case: Case, budget: float, seed: int) -> tuple[np.ndarray, str]:
    """int64[D] peaks of the placement with the least peak on its fullest GPU, and who found it.

    Peaks of CPUs count too, but come second: they have several times the memory of a GPU.
    """
    gpus = list(case.problem.topology.accelerators)
    known: list[tuple[int, np.ndarray, str]] = []
    for method in CONSTRUCTIVE:
        try:
            found = search_case(case, method, Budget(budget), seed)
        except PlacerError:
            continue
        if found.placement is not None:
            known.append((int(found.peak_bytes[gpus].max()), found.peak_bytes, method))
    best = min(known, key=lambda k: k[0])
    for _ in range(_ROUNDS):
        limits = case.problem.topology.memory_bytes.copy()
        limits[gpus] = int(best[0] * _SQUEEZE)
        if not limits[gpus].all():
            break  # All of it is on CPUs.
        found = search_case(with_memory(case, limits), "auto", Budget(budget), seed)
        if not np.isfinite(found.step_seconds):
            break
        best = (int(found.peak_bytes[gpus].max()), found.peak_bytes, "auto")
    return best[1], best[2]


def with_memory(case: Case, limits: np.ndarray) -> Case:
    """The case with other memory limits, int64[D]."""
    topology = case.problem.topology.with_memory([int(b) for b in limits])
    problem = dataclasses.replace(case.problem, topology=topology)
    return make_case(case.name, dataclasses.replace(case.prepared, problem=problem))


def _first_fit(improvements: list) -> float:
    return next((i.seconds for i in improvements if np.isfinite(i.step_seconds)), np.inf)


EXPERIMENT = Experiment(
    name="tight_memory",
    summary="searches where memory is 5 % more than the best known packing needs",
    settings=Settings,
    smoke=Settings(rows=("rnnlm-tiny:2",), budget=1.0, packing_budget=0.5),
    expected_seconds=lambda s: sum(
        20 + 7 * s.packing_budget + len(s.methods) * s.budget for _ in s.rows
    ),
    run=run,
)
