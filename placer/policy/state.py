"""TrainingState: everything a training run carries from one update to the next, but the weights."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from placer.policy.features import GroupFeatures
from placer.policy.model import DEVICE_FEATURES
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
      stay: float32[2 * levels] reluctance to change, by level; see PlacementPolicy.decode.
      elite_devices: int32[E, G].
      elite_rewards: float64[E].
      elite_incumbents: int32[E, G] what each was decoded from.
      elite_stay: float32[E].
      elite_usable: bool[E, G, D] and
      elite_features: float32[E, G, D, F], as in Decoded.
    """

    iteration: int
    updates: int
    placements: int
    baseline: float
    best_reward: float
    best_at: int
    stay: np.ndarray
    elite_devices: np.ndarray
    elite_rewards: np.ndarray
    elite_incumbents: np.ndarray
    elite_stay: np.ndarray
    elite_usable: np.ndarray
    elite_features: np.ndarray

    @classmethod
    def initial(cls, features: GroupFeatures, settings: PolicySettings) -> TrainingState:
        """The state before the first sample."""
        g, d = features.allowed.shape
        e = max(settings.elites, 1)
        width = len(DEVICE_FEATURES) if settings.device_features else 0
        return cls(
            iteration=0,
            updates=0,
            placements=0,
            baseline=float("nan"),
            best_reward=-np.inf,
            best_at=0,
            stay=np.zeros(2 * settings.levels, np.float32),
            elite_devices=np.zeros((e, g), np.int32),
            elite_rewards=np.full(e, -np.inf),
            elite_incumbents=np.full((e, g), d, np.int32),
            elite_stay=np.zeros(e, np.float32),
            elite_usable=np.ones((e, g, d), bool),
            elite_features=np.zeros((e, g, d, width), np.float32),
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

    def keep_elites(
        self,
        devices: np.ndarray,
        rewards: np.ndarray,
        incumbents: np.ndarray,
        stay: np.ndarray,
        usable: np.ndarray,
        features: np.ndarray,
    ) -> None:
        """Takes the best of B samples among the elites; equal placements count once."""
        count = self.elite_rewards.size
        best = np.argsort(-rewards, kind="stable")[: 4 * count]
        all_devices = np.concatenate([self.elite_devices, devices[best]])
        all_rewards = np.concatenate([self.elite_rewards, rewards[best]])
        order = np.argsort(-all_rewards, kind="stable")
        kept: list[int] = []
        seen: set[bytes] = set()
        for i in order:
            key = all_devices[i].tobytes()
            if np.isneginf(all_rewards[i]) or key in seen:
                continue
            seen.add(key)
            kept.append(int(i))
            if len(kept) == count:
                break
        # Rows without an elite keep the reward -inf.
        rows = np.array(kept + [int(i) for i in order if i < count and i not in kept], int)[:count]
        lost = np.arange(count) >= len(kept)

        def merged(old: np.ndarray, new: np.ndarray) -> np.ndarray:
            return np.concatenate([old, new[best]])[rows]

        self.elite_devices = all_devices[rows]
        self.elite_rewards = np.where(lost, -np.inf, all_rewards[rows])
        self.elite_incumbents = merged(self.elite_incumbents, incumbents)
        self.elite_stay = merged(self.elite_stay, stay)
        self.elite_usable = merged(self.elite_usable, usable)
        self.elite_features = merged(self.elite_features, features)
