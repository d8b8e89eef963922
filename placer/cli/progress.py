"""Progress of a search: live on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from rich.console import Console
from rich.status import Status

from placer.search import Search


def format_seconds(seconds: float | None) -> str:
    """A step time as a person reads it."""
    if seconds is None or seconds != seconds:
        return "-"
    if seconds == float("inf"):
        return "none fits"
    return f"{seconds * 1e3:.4g} ms" if seconds < 1 else f"{seconds:.4g} s"


class Progress:
    """Call it with the search after every batch; use as a context manager."""

    def __init__(self, stream: TextIO | None = None, seconds_between_lines: float = 5.0) -> None:
        self._stream = stream or sys.stderr
        self._between = seconds_between_lines
        self._next = 0.0
        self._live = self._stream.isatty()
        self._status: Status | None = None

    def __enter__(self) -> Progress:
        if self._live:
            self._status = Console(file=self._stream).status("reading the graph")
            self._status.__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        if self._status is not None:
            self._status.__exit__(None, None, None)

    def __call__(self, search: Search) -> None:
        """Shows how far a search is, if it is time to."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (0.1 if self._live else self._between)
        source = search.improvements[-1].source if search.improvements else "-"
        left = search.remaining
        text = (
            f"{search.elapsed:5.1f} s  {search.evaluations} placements  "
            f"best {format_seconds(search.best_seconds)} ({source})"
            + (f"  {max(left, 0):.0f} s left" if left != float("inf") else "")
        )
        if self._status is not None:
            self._status.update(text)
        else:
            print(text, file=self._stream, flush=True)
