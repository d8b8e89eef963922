"""Result: what placer.optimize returns."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import pandas as pd
from tensorflow.core.framework import graph_pb2

from placer.costs import CostOrigin
from placer.devices import short_device_names
from placer.graph import GraphSource, save_graph
from placer.placement import Placement
from placer.problem import PlacementProblem


@dataclasses.dataclass(frozen=True)
class Row:
    """The figures of one placement.

    Attributes:
      name: "placer", "as it came", "one GPU"...
      step_seconds: predicted by the simulator.
      measured_seconds: median of real steps, or None.
      peak_bytes, busy_seconds, transfer_bytes: one a device, by the simulator; transfers count at
        their sender.
      infeasible: "" or why it does not run.
    """

    name: str
    step_seconds: float
    measured_seconds: float | None
    peak_bytes: tuple[int, ...]
    busy_seconds: tuple[float, ...]
    transfer_bytes: tuple[int, ...]
    infeasible: str


@dataclasses.dataclass(frozen=True, eq=False)
class Result:
    """A placement with everything that is known of it.

    Attributes:
      placement: op name -> device.
      source: the graph, its devices rewritten.
      problem: the arrays that predictions are made with; with reward "both", what real runs taught
        is in them.
      rows: figures of the graph as it came, of single devices, and last of the placement.
      history: each improvement: seconds, evaluations, step_seconds, source (which part found it).
      evaluations: placements that were evaluated.
      seconds: how long the search took.
      interrupted: Ctrl-C ended it.
      failure: what else ended it early, such as workers that went away; "" if nothing did.
    """

    placement: Placement
    source: GraphSource
    problem: PlacementProblem
    rows: tuple[Row, ...]
    history: pd.DataFrame
    evaluations: int
    seconds: float
    interrupted: bool = False
    failure: str = ""

    @property
    def graph_def(self) -> graph_pb2.GraphDef:
        """The graph with its new devices."""
        return self.source.graph_def

    @property
    def step_seconds(self) -> float:
        """Predicted step time of the placement."""
        return self.rows[-1].step_seconds

    @property
    def control_edges(self) -> tuple[tuple[str, str], ...]:
        """Names (before, after) of the ops joined by control edges that were added."""
        names = self.placement.ops
        return tuple((names[a], names[b]) for a, b in self.placement.control_edges.tolist())

    @property
    def measured_seconds(self) -> float | None:
        """Measured step time of the placement, None if it was not run."""
        return self.rows[-1].measured_seconds

    @property
    def peak_bytes(self) -> dict[str, int]:
        """Device name -> peak memory of the placement, by the simulator."""
        return dict(zip(self.placement.devices, self.rows[-1].peak_bytes, strict=True))

    @property
    def table(self) -> pd.DataFrame:
        """One row a placement: step times in seconds, peak GiB per device, feasible or why not."""
        records = []
        for row in self.rows:
            record: dict[str, object] = {
                "placement": row.name,
                "step_seconds": row.step_seconds,
                "measured_seconds": (
                    np.nan if row.measured_seconds is None else row.measured_seconds
                ),
            }
            names = short_device_names(self.placement.devices)
            for name, peak in zip(names, row.peak_bytes, strict=True):
                record[f"peak_gib {name}"] = peak / 2**30
            record["infeasible"] = row.infeasible
            records.append(record)
        return pd.DataFrame(records).set_index("placement")

    def cost_summary(self) -> str:
        """One line: where the op costs come from, so that estimates do not pass for knowledge."""
        executed = self.problem.graph.executed
        origin = self.problem.costs.origin[:, executed]
        parts = []
        for kind in CostOrigin:
            share = (origin == kind).all(axis=0).sum()
            if share:
                parts.append(f"{share} {kind.name.lower()}")
        mixed = executed.sum() - sum(int(p.split()[0]) for p in parts)
        if mixed:
            parts.append(f"{mixed} by device")
        return f"costs of {int(executed.sum())} executed ops: {', '.join(parts)}"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the annotated graph; a binary file it was read from differs in devices only."""
        save_graph(self.source, path)
