"""Whatever a person gets wrong ends in one line, exit code 2, and nothing written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from placer.cli.main import main
from placer.graph import read, read_text

_CHAIN = """
node { name: "x" op: "Const"
  attr { key: "dtype" value { type: DT_FLOAT } }
  attr { key: "value" value { tensor { dtype: DT_FLOAT tensor_shape { dim { size: 4 } }
    float_val: 1 float_val: 2 float_val: 3 float_val: 4 } } } }
node { name: "y" op: "Tanh" input: "x" attr { key: "T" value { type: DT_FLOAT } } }
node { name: "z" op: "Exp" input: "y" attr { key: "T" value { type: DT_FLOAT } } }
"""
_TANH = '{ name: "%s" op: "Tanh" input: "%s" attr { key: "T" value { type: DT_FLOAT } } }'
_UNKNOWN_SHAPE = """
node { name: "x" op: "Placeholder"
  attr { key: "dtype" value { type: DT_FLOAT } }
  attr { key: "shape" value { shape { unknown_rank: true } } } }
node { name: "y" op: "Tanh" input: "x" attr { key: "T" value { type: DT_FLOAT } } }
"""


def _fails(capfd: pytest.CaptureFixture[str], output: Path, *arguments: str) -> str:
    """Runs `placer optimize`, checks that it fails as it should, and returns its line."""
    code = main(["optimize", "--output", str(output), "--evaluations", "20", *arguments])
    lines = capfd.readouterr().err.strip().splitlines()
    assert code == 2
    assert not output.exists()
    assert len(lines) == 1, lines
    return lines[0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (_CHAIN.replace('input: "y"', 'input: "missing"'), "'missing'"),
        (_CHAIN.replace('"Exp"', '"NoSuchOp"'), "'NoSuchOp'"),
        (_CHAIN + "node " + _TANH % ("y", "x"), "two nodes are called 'y'"),
        (_CHAIN + "node " + _TANH % ("a", "b") + " node " + _TANH % ("b", "a"), "cycle"),
        (_CHAIN.replace('input: "y"', 'input: "y:3"'), "'y:3'"),
        (_CHAIN.replace('op: "Tanh"', 'op: "Tanh" device: "/device:GPU:7"'), "--clear_devices"),
        (_CHAIN.replace('op: "Tanh"', 'op: "Tanh" device: "here"'), "'here'"),
        (_UNKNOWN_SHAPE, "no shape information"),
        ("versions { producer: 1 }", "neither"),
    ],
)
def test_bad_graphs(
    text: str, says: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    graph = tmp_path / "graph.pbtxt"
    graph.write_text(text)
    line = _fails(capfd, tmp_path / "out.pb", str(graph), "--devices", "k80:2")
    assert says in line
    assert "graph.pbtxt" in line


def test_bad_files(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out.pb"
    data = read_text(_CHAIN).SerializeToString()
    for name, content in {
        "truncated.pb": data[: len(data) - 7],
        "random.pb": np.random.default_rng(0).bytes(500),
        "empty.pb": b"",
    }.items():
        path = tmp_path / name
        path.write_bytes(content)
        assert name in _fails(capfd, output, str(path), "--devices", "k80:2")
    assert "absent.pb" in _fails(capfd, output, str(tmp_path / "absent.pb"), "--devices", "k80:2")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--devices", "k80:0"], "k80:0"),
        (["--devices", "abacus:2"], "'abacus:2'"),
        (["--devices", ""], "no devices"),
        (["--devices", "k80:2", "--fetch", "nobody"], "'nobody'"),
        (["--devices", "k80:2", "--fetch", "z:5"], "'z:5'"),
        (["--devices", "k80:2", "--method", "magic"], "'magic'"),
        (["--devices", "k80:2", "--seed", "-1"], "seed"),
        (["--devices", "k80:2", "--evaluations", "0"], "evaluations"),
        (["--devices", "k80:2", "--profile", "absent"], "absent"),
        (["--devices", "k80:2", "--history", "history.xyz"], ".xyz"),
        (["--devices", "k80:2", "--tensorboard", f"{__file__}/events"], "is a file"),
        (["--devices", "k80:2", "--checkpoint_dir", __file__], "is a file"),
        (["--devices", __file__], "test_bad_input.py"),
        (["--devices", "k80:2", "--reward", "praise"], "'praise'"),
        (["--devices", "k80:2", "--budget", "soon"], "budget"),
        (["--devices", "k80:2", "--no_such_flag", "1"], "no_such_flag"),
        (["--devices", "k80:2", "--method", "annealing", "--method_option", "x=1"], "'x'"),
        (["--devices", "k80:2", "--trip_count", "loop"], "--trip_count"),
    ],
)
def test_bad_flags(
    flags: list[str], says: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    graph = tmp_path / "graph.pbtxt"
    graph.write_text(_CHAIN)
    assert says in _fails(capfd, tmp_path / "out.pb", str(graph), *flags)


def test_unwritable_output(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    graph = tmp_path / "graph.pbtxt"
    graph.write_text(_CHAIN)
    output = tmp_path / "nowhere" / "out.pb"
    assert "nowhere" in _fails(capfd, output, str(graph), "--devices", "k80:2")
    absent = tmp_path / "absent.pb"
    assert main(["optimize", str(graph), "--output", str(tmp_path / ("a" * 256))]) == 2
    assert "too long" in capfd.readouterr().err
    for flag in ("--placement", "--history"):
        line = _fails(capfd, absent, str(graph), "--devices", "k80:2", flag, str(absent))
        assert "absent.pb twice" in line


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["evaluate"], "GRAPH"),
        (["evaluate", "GRAPH", "absent.pb", "--devices", "k80:2"], "absent.pb"),
        (["evaluate", "GRAPH", __file__, "--devices", "k80:2"], "test_bad_input.py"),
        (["evaluate", "GRAPH", "OTHER", "--devices", "k80:2"], "no op 'z'"),
        (["optimize", "GRAPH", "--devices", "k80:2"], "--output"),
        (["optimize", "GRAPH", "OTHER", "--output", "o.pb"], "one GRAPH"),
        (["devices", "k80"], "'k80'"),
        (["nonsense"], "'nonsense'"),
    ],
)
def test_other_commands(
    arguments: list[str], says: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    graph, other = tmp_path / "graph.pbtxt", tmp_path / "other.pbtxt"
    graph.write_text(_CHAIN)
    other.write_text(_CHAIN.replace('"z"', '"q"'))
    paths = {"GRAPH": str(graph), "OTHER": str(other)}
    assert main([paths.get(a, a) for a in arguments]) == 2
    lines = capfd.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert says in lines[0]


@pytest.mark.parametrize("device", ["/device:GPU:7", "here"])
def test_clear_devices_and_good_input_work(device: str, tmp_path: Path) -> None:
    graph, output = tmp_path / "graph.pbtxt", tmp_path / "out.pb"
    graph.write_text(_CHAIN.replace('op: "Tanh"', f'op: "Tanh" device: "{device}"'))
    arguments = [str(graph), "--devices", "k80:2", "--output", str(output), "--budget", "2"]
    assert main(["optimize", *arguments, "--clear_devices"]) == 0
    assert all(node.device for node in read(output).graph_def.node)
    assert main(["evaluate", str(graph), str(output), "--devices", "k80:2", "--clear_devices"]) == 0


def test_ctrl_c_before_anything_was_found_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("placer.optimizer.prepare", interrupted)
    output = tmp_path / "placed.pb"
    assert main(["optimize", "graph.pb", "--devices=k80:2", f"--output={output}"]) == 130
    error = capfd.readouterr().err
    assert error == "placer: interrupted: nothing was found yet, nothing is written\n"
    assert not output.exists()
