"""A simulated step as a trace that chrome://tracing and ui.perfetto.dev open."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from placer.devices import short_device_names
from placer.files import write_atomically
from placer.report.layers import Layers, Pass
from placer.runtime.step_stats import Lanes
from placer.simulator import Reason, SpanKind, Trace

if TYPE_CHECKING:
    from placer.problem import PlacementProblem

# Lanes of what a device sends come below those of its ops.
_FIRST_WIRE_LANE = 1000


def simulated_trace(trace: Trace, problem: PlacementProblem, layers: Layers) -> dict[str, Any]:
    """Trace events in the JSON format of chrome://tracing; times in microseconds.

    Each device is a process: lanes for ops, lanes for what it sends, and a counter of memory.
    Process 0 is the critical path. An arrow joins the ends of a transfer.
    """
    graph = problem.graph
    names = short_device_names(problem.topology.device_names)
    events: list[dict[str, Any]] = []
    for pid, name in enumerate(("critical path", *names)):
        meta = {"ph": "M", "pid": pid}
        events.append(meta | {"name": "process_name", "args": {"name": name}})
        events.append(meta | {"name": "process_sort_index", "args": {"sort_index": pid}})
    lanes = Lanes()
    spans = trace.spans
    critical = {step.span for step in trace.critical_path()}
    kinds = spans.kind.tolist()
    for i, kind in enumerate(kinds):
        op, src, dst = int(spans.op[i]), int(spans.src[i]), int(spans.dst[i])
        start, seconds = float(spans.start[i]), float(spans.end[i] - spans.start[i])
        wire = kind == SpanKind.WIRE
        device = dst if kind == SpanKind.RECV else src
        lane = lanes.lane(names[device], _FIRST_WIRE_LANE if wire else 0, start, seconds)
        common = {"ts": 1e6 * start, "dur": 1e6 * seconds}
        arguments: dict[str, Any] = {
            "op": graph.names[op],
            "waited for": Reason(int(spans.reason[i])).name.lower(),
            "ready": 1e6 * float(spans.ready[i]),
        }
        if kind == SpanKind.OP:
            row = int(layers.layer_of[op])
            arguments["layer"] = layers.names[row] if row >= 0 else ""
            arguments["pass"] = Pass(int(layers.pass_of[op])).name.lower()
            event: dict[str, Any] = {"cat": "op", "name": graph.type_of(op)}
        else:
            arguments |= {"bytes": int(spans.bytes[i]), "from": names[src], "to": names[dst]}
            label = f"to {names[dst]}" if wire else SpanKind(kind).name.lower()
            event = {"cat": "transfer", "name": f"{label} {graph.names[op]}"}
        event |= {"ph": "X", "pid": device + 1, "tid": lane, "args": arguments, **common}
        events.append(event)
        if i in critical:
            events.append(event | {"pid": 0, "tid": 0})
        if wire:
            arrow = {"cat": "transfer", "name": "transfer", "id": i}
            events.append({"ph": "s", "pid": src + 1, "tid": lane, "ts": 1e6 * start, **arrow})
            end = 1e6 * (start + seconds)
            events.append({"ph": "f", "bp": "e", "pid": dst + 1, "tid": 0, "ts": end, **arrow})
    for d in range(len(names)):
        curve = trace.memory_curve(d)
        for at, size in zip(curve.seconds.tolist(), curve.bytes.tolist(), strict=True):
            counter = {"ph": "C", "name": "memory", "pid": d + 1, "ts": 1e6 * at}
            events.append(counter | {"args": {"MiB": size / 2**20}})
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def save_simulated_trace(
    trace: Trace, problem: PlacementProblem, layers: Layers, path: str | os.PathLike[str]
) -> None:
    """Writes `simulated_trace` to a JSON file; PlacerError if that fails."""
    write_atomically(path, json.dumps(simulated_trace(trace, problem, layers)).encode())
