"""The C library's heap in a worker: pages that a step frees stay for the next one.

TensorFlow keeps the memory of tensors, but not the buffers in which tensors arrive from other
workers. By default the C library maps large blocks when they are allocated and unmaps them when
they are freed, so that each step has the kernel hand out and clear their pages anew, thousands of
them, which takes memory bandwidth from the ops of all workers.
"""

from __future__ import annotations

import contextlib
import ctypes

# Parameters of mallopt, malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_M_ARENA_MAX = -8


def keep_freed_pages() -> None:
    """Has this process keep what it frees; call it before threads are started.

    All blocks come from one heap that grows and never shrinks, for the heaps of further threads
    hold small blocks only. A C library without mallopt is left as it is.
    """
    with contextlib.suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, -1)


def release_freed_pages() -> None:
    """Gives the kernel all whole pages back that are free now."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
