"""placer methods."""

from __future__ import annotations

import pytest
from absl import flags

from placer.cli import methods
from placer.errors import PlacerError
from placer.placers import PLACERS


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    flag_values = flags.FlagValues()
    methods.define_flags(flag_values)
    assert methods.run(list(arguments), flag_values) == 0
    return capsys.readouterr().out


def test_every_method_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    listed = run(capsys)
    for name in ("auto", "policy", *PLACERS):
        assert name in listed


def test_one_method_is_told_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    told = run(capsys, "annealing", "policy")
    assert "FlexFlow" in told
    assert "first_temperature" in told
    assert "learning_rate" in told


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(PlacerError, match=r"unknown method 'magic'.*annealing"):
        methods.run(["magic"], flags.FlagValues())
