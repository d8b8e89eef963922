"""What the plugin saw and did in this process."""

from __future__ import annotations

import ctypes
import dataclasses
import json
from collections.abc import Mapping

from placer.plugin import library


@dataclasses.dataclass(frozen=True)
class GraphReport:
    """One graph that TensorFlow handed to the pass. Grappler does so twice for most graphs.

    Attributes:
      outcome: "matched", "heuristic", "no match", "ambiguous" or "error: ...".
      nodes: nodes of the graph.
      moved: nodes whose device the pass changed.
      in_place: nodes that were where the placement wants them.
      left: reason -> names of the nodes that stay where TensorFlow placed them.
      share: of the graph's own nodes, those that the placement knows.
      placements: numbers of the placements applied (Activation.ids).
      seconds: that the pass took.
      predicted_before: step seconds by the heuristic's estimate, as TensorFlow placed the graph.
      predicted_after: the same as the heuristic placed it; both 0 without the heuristic.
    """

    outcome: str
    nodes: int
    moved: int
    in_place: int
    left: Mapping[str, tuple[str, ...]]
    share: float
    placements: tuple[int, ...]
    seconds: float
    predicted_before: float = 0.0
    predicted_after: float = 0.0


@dataclasses.dataclass(frozen=True)
class Report:
    """Totals since the plugin was loaded or `reset_report` was called.

    Attributes:
      active: placements that are active now.
      idle_graphs: graphs that came while nothing was active.
      graphs: graphs looked at.
      matched: those that a placement or the heuristic applied to.
      moved: nodes moved, over all graphs.
      seconds: that the pass took, over all graphs.
      latest: the latest graphs, oldest first, at most 32.
    """

    active: int
    idle_graphs: int
    graphs: int
    matched: int
    moved: int
    seconds: float
    latest: tuple[GraphReport, ...]

    def __str__(self) -> str:
        lines = [
            f"{self.graphs} graphs ({self.matched} matched, {self.idle_graphs} more while idle), "
            f"{self.moved} nodes moved, {1e3 * self.seconds:.1f} ms"
        ]
        for graph in self.latest:
            left = ", ".join(f"{len(names)} {reason}" for reason, names in graph.left.items())
            lines.append(
                f"  {graph.outcome}: {graph.nodes} nodes, {graph.moved} moved, "
                f"{graph.in_place} in place; left: {left or 'none'}; {1e3 * graph.seconds:.1f} ms"
            )
        return "\n".join(lines)


def report() -> Report:
    """What the pass saw and did; loads the plugin if need be."""
    plugin = library.get()
    size = plugin.placer_plugin_report(None, 0)
    while True:
        buffer = ctypes.create_string_buffer(size)
        needed = plugin.placer_plugin_report(buffer, size)
        if needed <= size:
            break
        size = needed  # Other threads have added to it meanwhile.
    data = json.loads(buffer.value)
    latest = tuple(
        GraphReport(
            outcome=record["outcome"],
            nodes=record["nodes"],
            moved=record["moved"],
            in_place=record["in_place"],
            left={reason: tuple(names) for reason, names in record["left"].items()},
            share=record["share"],
            placements=tuple(record["placements"]),
            seconds=record["seconds"],
            predicted_before=record["predicted_before"],
            predicted_after=record["predicted_after"],
        )
        for record in data["records"]
    )
    return Report(
        active=data["active"],
        idle_graphs=data["idle_graphs"],
        graphs=data["graphs"],
        matched=data["matched"],
        moved=data["moved"],
        seconds=data["seconds"],
        latest=latest,
    )


def reset_report() -> None:
    """Sets the totals to zero and forgets the latest graphs."""
    library.get().placer_plugin_reset_report()


def rewrite(graph: bytes, devices: tuple[str, ...] = ()) -> bytes | None:
    """Runs the pass on a serialized GraphDef, outside any session, with what is active now.

    Args:
      graph: a serialized GraphDef whose nodes have devices, as Grappler would get it.
      devices: full names of the devices of the session; those that nodes are on count anyway.

    Returns:
      the graph with other devices, or None if it stays as it is.
    """
    plugin = library.get()
    out = ctypes.c_void_p()
    size = ctypes.c_size_t()
    moved = plugin.placer_plugin_rewrite(
        graph, len(graph), "\n".join(devices).encode(), ctypes.byref(out), ctypes.byref(size)
    )
    if moved <= 0:
        return None
    try:
        return ctypes.string_at(out, size.value)
    finally:
        plugin.placer_plugin_free(out)
