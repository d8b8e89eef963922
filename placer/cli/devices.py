"""placer devices

Prints the hardware catalogue that --devices draws on, and what is here.
"""

from __future__ import annotations

from absl import flags
from rich.console import Console
from rich.table import Table

from placer.devices import GPU_MODELS, MODELS, SPEC_HELP, gpu_hosts, parse
from placer.errors import PlacerError


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines the command's flags: none."""


def run(arguments: list[str], flag_values: flags.FlagValues) -> int:
    """Runs the command; returns the exit code."""
    if arguments:
        raise PlacerError(f"placer devices takes no arguments; given: {arguments[0]!r}")
    console = Console(width=None if Console().is_terminal else 160)
    table = Table(title="catalogue", title_justify="left")
    for column in ("model", "type", "MHz", "cores", "memory GiB", "GB/s", "GPU link", "source"):
        table.add_column(column)
    for model in MODELS.values():
        link = "-"
        if model.name in GPU_MODELS:
            found = gpu_hosts(model.name, 2).link(1, 2)
            link = f"{found.latency_seconds * 1e6:.0f} us + {found.bytes_per_second / 1e9:g} GB/s"
        table.add_row(
            model.name,
            model.type,
            f"{model.frequency_mhz:g}",
            str(model.num_cores),
            f"{model.memory_bytes / 2**30:.0f}",
            f"{model.bytes_per_second / 1e9:g}",
            link,
            model.source,
        )
    console.print(table)
    here = Table(title="here (--devices local)", title_justify="left")
    for column in ("device", "model", "memory GiB"):
        here.add_column(column)
    for device in parse("local").devices:
        here.add_row(device.name, device.model.name, f"{device.memory_bytes / 2**30:.1f}")
    console.print(here)
    print(f"--devices takes: {SPEC_HELP}")
    return 0
