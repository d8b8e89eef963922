"""Search: the state that placers share, whatever they do."""

from placer.search.state import SEEDS, Budget, Improvement, Search

__all__ = ["SEEDS", "Budget", "Improvement", "Search"]
