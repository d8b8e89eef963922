"""Analytical costs: Grappler's estimator, with stated estimates where it knows nothing."""

from __future__ import annotations

import numpy as np

from placer.costs import grappler
from placer.costs.known_ops import KNOWN_OPS, MINIMUM_OPS
from placer.costs.op_costs import CostOrigin, OpCosts
from placer.devices import Topology
from placer.graph.op_graph import OpGraph
from placer.graph.source import GraphSource


def analytical_costs(
    source: GraphSource,
    graph: OpGraph,
    topology: Topology,
    *,
    trip_counts: dict[str, float] | None = None,
) -> OpCosts:
    """Costs of a graph's ops on every device model of a topology, from their shapes.

    Args:
      source: the graph that `graph` was built from.
      graph: N ops.
      topology: K device models.
      trip_counts: trip count by loop name, where the caller knows better.

    Returns:
      Costs of the N ops on the K models; zero for ops that the fetches do not need.

    Raises:
      PlacerError: if TensorFlow cannot analyse the graph, or for a bad trip count.
    """
    work = grappler.measure_work(source.graph_def, source.fetch_ops, source.origin)
    known_type = np.array([t in KNOWN_OPS for t in graph.op_types], bool)
    minimum_type = np.array([t in MINIMUM_OPS for t in graph.op_types], bool)
    operations = work.operations
    moved = work.bytes
    seconds = np.stack([grappler.seconds(operations, moved, m) for m in topology.models])
    minimum = minimum_type[graph.op_type] & (operations == 0) & (moved == 0)
    seconds[:, minimum] = grappler.MINIMUM_SECONDS
    seconds[:, ~graph.executed] = 0.0
    estimated = graph.executed & ~(known_type[graph.op_type] & work.measured)
    origin = np.where(estimated, CostOrigin.ESTIMATED, CostOrigin.ANALYTICAL).astype(np.uint8)
    models = len(topology.models)
    return OpCosts(
        models=topology.models,
        seconds=seconds,
        temporary_bytes=np.tile(work.temporary_bytes, (models, 1)),
        origin=np.tile(origin, (models, 1)),
    )
