"""From evaluations to rewards and advantages."""

from __future__ import annotations

import numpy as np

from placer.policy.settings import PolicySettings
from placer.simulator import Evaluation

# A placement that does not fit costs as much as one slower by a factor of e to the power of
# OVERFLOW + OVERFLOW_SLOPE * (bytes in excess, in shares of the devices' memory).
OVERFLOW = 1.0
OVERFLOW_SLOPE = 4.0


def rewards(
    evaluation: Evaluation, memory_bytes: np.ndarray, settings: PolicySettings
) -> np.ndarray:
    """float64[B], larger is better.

    Args:
      evaluation: of B placements.
      memory_bytes: int64[D] limits.
      settings: `reward` and `failing_seconds` are read.
    """
    seconds = np.array(evaluation.step_seconds, np.float64)
    fits = np.asarray(evaluation.feasible, bool)
    if settings.failing_seconds > 0:
        seconds = np.where(fits, seconds, settings.failing_seconds)
    seconds = np.maximum(seconds, 1e-9)
    cost = np.sqrt(seconds) if settings.reward == "sqrt" else np.log(seconds)
    if settings.failing_seconds == 0:
        excess = np.maximum(evaluation.peak_bytes - memory_bytes, 0) / np.maximum(memory_bytes, 1)
        factor = OVERFLOW + OVERFLOW_SLOPE * excess.sum(axis=1)
        scale = 1.0 if settings.reward == "log" else cost
        cost = cost + np.where(fits, 0.0, factor) * scale
    return -cost


def advantages(
    reward: np.ndarray, learnable: np.ndarray, baseline: float, settings: PolicySettings
) -> np.ndarray:
    """float64[B], how much better each sample was than expected; 0 where not `learnable`.

    Args:
      reward: float64[B].
      learnable: bool[B], samples that may be learnt from.
      baseline: the moving average of rewards, for settings.baseline == "moving".
      settings: `baseline` and `normalize` are read.
    """
    result = np.zeros_like(reward)
    count = int(learnable.sum())
    if count == 0:
        return result
    used = reward[learnable]
    if settings.baseline == "moving":
        value = used - baseline
    elif count == 1:
        value = np.zeros(1)
    else:
        value = (used - used.mean()) * (count / (count - 1))
    if settings.normalize:
        value = value / (used.std() + 1e-6)
    result[learnable] = value
    return result
