"""placer methods [METHOD...]

Lists what --method of placer optimize takes: one line each, or everything about the METHODs named:
where the algorithm comes from and its options, which --method_option NAME=VALUE sets.
"""

from __future__ import annotations

import dataclasses

from absl import flags
from rich.console import Console
from rich.table import Table

from placer.errors import PlacerError
from placer.methods import AUTO
from placer.placers import PLACERS, PlacerSpec

# What --method takes besides the placers, and what they do.
_SEARCHES = {
    AUTO.name: f"{AUTO.summary} (the default)",
    "policy": "the seq2seq policy, learnt by policy gradient",
}


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines the command's flags: none."""


def run(arguments: list[str], flag_values: flags.FlagValues) -> int:
    """Runs the command; returns the exit code."""
    console = Console(width=None if Console().is_terminal else 160, highlight=False)
    known = [*_SEARCHES, *PLACERS]
    unknown = [name for name in arguments if name not in known]
    if unknown:
        raise PlacerError(f"unknown method {unknown[0]!r}; methods are {', '.join(known)}")
    if arguments:
        for name in arguments:
            if name in PLACERS:
                _print_one(console, PLACERS[name])
            else:
                console.print(f"{name}: {_SEARCHES[name]}", markup=False)
                _print_options(console, _search_options(name))
        return 0
    table = Table()
    table.add_column("method", no_wrap=True)
    table.add_column("what it does")
    table.add_column("options")
    for name, summary in _SEARCHES.items():
        table.add_row(name, summary, f"see: placer methods {name}")
    for spec in PLACERS.values():
        summary = spec.summary
        if not spec.installed:
            summary += f" (needs: pip install 'placer[{spec.extra}]')"
        options = ", ".join(name for name, _, _ in spec.describe())
        table.add_row(spec.name, summary, options or "-")
    console.print(table, markup=False)
    console.print("placer methods METHOD tells its source and options.", markup=False)
    return 0


def _print_one(console: Console, spec: PlacerSpec) -> None:
    console.print(f"{spec.name}: {spec.summary}", markup=False)
    console.print(f"  {spec.citation}", markup=False)
    if not spec.installed:
        console.print(f"  needs: pip install 'placer[{spec.extra}]'", markup=False)
    _print_options(console, spec.describe())


def _print_options(console: Console, options: list[tuple[str, str, str]]) -> None:
    if not options:
        console.print("  no options")
        return
    table = Table()
    table.add_column("option", no_wrap=True)
    table.add_column("default", no_wrap=True)
    table.add_column("what it means")
    for row in options:
        table.add_row(*row)
    console.print(table)


def _search_options(name: str) -> list[tuple[str, str, str]]:
    """(name, default, help) of each option of auto or the policy."""
    if name == AUTO.name:
        return AUTO.describe()
    from placer.policy import PolicySettings

    documentation = " ".join((PolicySettings.__doc__ or "").split())
    rows = []
    fields = dataclasses.fields(PolicySettings)
    for field, after in zip(fields, [*fields[1:], None], strict=True):
        # The class documents its attributes in order, as "name: text".
        text = documentation.partition(f" {field.name}: ")[2]
        if after is not None:
            text = text.partition(f" {after.name}: ")[0]
        rows.append((field.name, str(field.default), text.strip()))
    return rows
