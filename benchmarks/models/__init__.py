"""Training graphs to place: forward pass, backward pass and update, as MetaGraphDefs."""

from benchmarks.models.export import ExportedModel, export_models
from benchmarks.models.registry import MODELS, ModelSpec, build
from benchmarks.models.statistics import GraphStatistics, graph_statistics

__all__ = [
    "MODELS",
    "ExportedModel",
    "GraphStatistics",
    "ModelSpec",
    "build",
    "export_models",
    "graph_statistics",
]
