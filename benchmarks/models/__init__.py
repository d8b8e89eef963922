"""Training graphs to place: forward pass, backward pass and update, as MetaGraphDefs."""

from benchmarks.models.registry import MODELS, ModelSpec, build
from benchmarks.models.statistics import GraphStatistics, graph_statistics

__all__ = ["MODELS", "GraphStatistics", "ModelSpec", "build", "graph_statistics"]
