"""Costs: seconds and bytes of every op on every device model."""

from placer.costs.analytical import analytical_costs
from placer.costs.op_costs import CostOrigin, OpCosts

__all__ = ["CostOrigin", "OpCosts", "analytical_costs"]
