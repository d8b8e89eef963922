"""PlacerSpec: name, source, parameters and entry point of a placer."""

from __future__ import annotations

import dataclasses
import importlib.util
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from placer.errors import PlacerError

if TYPE_CHECKING:
    from placer.search.state import Search

# Metadata key under which a parameter's documentation, bounds and choices are kept.
_HELP, _LEAST, _MOST, _CHOICES = "help", "least", "most", "choices"


def parameter(
    default: Any,
    help: str,
    *,
    least: float | None = None,
    most: float | None = None,
    choices: Sequence[str] | None = None,
) -> Any:
    """A field of a placer's parameters: its default, what it means, and what values it takes."""
    return dataclasses.field(
        default=default,
        metadata={_HELP: help, _LEAST: least, _MOST: most, _CHOICES: choices},
    )


@dataclasses.dataclass(frozen=True)
class NoParameters:
    """Parameters of placers that have none."""


@dataclasses.dataclass(frozen=True)
class PlacerSpec:
    """One algorithm.

    Attributes:
      name: what `--method` calls it.
      summary: one line.
      citation: where the algorithm comes from.
      parameters: frozen dataclass, made of `parameter` fields.
      run: evaluates proposals through the search until it is done or `search.stopped()`. Its
        random choices follow from `search.seed` alone.
      extra: pip extra that it needs, "" for none.
      module: the module of that extra that it imports.
    """

    name: str
    summary: str
    citation: str
    parameters: type
    run: Callable[[Search, Any], None]
    extra: str = ""
    module: str = ""

    @property
    def installed(self) -> bool:
        """Whether the optional package that it needs, if any, is there."""
        return not self.module or importlib.util.find_spec(self.module) is not None

    def describe(self) -> list[tuple[str, str, str]]:
        """(name, default, help) of each parameter."""
        return [
            (f.name, str(f.default), str(f.metadata[_HELP]))
            for f in dataclasses.fields(self.parameters)
        ]

    def make_parameters(self, options: Mapping[str, Any] | Sequence[str] = ()) -> Any:
        """Parameters from options, checked against their types and bounds.

        Args:
          options: {name: value} or "name=value" strings.

        Raises:
          PlacerError: for an unknown name or a value of the wrong type or out of bounds.
        """
        pairs: dict[str, Any] = {}
        if isinstance(options, Mapping):
            pairs.update(options)
        else:
            for option in options:
                key, equals, value = option.partition("=")
                if not equals or not key.strip():
                    raise PlacerError(
                        f"option {option!r} of method {self.name!r}: write it as name=value"
                    )
                pairs[key.strip()] = value.strip()
        fields = {f.name: f for f in dataclasses.fields(self.parameters)}
        hints = typing.get_type_hints(self.parameters)
        values = {}
        for key, value in pairs.items():
            if key not in fields:
                known = ", ".join(fields) or "no options"
                raise PlacerError(f"method {self.name!r} has no option {key!r}; it has {known}")
            values[key] = _convert(self.name, fields[key], hints[key], value)
        return self.parameters(**values)


_TRUE, _FALSE = ("true", "yes", "1", "on"), ("false", "no", "0", "off")


def _convert(method: str, field: dataclasses.Field, kind: Any, value: Any) -> Any:
    """`value` as the type `kind` of a field; PlacerError if it is not one or out of bounds."""
    where = f"option {field.name}={value} of method {method!r}"
    if isinstance(kind, types.UnionType):
        if value is None or (isinstance(value, str) and value.lower() == "none"):
            return None
        kind = next(k for k in typing.get_args(kind) if k is not type(None))
    if kind is bool:
        text = str(value).lower()
        if text not in _TRUE + _FALSE:
            raise PlacerError(f"{where}: give true or false")
        return text in _TRUE
    if kind is str:
        choices = field.metadata[_CHOICES]
        if choices and value not in choices:
            raise PlacerError(f"{where}: give one of {', '.join(choices)}")
        return str(value)
    try:
        number = kind(value)
        if (isinstance(value, float) and number != value) or number != number:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        noun = "a whole number" if kind is int else "a number"
        raise PlacerError(f"{where}: give {noun}") from None
    least, most = field.metadata[_LEAST], field.metadata[_MOST]
    if least is not None and number < least:
        raise PlacerError(f"{where}: give at least {least}")
    if most is not None and number > most:
        raise PlacerError(f"{where}: give at most {most}")
    return number
