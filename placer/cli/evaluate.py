"""placer evaluate GRAPH [PLACED]... --devices SPEC [--measure]

Prints one row for GRAPH as it came and one for each PLACED: a copy of the graph with devices, or a
placement file: step time, peak memory per device, and whether it fits or why not.
"""

from __future__ import annotations

from absl import flags

from placer.cli import common_flags
from placer.cli.tables import print_rows
from placer.errors import PlacerError


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    common_flags.define_graph_flags(flag_values)
    flags.DEFINE_bool(
        "measure", False, "run the placements on the devices too", flag_values=flag_values
    )


def run(arguments: list[str], flag_values: flags.FlagValues) -> int:
    """Runs the command; returns the exit code."""
    from placer.evaluate import evaluate

    if not arguments:
        raise PlacerError("placer evaluate takes a GRAPH and any number of PLACED files")
    found = evaluate(
        arguments[0],
        arguments[1:],
        fetches=flag_values.fetch,
        devices=flag_values.devices,
        measure=flag_values.measure,
        clear_devices=flag_values.clear_devices,
        profile=flag_values.profile,
        trip_counts=common_flags.trip_counts(flag_values),
    )
    title = f"{arguments[0]} on {flag_values.devices}"
    print_rows(found.rows, found.prepared.problem.topology, title)
    if found.failure:
        raise PlacerError(f"the rest was not run: {found.failure}")
    if found.interrupted:
        raise KeyboardInterrupt("the rest was not run")
    return 0
