"""Training: sample placements, evaluate them, update the policy, until the search stops."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from placer.policy.checkpoint import Checkpoints
from placer.policy.features import GroupFeatures, group_features
from placer.policy.learner import Learner
from placer.policy.model import Conditions, Decoded, PlacementPolicy
from placer.policy.rewards import advantages, rewards
from placer.policy.settings import PolicySettings
from placer.policy.state import TrainingState
from placer.policy.windows import Windows

if TYPE_CHECKING:
    from placer.search.state import Search

# Seconds between two checkpoints.
CHECKPOINT_SECONDS = 30.0
# Limits of the reluctance to change, in logits.
_STAY = (-5.0, 15.0)
# Progress from which on the incumbent is the best placement.
_LAST_PART = 0.9
# Groups in the smallest windows.
_SMALLEST_WINDOW = 8


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
        self._movable = self.features.movable
        self._windows = Windows(search.grouping, self._movable)
        self._width = min(settings.window, int(self._movable.sum()))
        if settings.device_features:
            choices = max(self.features.allowed.shape[1] - 1, 1)
            groups = np.repeat([max(int(self._movable.sum()), 1), self._width], settings.levels)
            odds = np.maximum(groups / self._level_aims(self._width) - 1.0, 0.1)
            self.state.stay = np.log(odds * choices).astype(np.float32)

    def _level_aims(self, width: int) -> np.ndarray:
        """float64[2 * levels]: changes that each level is to make, from few to many.

        The first half of the levels starts from nothing; its changes are from the device of one
        group to another for the next. The other half changes a window of `width` groups; it does
        not count the change that every sample makes.
        """
        settings = self.settings

        def ladder(fewest: float, most: float) -> np.ndarray:
            return np.geomspace(fewest, max(most, fewest), settings.levels)

        return np.concatenate(
            [
                ladder(0.5, 0.25 * int(self._movable.sum())),
                ladder(settings.fewest_changes, settings.most_changes * width),
            ]
        )

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
        conditions, level = self._conditions()
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
        self._adjust_stay(devices, conditions, level)
        if settings.imitation > 0 or settings.incumbents:
            state.keep_elites(devices, reward)
            self._choose_incumbent(devices, reward)
        self._learn(decoded, conditions, level, reward, np.asarray(evaluation.feasible))

    def _conditions(self) -> tuple[Conditions, np.ndarray]:
        """What the next batch is decoded under, and int32[B] level of each sample.

        Samples of one level are compared with each other. A batch that starts from nothing ends
        with the best placements so far, forced, for imitation.
        """
        settings, state = self.settings, self.state
        g, d = self.features.allowed.shape
        count = settings.samples
        rng = np.random.default_rng([self.search.seed, state.iteration])
        level = (np.arange(count) % settings.levels).astype(np.int32)
        known = int(np.isfinite(state.elite_rewards).sum())
        if (
            not settings.incumbents
            or self._width == 0
            or known == 0
            or state.placements < settings.warm_up
            or rng.random() < settings.fresh
        ):
            elites = state.elite_devices[: known if settings.imitation > 0 else 0]
            elites = elites[: settings.elites]
            if settings.break_symmetry:
                elites = numbered_by_first_use(elites, self.features.symmetry)
            total = count + len(elites)
            forced = np.full((total, g), -1, np.int32)
            forced[count:] = elites
            conditions = Conditions(
                order=np.arange(g, dtype=np.int32),
                incumbents=np.full((total, g), d, np.int32),
                stay=state.stay[np.arange(total) % settings.levels],
                follow=np.zeros(total, np.float32),
                focus=np.full(total, -1, np.int32),
                forced=forced,
            )
            return conditions, level
        if not np.isfinite(state.incumbent_reward):
            state.incumbent = state.elite_devices[0].copy()
            state.incumbent_reward = float(state.elite_rewards[0])
        smallest = min(_SMALLEST_WINDOW, self._width)
        size = round(smallest * (self._width / smallest) ** rng.random())
        order = self._windows.draw(rng, size)
        # The share of a window that is to change is more equal for high levels than for low ones.
        part = 1.0 - np.arange(settings.levels) / max(settings.levels - 1, 1)
        stay = state.stay[settings.levels :] + part * np.log(len(order) / self._width)
        conditions = Conditions(
            order=order,
            incumbents=np.repeat(state.incumbent[None], count, axis=0),
            stay=stay[level].astype(np.float32),
            follow=(level % 2).astype(np.float32),
            focus=rng.integers(0, len(order), count).astype(np.int32),
            forced=np.full((count, len(order)), -1, np.int32),
        )
        return conditions, settings.levels + level

    def _choose_incumbent(self, devices: np.ndarray, reward: np.ndarray) -> None:
        """Draws the next incumbent from the samples and the last, by exp(reward / tolerance).

        The tolerance falls geometrically; at 0 the best is taken. The last part of a run changes
        the best placement of all.
        """
        settings, state = self.settings, self.state
        if not np.isfinite(state.incumbent_reward):
            return
        if state.progress >= _LAST_PART:
            state.incumbent = state.elite_devices[0].copy()
            state.incumbent_reward = float(state.elite_rewards[0])
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

    def _adjust_stay(self, devices: np.ndarray, conditions: Conditions, level: np.ndarray) -> None:
        """Keeps the changes that each level makes near its aim, whatever the policy learns.

        Most changes harm; left alone, the policy would soon make none.
        """
        if not self.settings.device_features:
            return
        if level[0] < self.settings.levels:
            free = devices[:, self._movable]
            changes = (free[:, 1:] != free[:, :-1]).sum(axis=1)
        else:
            changes = (devices != conditions.incumbents).sum(axis=1) - 1
        aims = self._level_aims(len(conditions.order))
        for number in np.unique(level):
            made, aim = changes[level == number].mean(), aims[number]
            correction = np.clip(0.5 * np.log((made + 0.1) / (aim + 0.1)), -1.0, 1.0)
            stay = np.clip(self.state.stay[number] + correction, *_STAY)
            self.state.stay[number] = np.float32(stay)

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
        rows = _extremes(advantage, settings.update_samples)
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


def numbered_by_first_use(devices: np.ndarray, symmetry: np.ndarray) -> np.ndarray:
    """int32[B, G] placements with identical devices exchanged so that each class is used in order.

    Args:
      devices: int32[B, G].
      symmetry: int32[D], as GroupFeatures.symmetry.
    """
    result = np.array(devices, np.int32)
    for row in result:
        renamed = np.arange(len(symmetry), dtype=np.int32)
        for number in np.unique(symmetry):
            members = np.flatnonzero(symmetry == number)
            used = [d for d in dict.fromkeys(row.tolist()) if symmetry[d] == number]
            renamed[used + [d for d in members if d not in used]] = members
        row[:] = renamed[row]
    return result


def _extremes(advantage: np.ndarray, count: int) -> np.ndarray:
    """Rows of the best and the worst samples, `count` in all, in order of row."""
    if count >= advantage.size:
        return np.arange(advantage.size)
    order = np.argsort(-advantage, kind="stable")
    best = (count + 1) // 2
    return np.sort(np.concatenate([order[:best], order[advantage.size - (count - best) :]]))
