"""Tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from placer.cli.progress import format_seconds
from placer.devices import Topology, short_device_names
from placer.result import Row


def print_rows(rows: Sequence[Row], topology: Topology, title: str = "") -> None:
    """Prints one line a placement: step times, peak GiB per device, feasible or why not."""
    table = Table(title=title or None, title_justify="left")
    table.add_column("placement")
    table.add_column("step time", justify="right")
    measured = any(r.measured_seconds is not None for r in rows)
    if measured:
        table.add_column("measured", justify="right")
    for name in short_device_names(topology.device_names):
        table.add_column(f"{name} GiB", justify="right")
    table.add_column("")
    for row in rows:
        cells = [row.name, format_seconds(row.step_seconds)]
        if measured:
            cells.append(format_seconds(row.measured_seconds))
        cells += [f"{b / 2**30:.2f}" for b in row.peak_bytes]
        table.add_row(*cells, row.infeasible or "fits")
    Console(width=None if Console().is_terminal else 160).print(table)
