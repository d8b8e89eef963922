"""Batches: what the samples between two updates are decoded under.

There are two kinds: from nothing, and changes of a window within the incumbent. The samples of
either come in levels of reluctance to change, which are steered to so many changes each.
"""

from __future__ import annotations

import abc

import numpy as np

from placer.policy.features import GroupFeatures, numbered_by_first_use
from placer.policy.model import Conditions
from placer.policy.settings import PolicySettings
from placer.policy.state import TrainingState
from placer.policy.windows import Windows

# Limits of the reluctance to change, in logits.
_STAY = (-5.0, 15.0)
# Groups in the smallest windows.
_SMALLEST_WINDOW = 8


class BatchKind(abc.ABC):
    """One kind of batch.

    Attributes:
      features, settings: of the groups, and of the run.
      part: where in TrainingState.stay the reluctance of this kind's levels is.
      groups: how many groups its largest batches decode.
    """

    def __init__(
        self, features: GroupFeatures, settings: PolicySettings, part: slice, groups: int
    ) -> None:
        self.features = features
        self.settings = settings
        self.part = part
        self.groups = groups

    @abc.abstractmethod
    def conditions(self, state: TrainingState, rng: np.random.Generator) -> Conditions:
        """What a batch is decoded under, B samples and perhaps more rows that are forced.

        Sample i is of level i % settings.levels; those of one level are compared with each other.
        """

    @abc.abstractmethod
    def _aims(self, groups: int) -> np.ndarray:
        """float64[levels]: changes that each level is to make among so many groups, rising."""

    @abc.abstractmethod
    def _changes(self, devices: np.ndarray, conditions: Conditions) -> np.ndarray:
        """int[B]: changes that placements, int32[B, G], make."""

    def levels(self) -> np.ndarray:
        """int[B]: the level of each sample."""
        return np.arange(self.settings.samples) % self.settings.levels

    def first_stay(self) -> np.ndarray:
        """float32[levels]: reluctance with which a policy that knows nothing meets the aims."""
        if not self.settings.device_features:
            return np.zeros(self.settings.levels, np.float32)
        choices = max(self.features.allowed.shape[1] - 1, 1)
        odds = np.maximum(max(self.groups, 1) / self._aims(self.groups) - 1.0, 0.1)
        return np.log(odds * choices).astype(np.float32)

    def adjust_stay(
        self, state: TrainingState, devices: np.ndarray, conditions: Conditions
    ) -> None:
        """Keeps the changes that each level makes near its aim, whatever the policy learns.

        Most changes harm; left alone, the policy would soon make none.
        """
        if not self.settings.device_features:
            return
        level, changes = self.levels(), self._changes(devices, conditions)
        stay = state.stay[self.part]
        for number, aim in enumerate(self._aims(len(conditions.order))):
            made = changes[level == number]
            if not made.size:
                continue
            correction = np.clip(0.5 * np.log((made.mean() + 0.1) / (aim + 0.1)), -1.0, 1.0)
            stay[number] = np.float32(np.clip(stay[number] + correction, *_STAY))

    def _ladder(self, fewest: float, most: float) -> np.ndarray:
        return np.geomspace(fewest, max(most, fewest), self.settings.levels)


class FromNothing(BatchKind):
    """All groups are placed; a change is another device than that of the group before.

    Such batches end with the best placements so far, forced, for imitation.
    """

    def __init__(self, features: GroupFeatures, settings: PolicySettings) -> None:
        movable = int(features.movable.sum())
        super().__init__(features, settings, slice(0, settings.levels), movable)

    def conditions(self, state: TrainingState, rng: np.random.Generator) -> Conditions:
        """All groups, for samples and imitated elites."""
        settings = self.settings
        groups, devices = self.features.allowed.shape
        known = state.known_elites if settings.imitation > 0 else 0
        elites = state.elite_devices[: min(known, settings.elites)]
        if settings.break_symmetry:
            elites = numbered_by_first_use(elites, self.features.symmetry)
        total = settings.samples + len(elites)
        forced = np.full((total, groups), -1, np.int32)
        forced[settings.samples :] = elites
        return Conditions(
            order=np.arange(groups, dtype=np.int32),
            incumbents=np.full((total, groups), devices, np.int32),
            stay=state.stay[self.part][np.arange(total) % settings.levels],
            follow=np.zeros(total, np.float32),
            focus=np.full(total, -1, np.int32),
            forced=forced,
        )

    def _aims(self, groups: int) -> np.ndarray:
        return self._ladder(0.5, 0.25 * self.groups)

    def _changes(self, devices: np.ndarray, conditions: Conditions) -> np.ndarray:
        free = devices[:, self.features.movable]
        return (free[:, 1:] != free[:, :-1]).sum(axis=1)


class WithinWindow(BatchKind):
    """A window of the incumbent is placed anew; every sample must change its focus.

    That change does not count.
    """

    def __init__(self, features: GroupFeatures, settings: PolicySettings, windows: Windows) -> None:
        width = min(settings.window, int(features.movable.sum()))
        super().__init__(features, settings, slice(settings.levels, 2 * settings.levels), width)
        self._windows = windows

    def conditions(self, state: TrainingState, rng: np.random.Generator) -> Conditions:
        """A random window of the incumbent."""
        settings, count = self.settings, self.settings.samples
        smallest = min(_SMALLEST_WINDOW, self.groups)
        size = round(smallest * (self.groups / smallest) ** rng.random())
        order = self._windows.draw(rng, size)
        # The share of a window that is to change is more equal for high levels than for low ones.
        part = 1.0 - np.arange(settings.levels) / max(settings.levels - 1, 1)
        stay = state.stay[self.part] + part * np.log(len(order) / self.groups)
        level = self.levels()
        return Conditions(
            order=order,
            incumbents=np.repeat(state.incumbent[None], count, axis=0),
            stay=stay[level].astype(np.float32),
            follow=(level % 2).astype(np.float32),
            focus=rng.integers(0, len(order), count).astype(np.int32),
            forced=np.full((count, len(order)), -1, np.int32),
        )

    def _aims(self, groups: int) -> np.ndarray:
        return self._ladder(self.settings.fewest_changes, self.settings.most_changes * groups)

    def _changes(self, devices: np.ndarray, conditions: Conditions) -> np.ndarray:
        return (devices != conditions.incumbents).sum(axis=1) - 1
