"""Ctrl-C where it would lose what was found."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def ignored() -> Iterator[None]:
    """Ctrl-C and polite kills do nothing in this context, which should be short.

    Only the main thread gets them; in another the context changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.signal(number, signal.SIG_IGN) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in kept.items():
            # None: it was not set from Python, and cannot be set back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
