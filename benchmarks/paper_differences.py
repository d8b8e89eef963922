"""In words: where figures of `table` and the paper's part, and what the run itself says of why.

Every number comes from the placements of the run: what they do, and what they would do with free
or costlier transfers, or mapped op by op. What none of this accounts for is said to be open.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from benchmarks import paper
from benchmarks.contest import PAPER_POLICY
from benchmarks.placement_facts import LINK_FACTORS

TITLES = {
    "single_cpu": "1 CPU",
    "single_gpu": "1 GPU",
    "scotch": "Scotch",
    "mincut": "MinCut",
    "expert": "Expert",
    PAPER_POLICY: "paper's policy",
    "auto": "auto",
    "bound": "lower bound",
}
# Speed-ups within this factor are called the same.
_SAME = 1.25


def common_base(bases: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The record of one GPU, or else of one CPU, that has finite times of ours and the paper's."""
    for method in ("single_gpu", "single_cpu"):
        for line in bases:
            both = line["step_seconds"], line["paper_step_seconds"]
            if line["method"] == method and all(map(math.isfinite, both)):
                return line
    return None


def explain_differences(frame: pd.DataFrame) -> list[str]:
    """Sentences about the table `figures`, model by model."""
    notes = []
    for model in dict.fromkeys(frame.model):
        part = frame[frame.model == model]
        ones = part[part.gpus == 1].set_index("method")
        notes += _explain_bases(model, ones)
        for gpus in sorted(set(part.gpus) - {1}):
            lines = part[part.gpus == gpus].set_index("method")
            notes += _explain_reversals(model, gpus, lines, ones)
            notes += [
                f"{model}, {gpus} GPUs, {TITLES[str(method)]}: " + _explain_method(line, lines)
                for method, line in lines.iterrows()
                if method != "bound"
            ]
    return notes


def _explain_bases(model: str, ones: pd.DataFrame) -> list[str]:
    """One GPU and one CPU: memory, and how their step times compare."""
    gpu, cpu = ones.loc["single_gpu"], ones.loc["single_cpu"]
    fits, fit_there = math.isfinite(gpu.step_seconds), math.isfinite(gpu.paper_step_seconds)
    graphs = f"its graph had {paper.OPS[model]:,} ops, ours has {gpu.ops:,}"
    if fits and not fit_there:
        return [
            f"{model} fits one GPU here: {gpu.peak_gib:.1f} GiB, of which {gpu.variables_gib:.1f} "
            f"are variables; the paper ran out of memory ({graphs}). Its speed-ups are over one "
            f"CPU, which takes {cpu.step_seconds:.2f} s here and {cpu.paper_step_seconds:.2f} s "
            "there."
        ]
    if not fits:
        there = "fit" if fit_there else "did not fit either"
        return [
            f"{model} needs {gpu.peak_gib:.1f} GiB on one GPU here, of which "
            f"{gpu.variables_gib:.1f} are variables: out of memory; in the paper it {there} "
            f"({graphs})."
        ]
    return [
        f"{model} on one GPU: {gpu.step_seconds:.3f} s simulated at peak rates, "
        f"{gpu.paper_step_seconds:.2f} s measured in the paper, "
        f"{gpu.paper_step_seconds / gpu.step_seconds:.1f} times as long ({graphs}). CPU ÷ GPU: "
        f"{cpu.step_seconds / gpu.step_seconds:.1f} here, "
        f"{cpu.paper_step_seconds / gpu.paper_step_seconds:.1f} there."
    ]


def _explain_reversals(model: str, gpus: int, lines: pd.DataFrame, ones: pd.DataFrame) -> list[str]:
    one = ones.loc["single_gpu"]
    beat = [
        TITLES[m]
        for m in ("scotch", "mincut", "expert")
        if lines.loc[m, "step_seconds"] < one.step_seconds < math.inf
        and lines.loc[m, "paper_step_seconds"] > one.paper_step_seconds
    ]
    if not beat:
        return []
    names = beat[0] if len(beat) == 1 else f"{', '.join(beat[:-1])} and {beat[-1]}"
    return [f"{model}, {gpus} GPUs: {names} beat one GPU here and lost to it in the paper."]


def _explain_method(line: pd.Series, lines: pd.DataFrame) -> str:
    """One method on one number of GPUs: what it does, how it differs, what makes the difference."""
    if not math.isfinite(line.step_seconds):
        there = line.paper_step_seconds
        compared = f"; the paper measured {there:.2f} s" if math.isfinite(there) else ""
        return f"{line.failure or 'out of memory'}, {line.peak_gib:.1f} GiB{compared}."
    sentences = []
    if math.isfinite(line.paper_speed_up):
        sentences.append(_compared(line))
    elif line.name == "auto":
        bound = float(lines.loc["bound", "step_seconds"])
        sentences.append(
            f"{line.speed_up:.2f}x, {line.step_seconds / bound:.2f} times the lower bound."
        )
    sentences.append(_facts(line))
    if math.isfinite(line.paper_speed_up) and _ratio(line) > _SAME:
        sentences.append(_costlier_transfers(line))
    if line.name in ("scotch", "mincut"):
        sentences.append(_op_by_op(line))
    if line.name == PAPER_POLICY and math.isfinite(lines.loc["auto", "step_seconds"]):
        auto = float(lines.loc["auto", "step_seconds"])
        sentences.append(
            f"In equal time auto reaches {auto:.3f} s, {line.step_seconds / auto:.2f} times as "
            "fast."
        )
    return " ".join(sentences)


def _ratio(line: pd.Series) -> float:
    return float(line.speed_up_as_paper / line.paper_speed_up)


def _compared(line: pd.Series) -> str:
    over = "one GPU" if line.paper_speed_up_over == "single_gpu" else "one CPU"
    both = (
        f"{line.speed_up_as_paper:.2f}x over {over} here, {line.paper_speed_up:.2f}x in the paper"
    )
    ratio = _ratio(line)
    if 1 / _SAME <= ratio <= _SAME:
        return f"{both}: about the same."
    return f"{both}: {max(ratio, 1 / ratio):.1f} times {'better' if ratio > 1 else 'worse'}."


def _facts(line: pd.Series) -> str:
    """Who runs what, and what transfers cost it."""
    text = f"{line['where']}"
    if line.gpus_used:
        text += f"; a GPU that takes part computes {line.gpu_busy:.0%} of the step"
    if not line.crossing_tensors:
        return text + "; nothing crosses between devices."
    # A step may take longer with free transfers: ops then become ready in another order.
    gained = 1 - line.free_transfer_seconds / line.step_seconds
    less = f"{gained:.0%} less" if gained > 0.005 else "no less"
    return (
        f"{text}; {line.crossing_tensors:,.0f} tensors, {line.crossing_gib:.2f} GiB, cross and are "
        f"{line.path_transfer_share:.0%} of the critical path: were they free, the step would "
        f"take {line.free_transfer_seconds:.3f} s, {less}."
    )


def _costlier_transfers(line: pd.Series) -> str:
    """Whether costlier transfers alone would make this placement as slow as the paper's."""
    if not line.crossing_tensors:
        return "Costlier transfers would not change that; what makes the difference is open."
    factor = line.link_factor_of_paper
    if factor is None or math.isnan(factor):
        return (
            f"Even transfers {LINK_FACTORS[-1]:g} times as costly would not make this placement "
            "as slow as the paper's: the placements themselves must differ."
        )
    return f"Transfers {factor:g} times as costly would make it as slow as the paper's."


def _op_by_op(line: pd.Series) -> str:
    """What keeping ops together, which the paper's partitioners were not given, is worth."""
    by_op = float(line.by_op_seconds)
    ours = "The best of three co-placement rules counts here, judged in the simulator; mapping "
    if not math.isfinite(by_op):
        return f"{ours}op by op finds nothing that fits."
    speed_up = line.speed_up_as_paper * line.step_seconds / by_op
    part = f"{ours}op by op takes {by_op:.3f} s, {speed_up:.2f}x"
    if by_op <= 1.05 * line.step_seconds:
        return f"{part}, so that the choice makes no difference."
    return f"{part}."
