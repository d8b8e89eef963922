"""Analytical costs: Grappler's estimator, with stated estimates where it knows nothing."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
from tensorflow.core.framework import function_pb2, node_def_pb2, op_def_pb2

from placer.costs import functions, grappler, trip_counts
from placer.costs.estimates import estimate_work
from placer.costs.op_costs import CostOrigin, OpCosts
from placer.devices import DeviceModel, Topology
from placer.errors import PlacerError
from placer.graph.build import build_op_graph
from placer.graph.colocation import frame_paths
from placer.graph.op_graph import OpGraph
from placer.graph.source import GraphSource

# An op that runs a function counts as estimated if more than this share of the body's time is.
_ESTIMATED_SHARE = 0.1


def analytical_costs(
    source: GraphSource,
    graph: OpGraph,
    topology: Topology,
    *,
    trip_counts: Mapping[str, float] | None = None,
) -> OpCosts:
    """Costs of a graph's ops on every device model of a topology, from their shapes.

    An op in a loop costs its trip count times its cost; an op that calls functions costs what the
    ops in their bodies cost, branches the dearest of them. The first launch of each op is the
    topology's business; launches beyond it, of later iterations and of the ops in bodies, are
    part of `seconds`.

    Args:
      source: the graph that `graph` was built from.
      graph: N ops.
      topology: K device models.
      trip_counts: trip count by loop, where the caller knows better: by frame name of a v1
        loop, by op name of a functional While (inside a function: "function/op").

    Returns:
      Costs of the N ops on the K models; zero for ops that the fetches do not need.

    Raises:
      PlacerError: if TensorFlow cannot analyse the graph, or for a bad trip count.
    """
    given = dict(trip_counts or {})
    for name, count in given.items():
        if not (math.isfinite(count) and count >= 0):
            raise PlacerError(f"trip count {count} of loop {name!r}: give a number from 0 on")
    library = source.graph_def.library
    context = _Context(
        models=topology.models,
        library=library,
        functions={f.signature.name: f for f in library.function},
        signatures={f.signature.name: f.signature for f in library.function},
        given=given,
    )
    costs = _cost_graph(source, graph, context, prefix="")
    unused = set(given) - set(context.loops)
    if unused:
        known = ", ".join(sorted(context.loops)) or "no loop"
        raise PlacerError(
            f"{source.origin} has no loop {min(unused)!r} to give a trip count to; it has {known}"
        )
    models = len(topology.models)
    return OpCosts(
        models=topology.models,
        seconds=costs.seconds,
        temporary_bytes=np.tile(costs.temporary_bytes, (models, 1)),
        origin=np.tile(costs.origin, (models, 1)),
        trip_count_source=context.loops,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _GraphCosts:
    """Costs of one graph's N ops on K models, as in OpCosts."""

    seconds: np.ndarray
    temporary_bytes: np.ndarray
    origin: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class _BodyCosts:
    """One run of a function: its graph, and seconds[K] with all launches and peak memory."""

    seconds: np.ndarray
    temporary_bytes: int
    estimated: bool
    tensors: trip_counts.Tensors
    argument_names: list[str]
    results: list[str]


@dataclasses.dataclass(eq=False)
class _Context:
    """What costing a graph and the bodies of its functions shares."""

    models: tuple[DeviceModel, ...]
    library: function_pb2.FunctionDefLibrary
    functions: Mapping[str, function_pb2.FunctionDef]
    signatures: Mapping[str, op_def_pb2.OpDef]
    given: Mapping[str, float]
    loops: dict[str, tuple[float, str]] = dataclasses.field(default_factory=dict)
    bodies: dict[tuple, _BodyCosts | None] = dataclasses.field(default_factory=dict)

    def trips(self, loop: str, found: tuple[float, str]) -> float:
        """Records and returns a loop's trip count, the caller's before what was found."""
        if loop in self.given:
            found = (float(self.given[loop]), trip_counts.FROM_CALLER)
        self.loops[loop] = found
        return found[0]

    @property
    def launch_seconds(self) -> np.ndarray:
        """float64[K]."""
        return np.array([m.launch_seconds for m in self.models])


def _cost_graph(source: GraphSource, graph: OpGraph, context: _Context, prefix: str) -> _GraphCosts:
    nodes = list(source.graph_def.node)
    work = grappler.measure_work(source.graph_def, source.fetch_ops, source.origin)
    estimate = estimate_work(graph, nodes, work.operations, work.bytes, work.measured)
    seconds = np.stack(
        [grappler.seconds(estimate.operations, estimate.bytes, m) for m in context.models]
    )
    seconds[:, estimate.minimum] = grappler.MINIMUM_SECONDS
    temporary = work.temporary_bytes.copy()
    estimated = estimate.estimated.copy()
    tensors = _tensors(graph, nodes)
    for op, names in _calls(graph, nodes, context):
        cost = _cost_call(graph, nodes, op, names, tensors, context, prefix)
        if cost is None:
            estimated[op] = True
            continue
        seconds[:, op], temporary[op], estimated[op] = cost
    runs = _runs_in_frames(source, graph, tensors, context, prefix)
    if runs is not None:
        again = np.maximum(runs - 1, 0)
        seconds = seconds * runs + again * context.launch_seconds[:, None]
    idle = ~graph.executed
    seconds[:, idle] = 0.0
    temporary[idle] = 0
    estimated[idle] = False
    origin = np.where(estimated, CostOrigin.ESTIMATED, CostOrigin.ANALYTICAL).astype(np.uint8)
    return _GraphCosts(seconds, temporary, origin)


def _tensors(graph: OpGraph, nodes: list[node_def_pb2.NodeDef]) -> trip_counts.Tensors:
    index = {name: i for i, name in enumerate(graph.names)}

    def shape(name: str, port: int) -> trip_counts.Shape:
        op = index.get(name)
        if op is None or port >= graph.out_ptr[op + 1] - graph.out_ptr[op]:
            return None
        tensor = int(graph.out_ptr[op]) + port
        rank = int(graph.tensor_rank[tensor])
        return None if rank < 0 else tuple(graph.tensor_shape[tensor, :rank].tolist())

    return trip_counts.Tensors({n.name: n for n in nodes}, shape)


def _calls(
    graph: OpGraph, nodes: list[node_def_pb2.NodeDef], context: _Context
) -> list[tuple[int, list[str]]]:
    """Executed ops that run functions, in topological order, with the functions' names."""
    if not context.functions:
        return []
    calls = []
    order = graph.topological_order()
    for op in order[graph.executed[order]].tolist():
        names = functions.function_names(nodes[op], context.functions)
        if names:
            calls.append((op, names))
    return calls


def _cost_call(
    graph: OpGraph,
    nodes: list[node_def_pb2.NodeDef],
    op: int,
    names: list[str],
    tensors: trip_counts.Tensors,
    context: _Context,
    prefix: str,
) -> tuple[np.ndarray, int, bool] | None:
    """seconds[K], temporary bytes and whether estimated, of an op that runs functions.

    None where a body cannot be costed: it does not fit the call, or none of its shapes is known.
    The op's own estimate stands then.
    """
    node = nodes[op]
    arguments = functions.call_arguments(graph, nodes, op)
    bodies = [_body(name, arguments, context) for name in names]
    found = [b for b in bodies if b is not None]
    if not found or len(found) < len(bodies):
        return None
    estimated = any(b.estimated for b in found)
    if node.op in functions.WHILES and len(found) == 2:
        condition, body = found
        inputs = trip_counts.data_inputs(node)
        count, source = trip_counts.while_count(
            tensors,
            inputs,
            condition.tensors,
            condition.argument_names,
            condition.results[0],
            body.tensors,
            body.argument_names,
            body.results,
        )
        times = context.trips(prefix + node.name, (count, source))
        trip_counts.leave_while(
            tensors,
            node.name,
            inputs,
            body.tensors,
            body.argument_names,
            body.results,
            times,
        )
        estimated |= context.loops[prefix + node.name][1] == trip_counts.ASSUMED
        seconds = times * body.seconds + (times + 1) * condition.seconds
    else:
        seconds = np.max([b.seconds for b in found], axis=0)
    return seconds, max(b.temporary_bytes for b in found), estimated


def _body(name: str, arguments: list[functions.Argument], context: _Context) -> _BodyCosts | None:
    """Costs of one run of a function; None if it cannot be costed."""
    key = (name, *arguments)
    if key not in context.bodies:
        try:
            context.bodies[key] = _cost_body(name, arguments, context)
        except PlacerError:
            context.bodies[key] = None
    return context.bodies[key]


def _cost_body(name: str, arguments: list[functions.Argument], context: _Context) -> _BodyCosts:
    source, argument_names, results = functions.instantiate(
        context.functions[name], context.library, context.signatures, arguments
    )
    graph = build_op_graph(source)
    costs = _cost_graph(source, graph, context, prefix=f"{name}/")
    # Arguments are handed over, not computed.
    runs = graph.executed & ~np.isin(graph.names, argument_names)
    seconds = (costs.seconds + context.launch_seconds[:, None]) @ runs
    temporary = functions.body_temporary_bytes(graph) + int(costs.temporary_bytes.max(initial=0))
    nodes = list(source.graph_def.node)
    # TensorList ops and the like, in nearly every body, do not make an estimate of all of it.
    guessed = costs.seconds[:, runs & (costs.origin == CostOrigin.ESTIMATED)].sum()
    return _BodyCosts(
        seconds,
        temporary,
        bool(guessed > _ESTIMATED_SHARE * costs.seconds[:, runs].sum()),
        _tensors(graph, nodes),
        argument_names,
        results,
    )


def _runs_in_frames(
    source: GraphSource,
    graph: OpGraph,
    tensors: trip_counts.Tensors,
    context: _Context,
    prefix: str,
) -> np.ndarray | None:
    """float64[N]: how often each op runs, by the v1 while frames it is in; None without any."""
    paths = frame_paths(
        source.graph_def,
        graph.topological_order(),
        np.concatenate([graph.edge_src, graph.control_src]),
        np.concatenate([graph.edge_dst, graph.control_dst]),
    )
    if paths is None:
        return None
    nodes = source.graph_def.node
    members: dict[str, list[str]] = {}
    for name, path in zip(graph.names, paths, strict=True):
        if path:
            members.setdefault(path[-1], []).append(name)
    # In topological order, as what one loop leaves behind may bound the next.
    frames = dict.fromkeys(f for op in graph.topological_order() for f in paths[op])
    counts = {}
    for frame in frames:
        inside = members.get(frame, [])
        found = trip_counts.frame_count(tensors, frame, inside)
        counts[frame] = context.trips(prefix + frame, found)
        trip_counts.leave_frame(tensors, inside, counts[frame])
    return trip_counts.runs_in_frames(nodes, paths, counts)
