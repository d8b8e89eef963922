"""Finding control edges that make the simulated step faster, and writing them into a graph."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator

import numpy as np
from tensorflow.core.framework import graph_pb2

from placer.problem import PlacementProblem
from placer.schedule.rules import OrderRules
from placer.simulator import Reason, Simulator, SpanKind, Spans, Trace

# Of one wait, so many tasks that went before are looked at.
_MOST_BLOCKERS = 64
# A step must get faster by this much for an edge to be worth having.
_LEAST_GAIN = 1e-5


@dataclasses.dataclass(frozen=True, eq=False)
class Schedule:
    """Control edges added to a placed graph.

    Invariants: both ends of an edge are on one device; with them the graph has no cycle; the step
    is faster than without, or there are none.

    Attributes:
      before, after: int32[S] ops; op after[i] starts when op before[i] has ended.
      simulator: of the graph with the edges.
      step_seconds: of the placement, with the edges; inf if Ctrl-C came before it was known.
      interrupted: Ctrl-C ended the search for more.
    """

    before: np.ndarray
    after: np.ndarray
    simulator: Simulator
    step_seconds: float
    interrupted: bool = False


def find_schedule(
    problem: PlacementProblem,
    simulator: Simulator,
    placement: np.ndarray,
    seconds: float,
    evaluations: float = float("inf"),
) -> Schedule:
    """Looks for control edges along the critical path of a placement.

    Where the critical path waits for a link or a device, what went before it is made to wait for
    what the path needs: alone, or together with the others that went before. What makes the
    step faster and still fits is kept, and the critical path looked at again.

    Args:
      problem: the graph; placement: int32[N].
      simulator: of the problem.
      seconds, evaluations: how long to look, and how many edge sets to try at most.

    Returns:
      The edges; Ctrl-C ends the search with those found so far.
    """
    none = np.zeros(0, np.int32)
    kept = Schedule(none, none, simulator, float("inf"))
    try:
        step_seconds = float(simulator.evaluate(placement[None]).step_seconds[0])
        kept = dataclasses.replace(kept, step_seconds=step_seconds)
        for better in _improvements(problem, kept, placement, seconds, evaluations):
            kept = better
    except KeyboardInterrupt:
        kept = dataclasses.replace(kept, interrupted=True)
    return kept


def _improvements(
    problem: PlacementProblem,
    kept: Schedule,
    placement: np.ndarray,
    seconds: float,
    evaluations: float,
) -> Iterator[Schedule]:
    """Ever better schedules; the first adds to `kept`, which has no edges."""
    deadline = time.monotonic() + seconds
    rules = OrderRules(problem.graph)
    base = kept.simulator.inputs
    tried = 0
    improved = True
    while improved:
        improved = False
        trace = kept.simulator.simulate(placement)
        for pairs in _proposals(trace, placement, rules, deadline):
            if time.monotonic() > deadline or tried >= evaluations:
                return
            tried += 1
            before = np.concatenate([kept.before, [p for p, _ in pairs]]).astype(np.int32)
            after = np.concatenate([kept.after, [a for _, a in pairs]]).astype(np.int32)
            proposal = Simulator(
                dataclasses.replace(
                    base,
                    control_src=np.concatenate([base.control_src, before]),
                    control_dst=np.concatenate([base.control_dst, after]),
                )
            )
            limit = kept.step_seconds * (1 - _LEAST_GAIN)
            evaluation = proposal.evaluate(placement[None], cutoff=limit, threads=1)
            if evaluation.feasible[0] and evaluation.step_seconds[0] <= limit:
                kept = Schedule(before, after, proposal, float(evaluation.step_seconds[0]))
                for pair in pairs:
                    rules.add(*pair)
                yield kept
                improved = True
                break


def _proposals(
    trace: Trace, placement: np.ndarray, rules: OrderRules, deadline: float
) -> Iterator[list[tuple[int, int]]]:
    """Yields sets of edges (before, after) to try, those of the longest waits first.

    To ask the rules takes time in a large graph: what was not asked by the deadline is left out.
    """
    spans = trace.spans
    waits = []
    for i in trace.critical_spans():
        wait = float(spans.start[i] - spans.ready[i])
        busy = spans.reason[i] in (Reason.DEVICE_BUSY, Reason.LINK_BUSY)
        if wait > 0 and busy and spans.kind[i] in (SpanKind.OP, SpanKind.WIRE):
            waits.append((-wait, i))
    for _, i in sorted(waits):
        urgent = int(spans.op[i])
        # A set adds edges out of one op: no cycle can go through two of them.
        pairs = []
        for other in _went_before(spans, i):
            if time.monotonic() > deadline:
                return
            if placement[other] == placement[urgent] and rules.allows(urgent, other):
                pairs.append((urgent, other))
        if not pairs:
            continue
        sizes = {len(pairs), (len(pairs) + 1) // 2}
        yield from (pairs[:size] for size in sorted(sizes, reverse=True))
        if len(pairs) > 1:
            yield from ([pair] for pair in pairs)


def _went_before(spans: Spans, i: int) -> list[int]:
    """Ops whose tasks or transfers took the device or link while span i waited, latest first."""
    found: dict[int, None] = {}
    at = int(spans.cause[i])
    while at >= 0 and spans.kind[at] == spans.kind[i] and len(found) < _MOST_BLOCKERS:
        if spans.end[at] <= spans.ready[i]:
            break
        found[int(spans.op[at])] = None
        if spans.reason[at] not in (Reason.DEVICE_BUSY, Reason.LINK_BUSY):
            break
        at = int(spans.cause[at])
    return list(found)


def add_control_inputs(graph_def: graph_pb2.GraphDef, schedule: Schedule) -> None:
    """Writes the edges of a schedule into a graph, in place, as control inputs."""
    for before, after in zip(schedule.before.tolist(), schedule.after.tolist(), strict=True):
        name = "^" + graph_def.node[before].name
        if name not in graph_def.node[after].input:
            graph_def.node[after].input.append(name)
