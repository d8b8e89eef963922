"""TrainingState: everything a training run carries from one update to the next, but the weights."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from placer.policy.features import GroupFeatures
from placer.policy.settings import PolicySettings


@dataclasses.dataclass(eq=False)
class TrainingState:
    """Numbers and arrays that checkpoints hold beside weights and optimizer.

    Elites are sorted by reward, best first; rows without an elite have the reward -inf.

    Attributes:
      iteration: batches sampled so far.
      updates: updates so far.
      placements: placements sampled so far.
      baseline: moving average of rewards; NaN before the first.
      best_reward: of any sample; -inf before the first.
      best_at: `placements` when it was found.
      progress: part of the budget that is used, from 0 to 1; schedules follow it.
      incumbent: int32[G] the placement that is changed next.
      incumbent_reward: its reward; -inf before the first.
      stay: float32[2 * levels] reluctance to change, by level: first of batches from nothing, then
        of those within a window (placer.policy.batches).
      elite_devices: int32[E, G].
      elite_rewards: float64[E].
    """

    iteration: int
    updates: int
    placements: int
    baseline: float
    best_reward: float
    best_at: int
    progress: float
    incumbent: np.ndarray
    incumbent_reward: float
    stay: np.ndarray
    elite_devices: np.ndarray
    elite_rewards: np.ndarray

    @classmethod
    def initial(cls, features: GroupFeatures, settings: PolicySettings) -> TrainingState:
        """The state before the first sample."""
        e, g = max(settings.elites, 1), len(features.allowed)
        return cls(
            iteration=0,
            updates=0,
            placements=0,
            baseline=float("nan"),
            best_reward=-np.inf,
            best_at=0,
            progress=0.0,
            incumbent=np.zeros(g, np.int32),
            incumbent_reward=-np.inf,
            stay=np.zeros(2 * settings.levels, np.float32),
            elite_devices=np.zeros((e, g), np.int32),
            elite_rewards=np.full(e, -np.inf),
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """Every field as an array, by name."""
        return {f.name: np.asarray(getattr(self, f.name)) for f in dataclasses.fields(self)}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> TrainingState:
        """The state that `arrays` was called on."""
        values: dict[str, Any] = {
            f.name: arrays[f.name].item() if arrays[f.name].ndim == 0 else arrays[f.name]
            for f in dataclasses.fields(cls)
        }
        return cls(**values)

    @property
    def known_elites(self) -> int:
        """How many elites there are."""
        return int(np.isfinite(self.elite_rewards).sum())

    def change_the_best(self) -> None:
        """Makes the best placement the incumbent; there must be one."""
        self.incumbent = self.elite_devices[0].copy()
        self.incumbent_reward = float(self.elite_rewards[0])

    def keep_elites(self, devices: np.ndarray, rewards: np.ndarray) -> None:
        """Takes the best of B placements, int32[B, G], among the elites; equal ones count once."""
        count = self.elite_rewards.size
        best = np.argsort(-rewards, kind="stable")[: 4 * count]
        all_devices = np.concatenate([self.elite_devices, devices[best]])
        all_rewards = np.concatenate([self.elite_rewards, rewards[best]])
        kept: list[int] = []
        seen: set[bytes] = set()
        for i in np.argsort(-all_rewards, kind="stable"):
            key = all_devices[i].tobytes()
            if np.isneginf(all_rewards[i]) or key in seen:
                continue
            seen.add(key)
            kept.append(int(i))
            if len(kept) == count:
                break
        devices, rewards = np.zeros_like(self.elite_devices), np.full(count, -np.inf)
        devices[: len(kept)], rewards[: len(kept)] = all_devices[kept], all_rewards[kept]
        self.elite_devices, self.elite_rewards = devices, rewards
