"""What an experiment is, and the flags that its settings make."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd
from absl import flags

from placer.errors import PlacerError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HELP = "help"


def setting(default: Any, help: str) -> Any:
    """A field of an experiment's settings: its default and what it means."""
    return dataclasses.field(default=default, metadata={_HELP: help})


@dataclasses.dataclass(frozen=True, eq=False)
class Outcome:
    """What an experiment found.

    Attributes:
      tables: name -> frame; the first is the main one. All are stored.
      shown: name -> the frame to print, where that is not the stored one.
      notes: sentences for the reader, printed below the tables and stored.
      figures: name -> figure, stored as PNG and SVG.
      files: name -> content of other files to store.
      failures: what went wrong on the way; the command's exit code is 1 if there are any.
    """

    tables: Mapping[str, pd.DataFrame]
    shown: Mapping[str, pd.DataFrame] = dataclasses.field(default_factory=dict)
    notes: Sequence[str] = ()
    figures: Mapping[str, Figure] = dataclasses.field(default_factory=dict)
    files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    failures: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One experiment.

    Attributes:
      name: what the command line calls it.
      summary: one line.
      settings: frozen dataclass, made of `setting` fields.
      smoke: settings that exercise everything in seconds.
      expected_seconds: about how long given settings take on two cores.
      run: does it.
    """

    name: str
    summary: str
    settings: type
    smoke: Any
    expected_seconds: Callable[[Any], float]
    run: Callable[[Any], Outcome]

    def define_flags(self, flag_values: flags.FlagValues) -> None:
        """Defines one flag a setting."""
        hints = typing.get_type_hints(self.settings)
        for field in dataclasses.fields(self.settings):
            define = _definer(hints[field.name])
            default = field.default
            if isinstance(default, tuple):
                default = [str(item) for item in default]
            define(field.name, default, str(field.metadata[_HELP]), flag_values=flag_values)

    def settings_from(self, flag_values: flags.FlagValues, base: Any) -> Any:
        """The settings of a command line: `base`, changed where a flag was given.

        Raises:
          PlacerError: for a list item of the wrong type.
        """
        hints = typing.get_type_hints(self.settings)
        given = {}
        for field in dataclasses.fields(self.settings):
            if flag_values[field.name].present:
                value = flag_values[field.name].value
                if isinstance(field.default, tuple):
                    value = _items(field.name, hints[field.name], value or ())
                given[field.name] = value
        return dataclasses.replace(base, **given)


def _definer(kind: Any) -> Callable[..., Any]:
    if isinstance(kind, types.UnionType):
        kind = next(k for k in typing.get_args(kind) if k is not type(None))
    if typing.get_origin(kind) is tuple:
        return _define_list
    definers: dict[Any, Callable[..., Any]] = {
        bool: flags.DEFINE_bool,
        int: flags.DEFINE_integer,
        float: flags.DEFINE_float,
        str: flags.DEFINE_string,
    }
    return definers[kind]


class _ListParser(flags.ListParser):
    """Comma-separated; commas within square brackets separate nothing."""

    def parse(self, argument: str | list[str]) -> list[str]:
        return argument if isinstance(argument, list) else split_list(argument)


def _define_list(name: str, default: list[str], help: str, flag_values: flags.FlagValues) -> Any:
    return flags.DEFINE(
        _ListParser(), name, default, help, flag_values, flags.CsvListSerializer(",")
    )


def split_list(text: str) -> list[str]:
    """Splits at commas that are not within square brackets; empty items are dropped."""
    items, depth = [""], 0
    for character in text:
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            items.append("")
        else:
            items[-1] += character
    return [item.strip() for item in items if item.strip()]


def _items(name: str, hint: Any, values: Sequence[str]) -> tuple[Any, ...]:
    kind = typing.get_args(hint)[0]
    try:
        return tuple(kind(value) for value in values)
    except ValueError:
        raise PlacerError(
            f"--{name} {','.join(values)}: give {kind.__name__} values, comma-separated"
        ) from None
