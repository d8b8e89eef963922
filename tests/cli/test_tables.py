"""What commands print."""

from __future__ import annotations

import pytest

from placer.cli.main import main
from placer.cli.tables import print_rows
from placer.devices import Topology, parse
from placer.placers import PLACERS
from placer.result import Row


def row(topology: Topology, **changes: object) -> Row:
    fields = {
        "name": "graph[auto].pb",
        "step_seconds": 0.25,
        "measured_seconds": None,
        "peak_bytes": tuple((10 + d) * 2**30 for d in range(topology.num_devices)),
        "busy_seconds": (0.0,) * topology.num_devices,
        "transfer_bytes": (0,) * topology.num_devices,
        "infeasible": "",
    }
    return Row(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", ["k80:2", "v100:8x2"])
def test_every_device_and_name_can_be_read(spec: str, capsys: pytest.CaptureFixture[str]) -> None:
    topology = parse(spec)
    rows = [
        row(topology),
        row(topology, name="[/odd]", infeasible="assertion failed: [labels must be less]"),
        row(topology, name="run", measured_seconds=0.5),
    ]
    print_rows(rows, topology, "[graph] on devices")
    out = capsys.readouterr().out
    for text in ("[graph] on", "graph[auto].pb", "[/odd]", "[labels must be less]", "fits", "ran"):
        assert text in out
    for d in range(topology.num_devices):
        assert f"{10 + d}.00" in out
    assert "…" not in out


def test_what_to_install_is_said_in_full(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(type(PLACERS["metis"]), "installed", property(lambda spec: False))
    assert main(["methods"]) == 0
    assert "'placer[partition]'" in capsys.readouterr().out
