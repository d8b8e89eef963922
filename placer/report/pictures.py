"""Pictures of a placement: which device runs which layer, and when."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from placer.devices import short_device_names
from placer.errors import PlacerError
from placer.files import write_atomically
from placer.report.layers import Layers, Pass
from placer.simulator import SpanKind, Trace

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from placer.devices import Topology
    from placer.problem import PlacementProblem

# Okabe and Ito's palette, which the colour-blind can tell apart; CPUs are grey.
_ACCELERATOR_COLOURS = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#d55e00",
    "#f0e442",
    "#6a3d9a",
)
_CPU_COLOURS = ("#999999", "#666666", "#bbbbbb", "#444444")
PASS_COLOURS = {Pass.FORWARD: "#56b4e9", Pass.BACKWARD: "#e69f00", Pass.UPDATE: "#009e73"}
_TRANSFER_COLOUR = "#777777"
_COPY_COLOUR = "#b07aa1"
_CRITICAL_COLOUR = "#d0021b"
# A row of the picture is drawn in about this many pieces; a step in that many slices of time.
_PIECES = 120
_SLICES = 1500


def require_matplotlib() -> None:
    """Raises PlacerError, saying how to install it, if matplotlib is missing."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise PlacerError("pictures need matplotlib: pip install 'placer[plots]'") from None


def device_colours(topology: Topology) -> tuple[str, ...]:
    """A colour for each device; repeated after eight accelerators or four CPUs."""
    colours, accelerators, cpus = [], 0, 0
    only_cpus = all(d.model.type == "CPU" for d in topology.devices)
    for device in topology.devices:
        if device.model.type == "CPU" and not only_cpus:
            colours.append(_CPU_COLOURS[cpus % len(_CPU_COLOURS)])
            cpus += 1
        else:
            colours.append(_ACCELERATOR_COLOURS[accelerators % len(_ACCELERATOR_COLOURS)])
            accelerators += 1
    return tuple(colours)


def placement_picture(
    problem: PlacementProblem,
    placement: np.ndarray,
    layers: Layers,
    trace: Trace | None = None,
    title: str = "",
) -> Figure:
    """Which device runs which layer.

    A row a layer; the left panel is the forward pass, the right one backward pass and update. The
    length of a bar is the layer's compute time, its colours are the devices; from left to right
    it shows the layer's ops in the order in which they run (the order of the trace if given, else
    topological order), so that a layer whose first half is on one device shows it.

    Args:
      problem: gives compute times.
      placement: int32[N].
      layers: rows.
      trace: a simulated step under the placement.
      title: above the picture.
    """
    require_matplotlib()
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    graph, topology = problem.graph, problem.topology
    names, colours = short_device_names(topology.device_names), device_colours(topology)
    seconds = problem.device_seconds[placement, np.arange(graph.num_ops)]
    position = np.empty(graph.num_ops)
    position[graph.topological_order()] = np.arange(graph.num_ops)
    order = np.argsort(position if trace is None else trace.op_start, kind="stable")
    total = float(seconds[layers.layer_of >= 0].sum()) or 1.0
    rows = len(layers.names)
    sums = np.zeros((rows, 2))
    backward = (layers.pass_of != Pass.FORWARD).astype(int)
    ran = layers.layer_of >= 0
    np.add.at(sums, (layers.layer_of[ran], backward[ran]), seconds[ran])
    piece = float(sums.max()) / _PIECES or 1.0

    figure = Figure(figsize=(11, 1.5 + 0.3 * rows), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True, width_ratios=[*(sums.max(axis=0) + piece)])
    for panel, ax in enumerate(panels):
        for row in range(rows):
            members = order[(layers.layer_of[order] == row) & (backward[order] == panel)]
            if members.size:
                _draw_row(
                    ax,
                    row,
                    f"layer-{row}-{('forward', 'backward')[panel]}",
                    seconds[members],
                    placement[members],
                    colours,
                    names,
                    piece,
                    100 / total,
                )
        ax.set_xlim(0, 100 / total * (sums[:, panel].max() + piece))
        ax.set_title(("forward", "backward and update")[panel], fontsize=10)
        ax.set_xlabel("% of the step's compute time")
        ax.grid(axis="x", alpha=0.25)
        ax.set_axisbelow(True)
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
    panels[0].set_yticks(range(rows), layers.names)
    panels[0].set_ylim(rows - 0.4, -0.6)
    share = np.bincount(placement[ran], seconds[ran], topology.num_devices) / total
    figure.legend(
        handles=[
            Patch(color=colours[d], label=f"{names[d]}  {share[d]:.0%}")
            for d in range(topology.num_devices)
            if share[d] > 0
        ],
        loc="outside lower center",
        ncols=8,
        frameon=False,
    )
    if title:
        figure.suptitle(title, fontsize=11)
    return figure


def _draw_row(
    ax: Axes,
    row: int,
    gid: str,
    seconds: np.ndarray,
    devices: np.ndarray,
    colours: Sequence[str],
    names: Sequence[str],
    piece: float,
    scale: float,
) -> None:
    """One bar in pieces; a piece with several devices is divided from top to bottom."""
    from matplotlib.patches import Rectangle

    ends = np.concatenate([[0.0], np.cumsum(seconds)])
    count = max(1, round(ends[-1] / piece))
    edges = np.linspace(0.0, ends[-1], count + 1)
    parts = np.zeros((count, len(colours)))
    for device in np.unique(devices):
        on_it = np.concatenate([[0.0], np.cumsum(seconds * (devices == device))])
        parts[:, device] = np.diff(np.interp(edges, ends, on_it))
    parts /= np.maximum(parts.sum(axis=1, keepdims=True), 1e-30)
    parts[parts < 0.02] = 0.0
    parts /= np.maximum(parts.sum(axis=1, keepdims=True), 1e-30)
    begin = 0
    for end in range(1, count + 1):
        if end < count and np.array_equal(parts[begin], parts[end]):
            continue
        top = row - 0.4
        for device in np.flatnonzero(parts[begin]).tolist():
            height = 0.8 * parts[begin, device]
            ax.add_patch(
                Rectangle(
                    (scale * edges[begin], top),
                    scale * (edges[end] - edges[begin]),
                    height,
                    facecolor=colours[device],
                    edgecolor="none",
                    gid=f"{gid}-{names[device].replace('/', '.')}-{begin}",
                )
            )
            top += height
        begin = end


def timeline_picture(
    trace: Trace, problem: PlacementProblem, layers: Layers, title: str = ""
) -> Figure:
    """What every device does when, what it sends, and the critical path.

    Each device has a lane of ops, coloured by pass, and a thin lane of what it sends. A line marks
    the critical path; where it goes from lane to lane, something is sent. Gaps under a
    1,500th of the step are not shown.
    """
    require_matplotlib()
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    topology, spans = problem.topology, trace.spans
    names = short_device_names(topology.device_names)
    step = trace.step_seconds
    unit, label = (1e3, "ms") if step < 1 else (1.0, "s")
    gap = step / _SLICES
    used = [d for d in range(topology.num_devices) if ((spans.src == d) | (spans.dst == d)).any()]
    lane = {d: i for i, d in enumerate(used)}
    figure = Figure(figsize=(13, 1.6 + 0.75 * len(used)), layout="constrained")
    ax = figure.subplots()
    on_device = np.where(spans.kind == SpanKind.RECV, spans.dst, spans.src)

    def draw(mine: np.ndarray, bottom: float, height: float, colour: str, gid: str) -> None:
        begins, ends = join_spans(spans.start[mine], spans.end[mine], gap)
        bars = list(zip(unit * begins, unit * (ends - begins), strict=True))
        if bars:
            box, gid = (bottom, height), gid.replace("/", ".")
            ax.broken_barh(bars, box, facecolors=colour, edgecolors="none", gid=gid)

    for d in used:
        for kind, colour in PASS_COLOURS.items():
            mine = (
                (spans.kind == SpanKind.OP) & (on_device == d) & (layers.pass_of[spans.op] == kind)
            )
            draw(mine, lane[d] - 0.4, 0.5, colour, f"{names[d]}-{kind.name.lower()}")
        copies = (spans.kind == SpanKind.SEND) | (spans.kind == SpanKind.RECV)
        draw(copies & (on_device == d), lane[d] - 0.4, 0.5, _COPY_COLOUR, f"{names[d]}-copies")
        wires = (spans.kind == SpanKind.WIRE) & (spans.src == d)
        draw(wires, lane[d] + 0.14, 0.2, _TRANSFER_COLOUR, f"{names[d]}-sends")
    xs, ys = [], []
    for part in trace.critical_path():
        device = part.dst if part.kind == SpanKind.RECV else part.src
        y = lane[device] + (0.24 if part.kind == SpanKind.WIRE else -0.15)
        xs += [unit * part.start, unit * part.end]
        ys += [y, y]
    ax.plot(xs, ys, color=_CRITICAL_COLOUR, lw=1.4, gid="critical-path")
    ax.set_yticks(
        range(len(used)), [f"{names[d]}\n{_busy(trace, topology, d):.0%} busy" for d in used]
    )
    ax.set_ylim(len(used) - 0.5, -0.55)
    ax.set_xlim(0, unit * step)
    ax.set_xlabel(label)
    ax.grid(axis="x", alpha=0.25)
    ax.set_axisbelow(True)
    copied = []
    if ((spans.kind == SpanKind.SEND) | (spans.kind == SpanKind.RECV)).any():
        copied = [Patch(color=_COPY_COLOUR, label="CPU time of transfers")]
    figure.legend(
        handles=[
            *(Patch(color=c, label=p.name.lower()) for p, c in PASS_COLOURS.items()),
            *copied,
            Patch(color=_TRANSFER_COLOUR, label="sending"),
            Line2D([], [], color=_CRITICAL_COLOUR, label="critical path"),
        ],
        loc="outside lower center",
        ncols=6,
        frameon=False,
    )
    if title:
        figure.suptitle(title, fontsize=11)
    return figure


def _busy(trace: Trace, topology: Topology, device: int) -> float:
    seconds = trace.busy_seconds[device] / topology.devices[device].concurrency
    return float(seconds / trace.step_seconds) if trace.step_seconds else 0.0


def join_spans(starts: np.ndarray, ends: np.ndarray, gap: float) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends of the stretches that spans cover, those less than `gap` apart joined."""
    if not len(starts):
        return np.zeros(0), np.zeros(0)
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    cut = np.flatnonzero(starts[1:] > reach[:-1] + gap)
    return starts[np.concatenate([[0], cut + 1])], reach[np.append(cut, len(reach) - 1)]


def history_picture(history: pd.DataFrame, title: str = "") -> Figure:
    """Best step time against the seconds of the search, coloured by the part that found it.

    Args:
      history: `Result.history`.
      title: above the picture.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    ax = figure.subplots()
    ax.step(history.seconds, history.step_seconds, where="post", color="#999999", lw=1)
    for i, source in enumerate(dict.fromkeys(history.source)):
        part = history[history.source == source]
        colour = _ACCELERATOR_COLOURS[i % len(_ACCELERATOR_COLOURS)]
        ax.plot(part.seconds, part.step_seconds, "o", ms=4, color=colour, label=source)
    if len(history):
        ax.legend(frameon=False)
    ax.set_xlabel("seconds of search")
    ax.set_ylabel("best step time, s")
    ax.grid(alpha=0.25)
    if title:
        ax.set_title(title, fontsize=11)
    return figure


def check_picture(path: str | os.PathLike[str]) -> None:
    """Raises PlacerError now if `save_figure` could not write to a name like this later."""
    require_matplotlib()
    from matplotlib.figure import Figure

    _picture_kind(Figure(), path)


def _picture_kind(figure: Figure, path: str | os.PathLike[str]) -> str:
    kind = Path(path).suffix.removeprefix(".").lower()
    if kind not in figure.canvas.get_supported_filetypes():
        raise PlacerError(f"cannot write a picture to {path}: end its name in .png, .svg or .pdf")
    return kind


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Writes a figure atomically, in the format that the name ends in (.png, .svg, .pdf).

    Raises:
      PlacerError: for a format that matplotlib does not know, or if writing fails.
    """
    kind = _picture_kind(figure, path)
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=130)
    write_atomically(path, buffer.getvalue())
