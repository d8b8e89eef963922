"""Rewards: whether placements are judged by the simulator, by real runs, or by both."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from placer.pipeline import Prepared
from placer.runtime import QUICK, Measurement, open_runner
from placer.search import Search
from placer.search.measured import MeasuredEvaluator
from placer.search.state import Evaluator
from placer.simulator import Simulator

REWARDS = ("simulate", "measure", "both")


class Judge:
    """Judges placements by the simulator; subclasses run them too.

    Attributes:
      evaluator: what the search evaluates proposals with.
    """

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator

    def begin(self, search: Search) -> None:
        """Is told of the search before it starts."""

    def best(self, search: Search) -> np.ndarray | None:
        """int32[N] the placement to return, or None if nothing was evaluated."""
        return search.best

    def measurement(self, placement: np.ndarray) -> Measurement | None:
        """What came of running a placement, None if it was not run."""
        return None


class _Measured(Judge):
    """Every placement is run."""

    def __init__(self, evaluator: MeasuredEvaluator) -> None:
        super().__init__(evaluator)
        self._measured = evaluator

    def begin(self, search: Search) -> None:
        # The first placement is always run, so that there is a result whatever the budget.
        self._measured.stopped = lambda: bool(self._measured.measured) and search.stopped()

    def measurement(self, placement: np.ndarray) -> Measurement | None:
        return self._measured.known(placement)


@contextlib.contextmanager
def open_reward(reward: str, prepared: Prepared, simulator: Simulator) -> Iterator[Judge]:
    """The judge that a --reward names; its workers stop when the context ends."""
    if reward == "simulate":
        yield Judge(simulator)
        return
    with open_runner(prepared.devices, prepared.source) as runner:
        yield _Measured(MeasuredEvaluator(runner, simulator, QUICK))
