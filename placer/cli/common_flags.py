"""Flags that several commands share."""

from __future__ import annotations

from absl import flags

from placer.devices import SPEC_HELP
from placer.errors import PlacerError


def define_graph_flags(flag_values: flags.FlagValues, costs: bool = True) -> None:
    """--devices, --fetch, --clear_devices and, for commands that simulate, flags of op costs."""
    flags.DEFINE_string("devices", "local", SPEC_HELP, flag_values=flag_values)
    flags.DEFINE_multi_string(
        "fetch",
        [],
        "op or tensor that one step computes; repeat for several (default: the train_op "
        "collection, the signatures' outputs, or the ops that nothing reads)",
        flag_values=flag_values,
    )
    flags.DEFINE_bool(
        "clear_devices",
        False,
        "forget the devices that the graph came with, rather than keep them",
        flag_values=flag_values,
    )
    if costs:
        flags.DEFINE_string(
            "profile", None, "file of measured op costs (placer profile)", flag_values=flag_values
        )
        flags.DEFINE_multi_string(
            "trip_count",
            [],
            "NAME=N: iterations of the while loop NAME, where the graph does not show them",
            flag_values=flag_values,
        )


def trip_counts(flag_values: flags.FlagValues) -> dict[str, float]:
    """--trip_count as a mapping; PlacerError for a bad one."""
    counts = {}
    for text in flag_values.trip_count:
        name, _, number = text.rpartition("=")
        try:
            counts[name] = float(number)
        except ValueError:
            counts[name] = -1.0
        if not name or not 0 <= counts[name] < float("inf"):
            raise PlacerError(f"--trip_count {text!r}: write it as NAME=N, N a number of 0 or more")
    return counts


def one_graph(arguments: list[str], command: str) -> str:
    """The single positional argument GRAPH; PlacerError if there is none or another."""
    if len(arguments) != 1:
        given = "none" if not arguments else ", ".join(map(repr, arguments))
        raise PlacerError(f"placer {command} takes one GRAPH; given: {given}")
    return arguments[0]
