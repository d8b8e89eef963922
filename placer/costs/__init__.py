"""Costs: seconds and bytes of every op on every device model."""

from placer.costs.analytical import analytical_costs
from placer.costs.op_costs import CostOrigin, OpCosts
from placer.costs.peak import operations_per_second
from placer.costs.profiles import (
    corrected,
    load_profile,
    profile_from_steps,
    profiled_costs,
    save_profile,
)
from placer.costs.summary import CostSummary, describe

__all__ = [
    "CostOrigin",
    "CostSummary",
    "OpCosts",
    "analytical_costs",
    "corrected",
    "describe",
    "load_profile",
    "operations_per_second",
    "profile_from_steps",
    "profiled_costs",
    "save_profile",
]
