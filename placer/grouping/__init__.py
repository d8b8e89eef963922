"""Op groups: which ops move together."""

from placer.grouping.coarsen import atoms, group_ops, make_grouping
from placer.grouping.grouping import Grouping

__all__ = ["Grouping", "atoms", "group_ops", "make_grouping"]
