"""table: the table of the paper, simulated, with the paper's own figures beside ours.

The paper is Mirhoseini et al., Device Placement Optimization with Reinforcement Learning, ICML
2017; its table 1 gives measured step times on a host of K80s.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from typing import Any

import pandas as pd

from benchmarks import paper
from benchmarks.cases import Case, Found, load_case, nothing_found, search_case
from benchmarks.contest import PAPER_POLICY
from benchmarks.experiment import Experiment, Outcome, setting
from benchmarks.paper_differences import TITLES, common_base, explain_differences
from benchmarks.placement_facts import link_factor, placement_facts
from placer.errors import PlacerError
from placer.search import Budget

_METHODS = ("scotch", "mincut", "expert", PAPER_POLICY, "auto")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the experiment."""

    only: tuple[str, ...] = setting(paper.MODELS, "models: rnnlm, nmt, inception_v3")
    gpus: tuple[int, ...] = setting((2, 4), "numbers of K80 GPUs")
    budget: float = setting(60.0, "seconds that the paper's policy and auto may take each")
    seed: int = setting(0, "seed")
    size: str = setting("paper", "size of the models: paper, small or tiny")


def run(settings: Settings) -> Outcome:
    """Fills the table."""
    for model in settings.only:
        if model not in paper.MODELS:
            raise PlacerError(f"--only {model}: the paper's models are {', '.join(paper.MODELS)}")
    records: list[dict] = []
    for model in settings.only:
        # One CPU and one GPU are the same on any number of GPUs.
        first = load_case(f"{model}-{settings.size}:{settings.gpus[0]}")
        bases = [
            _record(first, model, 1, search_case(first, method, Budget(settings.budget), 0))
            for method in ("single_cpu", "single_gpu")
        ]
        records += bases
        for gpus in settings.gpus:
            case = load_case(f"{model}-{settings.size}:{gpus}")
            for method in _METHODS:
                found = search_case(case, method, Budget(settings.budget), settings.seed)
                line = _record(case, model, gpus, found)
                if found.placement is not None and math.isfinite(found.step_seconds):
                    line |= _explained(case, found, line, bases, settings)
                records.append(line)
                print(f"{model}, {gpus} GPUs, {method}: {_outcome(found)}", file=sys.stderr)
            records.append(_bound(case, model, gpus))
    frame = _with_speed_ups(pd.DataFrame(records))
    return Outcome(
        tables={"figures": frame},
        shown={"figures": _pivot(frame)},
        notes=tuple(_legend(settings.budget) + explain_differences(frame)),
    )


def _outcome(found: Found) -> str:
    return found.failure or f"{found.step_seconds:.4f} s"


def _record(case: Case, model: str, gpus: int, found: Found) -> dict:
    return {
        "model": model,
        "gpus": gpus,
        "method": found.method,
        "step_seconds": found.step_seconds,
        "peak_gib": float(found.peak_bytes.max()) / 2**30,
        "failure": found.failure,
        "paper_step_seconds": paper.SECONDS.get((model, gpus, found.method), math.nan),
        "ops": case.problem.graph.num_ops,
        "variables_gib": float(case.problem.graph.persistent_bytes.sum()) / 2**30,
    }


def _bound(case: Case, model: str, gpus: int) -> dict:
    nothing = nothing_found(case, "bound", "")
    line = _record(case, model, gpus, nothing)
    return line | {"step_seconds": case.lower_bound, "peak_gib": math.nan}


def _explained(
    case: Case, found: Found, line: dict, bases: list[dict], settings: Settings
) -> dict[str, object]:
    """What there is to know of a placement that fits, for the sentences below the table."""
    assert found.placement is not None
    facts: dict[str, object] = dataclasses.asdict(placement_facts(case, found.placement))
    if found.method in ("scotch", "mincut"):
        by_op = f"{found.method}[coplacement=colocation]"
        by_op_found = search_case(case, by_op, Budget(settings.budget), settings.seed)
        facts["by_op_seconds"] = by_op_found.step_seconds
    reference = common_base(bases)
    if reference is not None and math.isfinite(line["paper_step_seconds"]):
        theirs = line["paper_step_seconds"] / reference["paper_step_seconds"]
        ours = reference["step_seconds"]
        facts["link_factor_of_paper"] = link_factor(
            case, found.placement, lambda seconds: seconds / ours >= theirs
        )
    return facts


def _with_speed_ups(frame: pd.DataFrame) -> pd.DataFrame:
    """Adds speed-ups over one GPU, and where that does not fit over one CPU, ours and theirs.

    `speed_up_as_paper` is ours over what the paper's is over.
    """
    frame = frame.copy()
    for column, prefix in (("step_seconds", ""), ("paper_step_seconds", "paper_")):
        bases, names = [], []
        for model in frame.model:
            own = frame[(frame.model == model) & (frame.gpus == 1)].set_index("method")[column]
            name = "single_gpu" if math.isfinite(own.single_gpu) else "single_cpu"
            bases.append(own[name])
            names.append(name)
        frame[f"{prefix}speed_up"] = pd.Series(bases, index=frame.index) / frame[column]
        frame[f"{prefix}speed_up_over"] = names
    ones = frame[frame.gpus == 1].set_index(["model", "method"]).step_seconds
    base = [ones[m, over] for m, over in zip(frame.model, frame.paper_speed_up_over, strict=True)]
    frame["speed_up_as_paper"] = pd.Series(base, index=frame.index) / frame.step_seconds
    return frame


def _pivot(frame: pd.DataFrame) -> pd.DataFrame:
    """As the paper lays it out: a line a model and number of GPUs."""
    lines = []
    for (model, gpus), part in frame.groupby(["model", "gpus"], sort=False):
        line = {"model": model, "GPUs": str(gpus)}
        cells = {TITLES[row.method]: _cell(row) for row in part.itertuples()}
        lines.append(line | cells)
    order = ["model", "GPUs", *TITLES.values()]
    table = pd.DataFrame(lines).fillna("")
    return table[[name for name in order if name in table.columns]]


def _cell(row: Any) -> str:
    if not math.isfinite(row.step_seconds):
        ours = "OOM" if row.failure == "out of memory" else row.failure
    else:
        ours = f"{row.step_seconds:.3f} s {row.speed_up:.2f}x"
    paper_seconds = row.paper_step_seconds
    if math.isnan(paper_seconds):
        return ours
    if not math.isfinite(paper_seconds):
        return ours + " (OOM)"
    over = "" if row.paper_speed_up_over == row.speed_up_over else " of CPU"
    return ours + f" ({row.paper_speed_up:.2f}x{over})"


def _legend(budget: float) -> list[str]:
    return [
        "Step time, speed-up over one GPU (over one CPU where one GPU does not fit), and in "
        "brackets the speed-up that the paper measured. OOM: out of memory. The paper's NMT did "
        "not fit one GPU; its speed-ups are over one CPU.",
        f"The paper's policy and auto had {budget:g} s each in the simulator; the paper trained "
        "its policy for 12 to 27 hours on measured steps, so its column does not show where "
        "it converges.",
        "Our step times are simulated at the devices' peak rates, with links that cost latency "
        "and bandwidth alone; the paper's were measured under TensorFlow 1. What a placement does "
        "with free or costlier transfers is simulated too, so that sentences below say how much "
        "of a difference transfers can make; what they cannot account for is left open.",
    ]


EXPERIMENT = Experiment(
    name="table",
    summary="the paper's table, with the paper's own speed-ups beside ours",
    settings=Settings,
    smoke=Settings(only=("nmt",), gpus=(2,), budget=0.5, size="tiny"),
    expected_seconds=lambda s: (
        len(s.only) * ((3 if s.size == "tiny" else 25) + len(s.gpus) * (15 + 2 * s.budget))
    ),
    run=run,
)
