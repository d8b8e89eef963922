"""Training: sample placements, evaluate them, update the policy, until the search stops."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from placer.policy.checkpoint import Checkpoints
from placer.policy.features import GroupFeatures, group_features
from placer.policy.learner import Learner
from placer.policy.model import Decoded, PlacementPolicy
from placer.policy.rewards import advantages, rewards
from placer.policy.settings import PolicySettings
from placer.policy.state import TrainingState

if TYPE_CHECKING:
    from placer.search.state import Search

# Seconds between two checkpoints.
CHECKPOINT_SECONDS = 30.0


def train(
    search: Search,
    settings: PolicySettings | None = None,
    checkpoint_dir: str | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> None:
    """Trains a policy on the search's graph; what it samples is evaluated through the search.

    Runs until the search is stopped or, with settings.patience, nothing better has been found for
    that many placements. With `checkpoint_dir`, a run that was killed goes on from its last
    checkpoint there, and ends as it would have without.

    Args:
      search: gives the problem, the groups, the evaluator, the seed and the budget.
      settings: hyperparameters; the preset `modern` by default.
      checkpoint_dir: directory for checkpoints, made if it does not exist.
      checkpoint_seconds: time between two checkpoints; one is also written at the end.

    Raises:
      PlacerError: if `checkpoint_dir` cannot be written, or holds a checkpoint of another graph,
        topology, seed or settings.
    """
    settings = settings or PolicySettings()
    training = Training(search, settings)
    checkpoints = Checkpoints(checkpoint_dir, training) if checkpoint_dir else None
    if checkpoints is not None:
        checkpoints.restore()
    saved = time.monotonic()
    try:
        while not search.stopped() and not training.converged():
            training.iterate()
            if checkpoints is not None and time.monotonic() - saved >= checkpoint_seconds:
                checkpoints.save()
                saved = time.monotonic()
    finally:
        if checkpoints is not None:
            checkpoints.save()


class Training:
    """A training run.

    Attributes:
      search, settings: as given to `train`.
      features: of the groups.
      learner: policy and optimizer.
      state: the rest.
    """

    def __init__(self, search: Search, settings: PolicySettings) -> None:
        self.search = search
        self.settings = settings
        self.features: GroupFeatures = group_features(
            search.problem, search.grouping, settings.features
        )
        policy = PlacementPolicy(self.features, settings, search.seed)
        self.learner = Learner(policy, settings)
        self.state = TrainingState.initial(self.features, settings)
        self._movable = self.features.movable
        if settings.device_features:
            choices = max(self.features.allowed.shape[1] - 1, 1)
            odds = np.maximum(max(int(self._movable.sum()), 1) / self._aims - 1.0, 0.1)
            self.state.stay = np.log(odds * choices).astype(np.float32)

    @property
    def _aims(self) -> np.ndarray:
        """float64[2 * levels]: changes that each level is to make, from few to many.

        The first half of the levels starts afresh; its changes are from the device of one group
        to another for the next.
        """
        settings, movable = self.settings, int(self._movable.sum())

        def ladder(fewest: float, most: float) -> np.ndarray:
            return np.geomspace(fewest, max(most * movable, fewest), settings.levels)

        return np.concatenate(
            [ladder(0.5, 0.25), ladder(settings.fewest_changes, settings.most_changes)]
        )

    def converged(self) -> bool:
        """Whether nothing better has been found for settings.patience placements."""
        patience = self.settings.patience
        return 0 < patience <= self.state.placements - self.state.best_at

    def iterate(self) -> None:
        """One batch: sample, evaluate, learn."""
        settings, state, search = self.settings, self.state, self.search
        incumbents, stay, level = self._choose_incumbents()
        seed = np.array([search.seed, state.iteration], np.int32)
        decoded = self.learner.sample(incumbents, stay, seed)
        devices = decoded.devices.numpy()
        left = search.budget.evaluations - search.evaluations
        if left < len(devices):
            # The last few of the budget: nothing will be sampled from what they teach.
            search.evaluate(devices[: int(left)], "policy", group_of=search.grouping.group_of)
            return
        evaluation = search.evaluate(devices, "policy", group_of=search.grouping.group_of)
        reward = rewards(evaluation, search.problem.topology.memory_bytes, settings)
        state.iteration += 1
        state.placements += len(devices)
        if reward.max() > state.best_reward:
            state.best_reward = float(reward.max())
            state.best_at = state.placements
        self._adjust_stay(devices, incumbents, level)
        self._learn(
            decoded, devices, incumbents, stay, level, reward, np.asarray(evaluation.feasible)
        )

    def _choose_incumbents(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What each sample changes, and how reluctantly.

        Returns:
          int32[B, G] incumbents, float32[B] stay, int32[B] level: samples of one level are
          compared with each other.
        """
        settings, state = self.settings, self.state
        g, d = self.features.allowed.shape
        count = settings.samples
        incumbents = np.full((count, g), d, np.int32)
        level = (np.arange(count) % settings.levels).astype(np.int32)
        known = int(np.isfinite(state.elite_rewards[: settings.incumbents]).sum())
        if known > 0 and state.placements >= settings.warm_up:
            rng = np.random.default_rng([self.search.seed, state.iteration])
            changed = np.arange(round(settings.fresh * count), count)
            incumbents[changed] = state.elite_devices[rng.integers(0, known, changed.size)]
            level[changed] += settings.levels
        return incumbents, state.stay[level], level

    def _adjust_stay(self, devices: np.ndarray, incumbents: np.ndarray, level: np.ndarray) -> None:
        """Keeps the changes that each level makes near its aim, whatever the policy learns.

        Most changes harm; left alone, the policy would soon make none.
        """
        if not self.settings.device_features:
            return
        free = devices[:, self._movable]
        afresh = (free[:, 1:] != free[:, :-1]).sum(axis=1)
        changes = np.where(
            level < self.settings.levels, afresh, (devices != incumbents).sum(axis=1)
        )
        for number, aim in enumerate(self._aims):
            made = changes[level == number]
            if made.size:
                correction = 0.5 * np.log((made.mean() + 0.1) / (aim + 0.1))
                self.state.stay[number] += np.float32(np.clip(correction, -1.0, 1.0))

    def _learn(
        self,
        decoded: Decoded,
        devices: np.ndarray,
        incumbents: np.ndarray,
        stay: np.ndarray,
        level: np.ndarray,
        reward: np.ndarray,
        feasible: np.ndarray,
    ) -> None:
        settings, state = self.settings, self.state
        if np.isnan(state.baseline):
            state.baseline = float(reward.mean())
        learnable = np.ones(len(reward), bool)
        if 0 < settings.failing_updates <= state.updates:
            learnable = feasible
        advantage = advantages(reward, learnable, level, state.baseline, settings)
        decay = settings.baseline_decay
        if learnable.any():
            state.baseline = float(decay * state.baseline + (1 - decay) * reward[learnable].mean())
        rows = _extremes(advantage, settings.update_samples)
        batch = [
            devices[rows],
            decoded.log_probs.numpy()[rows],
            decoded.usable.numpy()[rows],
            decoded.features.numpy()[rows],
        ]
        conditions = [incumbents[rows], stay[rows]]
        weight = advantage[rows]
        imitate = np.zeros(len(rows), bool)
        if settings.imitation > 0 or settings.incumbents > 0:
            state.keep_elites(
                devices, reward, incumbents, stay, decoded.usable.numpy(), decoded.features.numpy()
            )
        if settings.imitation > 0:
            elites = [
                state.elite_devices,
                np.zeros(state.elite_devices.shape, np.float32),
                state.elite_usable,
                state.elite_features,
            ]
            batch = [np.concatenate(pair) for pair in zip(batch, elites, strict=True)]
            conditions = [
                np.concatenate([conditions[0], state.elite_incumbents]),
                np.concatenate([conditions[1], state.elite_stay]),
            ]
            good = np.isfinite(state.elite_rewards)
            share = settings.imitation * len(rows) / max(int(good.sum()), 1)
            weight = np.concatenate([weight, share * good])
            imitate = np.concatenate([imitate, np.ones(len(good), bool)])
        progress = min(state.placements / settings.horizon, 1.0)
        entropy = settings.entropy + progress * (settings.final_entropy - settings.entropy)
        ratio = settings.final_learning_rate / settings.learning_rate
        for _ in range(settings.epochs):
            self.learner.update(
                Decoded(*(tf.constant(a) for a in batch)),
                tf.constant(conditions[0]),
                tf.constant(conditions[1]),
                tf.constant(weight, tf.float32),
                tf.constant(imitate),
                tf.constant(entropy, tf.float32),
                tf.constant(settings.learning_rate * ratio**progress, tf.float32),
            )
        state.updates += 1


def _extremes(advantage: np.ndarray, count: int) -> np.ndarray:
    """Rows of the best and the worst samples, `count` in all, in order of row."""
    if count >= advantage.size:
        return np.arange(advantage.size)
    order = np.argsort(-advantage, kind="stable")
    best = (count + 1) // 2
    return np.sort(np.concatenate([order[:best], order[advantage.size - (count - best) :]]))
