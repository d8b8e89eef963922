"""From evaluations to rewards and advantages."""

from __future__ import annotations

import numpy as np

from placer.policy.settings import PolicySettings
from placer.simulator import Evaluation

# A placement that does not fit costs as much as one slower by a factor of e to the power of
# OVERFLOW + OVERFLOW_SLOPE * (bytes in excess, in shares of the devices' memory).
OVERFLOW = 1.0
OVERFLOW_SLOPE = 4.0
# Step time of runs that failed where none of their batch ran.
_NONE_RAN_SECONDS = 1e3


def rewards(
    evaluation: Evaluation, memory_bytes: np.ndarray, settings: PolicySettings
) -> np.ndarray:
    """float64[B], larger is better, and finite.

    Args:
      evaluation: of B placements. One without a finite step time, such as a run that failed, counts
        as one as slow as the slowest that does not fit.
      memory_bytes: int64[D] limits.
      settings: `reward` and `failing_seconds` are read.
    """
    seconds = np.array(evaluation.step_seconds, np.float64)
    fits = np.asarray(evaluation.feasible, bool)
    if settings.failing_seconds > 0:
        seconds = np.where(fits, seconds, settings.failing_seconds)
    finite = np.isfinite(seconds)
    seconds = np.where(finite, seconds, seconds[finite].max(initial=0.0) or _NONE_RAN_SECONDS)
    seconds = np.maximum(seconds, 1e-9)
    cost = np.sqrt(seconds) if settings.reward == "sqrt" else np.log(seconds)
    if settings.failing_seconds == 0:
        excess = np.maximum(evaluation.peak_bytes - memory_bytes, 0) / np.maximum(memory_bytes, 1)
        factor = OVERFLOW + OVERFLOW_SLOPE * excess.sum(axis=1)
        scale = 1.0 if settings.reward == "log" else cost
        cost = cost + np.where(fits, 0.0, factor) * scale
    return -cost


def advantages(
    reward: np.ndarray,
    learnable: np.ndarray,
    level: np.ndarray,
    baseline: float,
    settings: PolicySettings,
) -> np.ndarray:
    """float64[B], how much better each sample was than expected; 0 where not `learnable`.

    Args:
      reward: float64[B].
      learnable: bool[B], samples that may be learnt from.
      level: int[B]; means and deviations are taken over the samples of one level.
      baseline: the moving average of rewards, for settings.baseline == "moving".
      settings: `baseline` and `normalize` are read.
    """
    result = np.zeros_like(reward)
    for number in np.unique(level):
        used = learnable & (level == number)
        count = int(used.sum())
        if count == 0:
            continue
        if settings.baseline == "moving":
            value = reward[used] - baseline
        elif count == 1:
            value = np.zeros(1)
        elif settings.baseline == "rank":
            rank = np.argsort(np.argsort(-reward[used], kind="stable"), kind="stable") + 1.0
            value = np.maximum(np.log(count / 2 + 1.0) - np.log(rank), 0.0)
            value = value / value.sum() * count - 1.0
        else:
            value = (reward[used] - reward[used].mean()) * (count / (count - 1))
        if settings.normalize and settings.baseline != "rank":
            value = value / (reward[used].std() + 1e-6)
        result[used] = value
    return result


def extremes(advantage: np.ndarray, count: int) -> np.ndarray:
    """Rows of the best and the worst samples, `count` in all, in order of row."""
    if count >= advantage.size:
        return np.arange(advantage.size)
    order = np.argsort(-advantage, kind="stable")
    best = (count + 1) // 2
    return np.sort(np.concatenate([order[:best], order[advantage.size - (count - best) :]]))
