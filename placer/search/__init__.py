"""Search: the state that placers share, whatever they do."""

from placer.search.state import Budget, Improvement, Search

__all__ = ["Budget", "Improvement", "Search"]
