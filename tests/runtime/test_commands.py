"""The commands that run graphs for real: compare, profile, calibrate, worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from placer.cli.main import main
from placer.costs import load_profile
from placer.graph import write_devices
from placer.graph.fingerprint import fingerprint
from placer.runtime import resolve
from tests.runtime.graphs import everywhere, split_chains, two_chains


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Graph files: as it came, everything on worker 0, and split between two."""
    source = two_chains()
    directory = tmp_path_factory.mktemp("graphs")
    names = resolve("workers:2")[0].device_names
    files = {}
    for name, placement in (
        ("graph", None),
        ("one", everywhere(source, 0)),
        ("two", split_chains(source)),
    ):
        if placement is not None:
            write_devices(source.graph_def, [names[d] for d in placement])
        path = directory / f"{name}.pb"
        path.write_bytes(source.graph_def.SerializeToString())
        files[name] = str(path)
    return files


def test_compare_says_which_is_faster(
    files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--devices=workers:2", "--fetch=out", "--rounds=2", "--steps=8"]
    assert main(["compare", files["graph"], files["one"], files["two"], *arguments]) == 0
    out = capsys.readouterr().out
    assert "ms a step" in out
    assert "95 % interval" in out


def test_profile_writes_what_ops_took(files: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "profile.pb"
    arguments = ["--devices=workers:2", "--fetch=out", "--steps=2", f"--output={path}"]
    assert main(["profile", files["graph"], *arguments]) == 0
    found = load_profile(path)
    assert found.graph_fingerprint == fingerprint(two_chains().graph_def)
    assert sum("MatMul" in op for op in found.devices[0].ops) == 40


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["compare", "a.pb"], "takes GRAPH A B"),
        (["profile", "a.pb"], "needs --output"),
        (["calibrate"], "needs --output"),
        (["calibrate", "--output=/nowhere/here.pbtxt"], "no directory"),
        (["worker"], "needs --port"),
        (["worker", "--port=70000"], "port"),
    ],
)
def test_what_is_missing_is_said(
    arguments: list[str], wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert wanted in error
    assert len(error.strip().splitlines()) == 1
