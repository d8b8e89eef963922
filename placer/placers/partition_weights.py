"""Integer weights for graph partitioners."""

from __future__ import annotations

import numpy as np

# Weights of all vertices, and of all edges, add up to about this much: partitioners add them up in
# signed integers, METIS of 32 bits.
_TOTAL = 1 << 28


def integer_weights(values: np.ndarray, least: int) -> np.ndarray:
    """int64: non-negative `values` scaled to a total of about 2**28, rounded, at least `least`."""
    total = float(values.sum())
    if total <= 0:
        return np.full(len(values), max(least, 1), np.int64)
    return np.maximum(np.rint(values * (_TOTAL / total)), least).astype(np.int64)
