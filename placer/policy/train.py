"""Training: sample placements, evaluate them, update the policy, until the search stops."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from placer.policy.batches import BatchKind, FromNothing, WithinWindow
from placer.policy.checkpoint import Checkpoints
from placer.policy.features import GroupFeatures, group_features
from placer.policy.learner import Learner
from placer.policy.model import Conditions, Decoded, PlacementPolicy
from placer.policy.rewards import advantages, extremes, rewards
from placer.policy.settings import PolicySettings
from placer.policy.state import TrainingState
from placer.policy.windows import Windows

if TYPE_CHECKING:
    from placer.search.state import Search

# Seconds between two checkpoints.
CHECKPOINT_SECONDS = 30.0
# Progress from which on the incumbent is the best placement.
_LAST_PART = 0.9


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
      checkpoint_seconds: time between two checkpoints; one is also written at the end, unless
        Ctrl-C or an error ended a batch half-way.

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
        # What an interrupted batch leaves behind is half of a state; the last checkpoint is whole.
        if checkpoints is not None and not training.within_batch:
            checkpoints.save()


class Training:
    """A training run.

    Attributes:
      search, settings: as given to `train`.
      features: of the groups.
      learner: policy and optimizer.
      state: the rest.
      within_batch: whether `iterate` was left before it had ended.
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
        self.within_batch = False
        windows = Windows(search.grouping, self.features.movable)
        self._from_nothing = FromNothing(self.features, settings)
        self._within_window = WithinWindow(self.features, settings, windows)
        for kind in (self._from_nothing, self._within_window):
            self.state.stay[kind.part] = kind.first_stay()

    def converged(self) -> bool:
        """Whether nothing better has been found for settings.patience placements."""
        patience = self.settings.patience
        return 0 < patience <= self.state.placements - self.state.best_at

    def iterate(self) -> None:
        """One batch: sample, evaluate, learn."""
        self.within_batch = True
        self._iterate()
        self.within_batch = False

    def _iterate(self) -> None:
        settings, state, search = self.settings, self.state, self.search
        rng = np.random.default_rng([search.seed, state.iteration])
        kind = self._pick_kind(rng)
        conditions = kind.conditions(state, rng)
        seed = np.array([search.seed, state.iteration], np.int32)
        decoded = Decoded(*(t.numpy() for t in self.learner.sample(tensors(conditions), seed)))
        devices = conditions.incumbents[: settings.samples].copy()
        devices[:, conditions.order] = decoded.devices[: settings.samples]
        room = search.room(len(devices))
        if room < len(devices):
            # The last few of the budget: nothing will be sampled from what they teach.
            if room:
                search.evaluate(devices[:room], "policy", group_of=search.grouping.group_of)
            return
        evaluation = search.evaluate(devices, "policy", group_of=search.grouping.group_of)
        if search.stopped() and not np.isfinite(evaluation.step_seconds).all():
            # Real runs that the budget left no time for would be learnt from as if they had failed.
            return
        reward = rewards(evaluation, search.problem.topology.memory_bytes, settings)
        state.iteration += 1
        state.placements += len(devices)
        self._note_progress()
        if reward.max() > state.best_reward:
            state.best_reward = float(reward.max())
            state.best_at = state.placements
        kind.adjust_stay(state, devices, conditions)
        if settings.imitation > 0 or settings.incumbents:
            state.keep_elites(devices, reward)
            self._choose_incumbent(devices, reward)
        feasible = np.asarray(evaluation.feasible)
        self._learn(decoded, conditions, kind.levels(), reward, feasible)

    def _pick_kind(self, rng: np.random.Generator) -> BatchKind:
        """What the next batch is: from nothing at first and now and then, else within a window."""
        settings, state = self.settings, self.state
        if (
            not settings.incumbents
            or self._within_window.groups == 0
            or state.known_elites == 0
            or state.placements < settings.warm_up
            or rng.random() < settings.fresh
        ):
            return self._from_nothing
        if not np.isfinite(state.incumbent_reward):
            state.change_the_best()
        return self._within_window

    def _choose_incumbent(self, devices: np.ndarray, reward: np.ndarray) -> None:
        """Draws the next incumbent from the samples and the last, by exp(reward / tolerance).

        The tolerance falls geometrically; at 0 the best is taken. The last part of a run changes
        the best placement of all.
        """
        settings, state = self.settings, self.state
        if not np.isfinite(state.incumbent_reward):
            return
        if state.progress >= _LAST_PART:
            state.change_the_best()
            return
        score = np.append(reward, state.incumbent_reward)
        if settings.tolerance > 0:
            rng = np.random.default_rng([self.search.seed, state.iteration, 1])
            ratio = min(settings.final_tolerance / settings.tolerance, 1.0)
            tolerance = settings.tolerance * ratio**state.progress
            score = score + tolerance * rng.gumbel(size=len(score))
        chosen = int(score[::-1].argmax())
        if chosen > 0:
            state.incumbent = devices[len(devices) - chosen].copy()
            state.incumbent_reward = float(reward[len(devices) - chosen])

    def _note_progress(self) -> None:
        """Sets state.progress: the part of the budget that is used; it never falls."""
        budget, state = self.search.budget, self.state
        if budget.evaluations < float("inf"):
            # It counts alone, so that one seed gives one placement.
            part = self.search.evaluations / max(budget.evaluations, 1)
        elif budget.seconds < float("inf"):
            part = self.search.elapsed / budget.seconds if budget.seconds > 0 else 1.0
        else:
            part = state.placements / self.settings.horizon
        state.progress = float(np.clip(part, state.progress, 1.0))

    def _learn(
        self,
        decoded: Decoded,
        conditions: Conditions,
        level: np.ndarray,
        reward: np.ndarray,
        feasible: np.ndarray,
    ) -> None:
        """Updates the policy by B samples; rows beyond them are imitated."""
        settings, state = self.settings, self.state
        count = len(reward)
        if np.isnan(state.baseline):
            state.baseline = float(reward.mean())
        learnable = np.ones(count, bool)
        if 0 < settings.failing_updates <= state.updates:
            learnable = feasible
        advantage = advantages(reward, learnable, level, state.baseline, settings)
        decay = settings.baseline_decay
        if learnable.any():
            state.baseline = float(decay * state.baseline + (1 - decay) * reward[learnable].mean())
        rows = extremes(advantage, settings.update_samples)
        weight = advantage[rows]
        imitated = np.arange(count, len(decoded.devices))
        if imitated.size:
            share = settings.imitation * len(rows) / imitated.size
            weight = np.concatenate([weight, np.full(imitated.size, share)])
        imitate = np.arange(len(weight)) >= len(rows)
        rows = np.concatenate([rows, imitated])
        progress = state.progress
        entropy = settings.entropy + progress * (settings.final_entropy - settings.entropy)
        ratio = settings.final_learning_rate / settings.learning_rate
        batch = Decoded(*(tf.constant(a[rows]) for a in decoded))
        given = Conditions(conditions.order, *(a[rows] for a in conditions[1:]))
        for _ in range(settings.epochs):
            self.learner.update(
                batch,
                tensors(given),
                tf.constant(weight, tf.float32),
                tf.constant(imitate),
                tf.constant(entropy, tf.float32),
                tf.constant(settings.learning_rate * ratio**progress, tf.float32),
            )
        state.updates += 1


def tensors(conditions: Conditions) -> Conditions:
    """The same with tensors for arrays."""
    return Conditions(*(tf.constant(array) for array in conditions))
