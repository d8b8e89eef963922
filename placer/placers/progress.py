"""How far an iterative placer is: the budget of the search and the placer's own limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placer.search.state import Search

# What an iterative placer evaluates when neither the search nor its parameters set a limit.
DEFAULT_EVALUATIONS = 100_000


class Progress:
    """Part of a placer's run that is over.

    A run ends with the search's budget, or after `evaluations` placements of its own if given.
    """

    def __init__(self, search: Search, evaluations: int | None) -> None:
        """Starts to count.

        Args:
          search: whose budget it is.
          evaluations: the placer's own limit; None for what the budget allows, and
            DEFAULT_EVALUATIONS if that has no limit either.
        """
        self._search = search
        self._first = search.evaluations
        self._start = search.elapsed
        self._seconds = search.budget.seconds - search.elapsed
        limit = search.budget.evaluations - search.evaluations
        if evaluations is not None:
            limit = min(limit, evaluations)
        elif limit == float("inf") and self._seconds == float("inf"):
            limit = DEFAULT_EVALUATIONS
        self._limit = limit

    def room(self, batch: int) -> int:
        """How many of `batch` placements may still be evaluated."""
        return int(max(0, min(batch, self._limit - (self._search.evaluations - self._first))))

    def done(self) -> bool:
        """Whether the placer must return."""
        return self._search.stopped() or self.room(1) == 0

    def fraction(self) -> float:
        """From 0 at the start to 1 at the end.

        A limit on evaluations counts alone, so that one seed gives one placement.
        """
        if self._limit < float("inf"):
            done = (self._search.evaluations - self._first) / max(self._limit, 1)
        else:
            done = (self._search.elapsed - self._start) / max(self._seconds, 1e-9)
        return min(done, 1.0)
