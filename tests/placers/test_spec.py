"""Options of placers, and errors for the person who sets them."""

from __future__ import annotations

import dataclasses
import sys

import pytest

from placer.errors import PlacerError
from placer.placers import PLACERS, get
from tests.placers.problems import make_problem, make_search


def test_options_are_converted() -> None:
    spec = get("annealing")
    parameters = spec.make_parameters(["chains=3", "first_temperature=0.5", "use_cpu=yes"])
    assert (parameters.chains, parameters.first_temperature, parameters.use_cpu) == (3, 0.5, True)
    assert parameters.evaluations is None
    assert spec.make_parameters({"evaluations": "none"}).evaluations is None
    assert spec.make_parameters({"evaluations": "12"}).evaluations == 12
    assert get("m_etf").make_parameters(["coplacement=groups"]).coplacement == "groups"


@pytest.mark.parametrize(
    ("name", "option", "said"),
    [
        ("annealing", "chains", "write it as name=value"),
        ("annealing", "chain=3", "has no option 'chain'"),
        ("annealing", "chains=two", "give a whole number"),
        ("annealing", "chains=2.5", "give a whole number"),
        ("annealing", "chains=0", "give at least 1"),
        ("annealing", "first_temperature=nan", "give a number"),
        ("annealing", "use_cpu=maybe", "give true or false"),
        ("m_etf", "coplacement=magic", "give one of"),
        ("m_etf", "memory_headroom=2", "give at most"),
        ("single_gpu", "chains=1", "it has no options"),
    ],
)
def test_bad_options_are_refused(name: str, option: str, said: str) -> None:
    with pytest.raises(PlacerError, match=said):
        get(name).make_parameters([option])


def test_an_unknown_name_lists_the_names() -> None:
    with pytest.raises(PlacerError, match=r"'anealing'.*annealing"):
        get("anealing")


@pytest.mark.parametrize("spec", PLACERS.values(), ids=lambda s: s.name)
def test_every_placer_is_described(spec: object) -> None:
    assert spec.summary  # type: ignore[attr-defined]
    assert spec.citation  # type: ignore[attr-defined]
    fields = dataclasses.fields(spec.parameters)  # type: ignore[attr-defined]
    assert [row[0] for row in spec.describe()] == [f.name for f in fields]  # type: ignore[attr-defined]
    assert all(row[2] for row in spec.describe())  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "module"), [("scotch", "scotchpy"), ("mincut", "scotchpy"), ("metis", "pymetis")]
)
def test_a_missing_package_is_named(
    name: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # None in sys.modules is how Python itself marks a module that cannot be imported.
    monkeypatch.setitem(sys.modules, module, None)
    spec = get(name)
    with pytest.raises(PlacerError, match=r"pip install 'placer\[partition\]'"):
        spec.run(make_search(make_problem([], [1e-3])), spec.make_parameters())
