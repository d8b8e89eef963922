"""Placers: every algorithm but the policy, one module each, behind one registry.

A placer proposes placements and evaluates them through a Search, which keeps the best:

    spec = placers.get("annealing")
    spec.run(search, spec.make_parameters(["evaluations=20000"]))
"""

from placer.placers.registry import PLACERS, get
from placer.placers.spec import NoParameters, PlacerSpec, parameter

__all__ = ["PLACERS", "NoParameters", "PlacerSpec", "get", "parameter"]
