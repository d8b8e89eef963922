"""Tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from placer.cli.progress import format_seconds
from placer.devices import Topology, short_device_names
from placer.result import Row

# With more devices, each has a line instead of a column.
_MOST_COLUMNS = 6


def print_rows(rows: Sequence[Row], topology: Topology, title: str = "") -> None:
    """Prints step times, peak GiB per device, and feasible or why not, of each placement.

    Placements are the lines, or where there are many devices, the columns.
    """
    measured = any(r.measured_seconds is not None for r in rows)
    names = short_device_names(topology.device_names)
    heads = ["placement", "step time", *(["measured"] if measured else [])]
    heads += [f"{name} GiB" for name in names] + [""]
    lines = []
    for row in rows:
        cells = [row.name, format_seconds(row.step_seconds)]
        if measured:
            cells.append(format_seconds(row.measured_seconds))
        cells += [f"{b / 2**30:.2f}" for b in row.peak_bytes]
        runs = "fits" if row.measured_seconds is None else "ran"
        lines.append([*cells, row.infeasible or runs])
    # Names and messages hold brackets, which are no markup.
    table = Table(title=Text(title) if title else None, title_justify="left")
    if len(names) <= _MOST_COLUMNS:
        for i, head in enumerate(heads):
            table.add_column(head, justify="right" if 0 < i < len(heads) - 1 else "left")
        for line in lines:
            table.add_row(*map(Text, line))
    else:
        table.add_column(heads[0], no_wrap=True)
        for line in lines:
            table.add_column(Text(line[0]), justify="right")
        for i, head in enumerate(heads[1:], 1):
            table.add_row(head, *(Text(line[i]) for line in lines))
    Console(width=None if Console().is_terminal else 160).print(table)
