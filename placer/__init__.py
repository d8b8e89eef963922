"""Placer decides which device every operation of a TensorFlow graph should run on."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from placer.errors import InfeasibleError, PlacerError

if TYPE_CHECKING:
    from placer.devices import Topology
    from placer.optimizer import optimize
    from placer.placement import Placement
    from placer.result import Result

# Imported on first use: `import placer` stays quick and does not start TensorFlow.
_LAZY = {
    "Placement": "placer.placement",
    "Result": "placer.result",
    "Topology": "placer.devices",
    "optimize": "placer.optimizer",
}

__all__ = [
    "InfeasibleError",
    "Placement",
    "PlacerError",
    "Result",
    "Topology",
    "optimize",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'placer' has no attribute {name!r}")
