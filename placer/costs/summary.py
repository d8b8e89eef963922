"""What costs are made of, for reports."""

from __future__ import annotations

import dataclasses

import numpy as np

from placer.costs.op_costs import CostOrigin, OpCosts
from placer.graph.op_graph import OpGraph


@dataclasses.dataclass(frozen=True)
class CostSummary:
    """Where the costs on one device model come from; executed ops only.

    Attributes:
      model: name of the device model.
      seconds: of all ops together.
      ops_by_origin: number of ops by "analytical", "estimated" and "profiled".
      seconds_by_origin: their seconds.
      estimated: op type -> (number of estimated ops, their seconds), dearest first.
      loops: loop -> (trip count, where it is from).
    """

    model: str
    seconds: float
    ops_by_origin: dict[str, int]
    seconds_by_origin: dict[str, float]
    estimated: dict[str, tuple[int, float]]
    loops: dict[str, tuple[float, str]]

    def lines(self, limit: int = 8) -> list[str]:
        """As text, one fact a line, with at most `limit` op types."""
        total = max(self.seconds, 1e-30)
        parts = [
            f"{count} {origin} ({100 * self.seconds_by_origin[origin] / total:.1f} % of the time)"
            for origin, count in self.ops_by_origin.items()
            if count
        ]
        lines = [f"op costs on {self.model}: {', '.join(parts) or 'no ops'}"]
        if self.estimated:
            shown = [
                f"{kind} x{count} ({seconds * 1e3:.3g} ms)"
                for kind, (count, seconds) in list(self.estimated.items())[:limit]
            ]
            more = len(self.estimated) - len(shown)
            lines.append(
                f"estimated op types: {', '.join(shown)}" + (f" and {more} more" if more else "")
            )
        lines += [
            f"loop {name}: {trips:g} iterations ({source})"
            for name, (trips, source) in self.loops.items()
        ]
        return lines


def describe(costs: OpCosts, graph: OpGraph) -> tuple[CostSummary, ...]:
    """One summary for each device model of `costs`, which are of the ops of `graph`."""
    summaries = []
    for k, model in enumerate(costs.models):
        seconds, origin = costs.seconds[k], costs.origin[k]
        rows = {o: graph.executed & (origin == o) for o in CostOrigin}
        estimated = np.flatnonzero(rows[CostOrigin.ESTIMATED])
        kinds = graph.op_type[estimated]
        count = np.bincount(kinds, minlength=len(graph.op_types))
        spent = np.bincount(kinds, seconds[estimated], minlength=len(graph.op_types))
        order = np.lexsort((np.arange(count.size), -spent))
        summaries.append(
            CostSummary(
                model=model.name,
                seconds=float(seconds[graph.executed].sum()),
                ops_by_origin={o.name.lower(): int(r.sum()) for o, r in rows.items()},
                seconds_by_origin={
                    o.name.lower(): float(seconds[r].sum()) for o, r in rows.items()
                },
                estimated={
                    graph.op_types[i]: (int(count[i]), float(spent[i])) for i in order if count[i]
                },
                loops=dict(costs.trip_count_source),
            )
        )
    return tuple(summaries)
