"""Tables of a placement: per layer, per device, and along the critical path."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from placer.devices import Topology, short_device_names
from placer.report.layers import Layers, Pass
from placer.simulator import Reason, SpanKind, Trace

if TYPE_CHECKING:
    from placer.problem import PlacementProblem

_KINDS = {
    SpanKind.OP: "compute",
    SpanKind.SEND: "send",
    SpanKind.WIRE: "transfer",
    SpanKind.RECV: "receive",
}
_REASONS = {
    Reason.START: "the start of the step",
    Reason.DATA: "a tensor",
    Reason.CONTROL: "a control edge",
    Reason.DEVICE_BUSY: "its device",
    Reason.LINK_BUSY: "its link",
}


def layer_seconds(problem: PlacementProblem, placement: np.ndarray, layers: Layers) -> np.ndarray:
    """float64[R, 3, D]: compute seconds of each layer, pass and device under a placement."""
    graph, count = problem.graph, problem.topology.num_devices
    seconds = problem.device_seconds[placement, np.arange(graph.num_ops)]
    result = np.zeros((len(layers.names), len(Pass), count))
    ran = np.flatnonzero(layers.layer_of >= 0)
    np.add.at(result, (layers.layer_of[ran], layers.pass_of[ran], placement[ran]), seconds[ran])
    return result


def layer_frame(problem: PlacementProblem, placement: np.ndarray, layers: Layers) -> pd.DataFrame:
    """One line a layer and pass: compute seconds in all, and the part of each device in it."""
    seconds = layer_seconds(problem, placement, layers)
    names = short_device_names(problem.topology.device_names)
    lines = []
    for row, layer in enumerate(layers.names):
        for kind in Pass:
            total = seconds[row, kind].sum()
            if total > 0:
                parts = {n: seconds[row, kind, d] / total for d, n in enumerate(names)}
                lines.append(
                    {"layer": layer, "pass": kind.name.lower(), "compute_seconds": total, **parts}
                )
    return pd.DataFrame(lines)


def device_frame(trace: Trace, topology: Topology) -> pd.DataFrame:
    """One line a device: ops, compute, sending and idle seconds, bytes sent, memory."""
    spans = trace.spans
    lines = []
    for d, name in enumerate(short_device_names(topology.device_names)):
        wires = (spans.kind == SpanKind.WIRE) & (spans.src == d)
        busy = trace.busy_seconds[d] / topology.devices[d].concurrency
        lines.append(
            {
                "device": name,
                "ops": int(((spans.kind == SpanKind.OP) & (spans.src == d)).sum()),
                "busy_seconds": busy,
                "busy_share": busy / trace.step_seconds if trace.step_seconds else 0.0,
                "idle_seconds": trace.step_seconds - busy,
                "sending_seconds": trace.transfer_seconds[d],
                "tensors_sent": int((wires & (spans.tensor >= 0)).sum()),
                "mib_sent": trace.transfer_bytes[d] / 2**20,
                "peak_gib": trace.peak_bytes[d] / 2**30,
                "limit_gib": trace.memory_limit[d] / 2**30,
            }
        )
    return pd.DataFrame(lines)


def critical_path_frame(trace: Trace, problem: PlacementProblem, layers: Layers) -> pd.DataFrame:
    """The critical path, steps of one kind, layer, pass and device after each other joined.

    Returns:
      Columns start, seconds, what (compute, send, transfer, receive), layer, pass, device (or
      "from > to"), ops, mib, crossings (transfers that the path goes along, not those that it
      waits behind), waited_for (what the first of them last waited for), first_op. The seconds add
      up to the step time.
    """
    names = short_device_names(problem.topology.device_names)
    lines: list[dict] = []
    last = None
    path = trace.critical_path()
    for step, after in zip(path, [*path[1:], None], strict=True):
        waits = after is not None and after.reason == Reason.LINK_BUSY
        crosses = int(step.kind == SpanKind.WIRE and not waits)
        kind = Pass(int(layers.pass_of[step.op])).name.lower()
        layer = layers.names[int(layers.layer_of[step.op])]
        what = _KINDS[step.kind]
        device = names[step.src]
        if step.src != step.dst:
            device += f" > {names[step.dst]}"
        key = (what, layer, kind, device)
        if key == last:
            line = lines[-1]
            line["seconds"] += step.end - step.start
            line["ops"] += 1
            line["mib"] += step.bytes / 2**20
            line["crossings"] += crosses
            continue
        last = key
        lines.append(
            {
                "start": step.start,
                "seconds": step.end - step.start,
                "what": what,
                "layer": layer,
                "pass": kind,
                "device": device,
                "ops": 1,
                "mib": step.bytes / 2**20,
                "crossings": crosses,
                "waited_for": _REASONS[step.reason],
                "first_op": problem.graph.names[step.op],
            }
        )
    columns = [
        "start",
        "seconds",
        "what",
        "layer",
        "pass",
        "device",
        "ops",
        "mib",
        "crossings",
        "waited_for",
        "first_op",
    ]
    return pd.DataFrame(lines, columns=columns)


def critical_path_summary(frame: pd.DataFrame) -> pd.DataFrame:
    """A `critical_path_frame` summed up: one line a kind, layer, pass and device, longest first.

    Returns:
      Columns what, layer, pass, device, ops, mib, seconds, share (of the step time).
    """
    keys = ["what", "layer", "pass", "device"]
    sums = frame.groupby(keys, as_index=False)[["ops", "mib", "seconds"]].sum()
    sums["share"] = sums["seconds"] / max(float(frame["seconds"].sum()), 1e-30)
    return sums.sort_values("seconds", ascending=False, kind="stable", ignore_index=True)


def describe_critical_path(frame: pd.DataFrame) -> str:
    """One sentence: what the step time consists of. Takes a `critical_path_frame`."""
    total = float(frame["seconds"].sum())
    if not total:
        return "the step takes no time"
    by_kind = frame.groupby("what")["seconds"].sum().sort_values(ascending=False)
    kinds = ", ".join(f"{s / total:.0%} {what}" for what, s in by_kind.items())
    compute = frame[frame["what"] == "compute"]
    by_layer = compute.groupby("layer")["seconds"].sum().sort_values(ascending=False).head(3)
    layers = ", ".join(f"{layer} {s / total:.0%}" for layer, s in by_layer.items())
    crossings = int(frame["crossings"].sum())
    return f"critical path: {kinds}; it crosses between devices {crossings} times; most in {layers}"


def print_frame(frame: pd.DataFrame, title: str = "", limit: int | None = None) -> None:
    """Prints a frame as a table: text as it is, numbers to four digits, first `limit` lines."""
    table = Table(title=Text(title) if title else None, title_justify="left")
    for column in frame.columns:
        numeric = pd.api.types.is_numeric_dtype(frame[column])
        table.add_column(str(column), justify="right" if numeric else "left")
    for row in frame.head(limit if limit is not None else len(frame)).itertuples(index=False):
        table.add_row(*(Text(_cell(value)) for value in row))
    console = Console()
    console = console if console.is_terminal else Console(width=200)
    console.print(table)
    if limit is not None and len(frame) > limit:
        console.print(f"... and {len(frame) - limit} lines more")


def _cell(value: object) -> str:
    if isinstance(value, float):
        if value != value:
            return "-"
        return f"{value:.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    return str(value)
