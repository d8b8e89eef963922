import csv
import json

import numpy as np
import pytest

from placer.cli.main import main


@pytest.fixture(scope="module")
def graph_file(graph, tmp_path_factory):
    path = tmp_path_factory.mktemp("graph") / "nmt.pb"
    path.write_bytes(graph.SerializeToString())
    return str(path)


def test_explain_writes_everything(graph_file, tmp_path, capsys):
    output = tmp_path / "out"
    assert main(["explain", graph_file, "--devices", "k80:2", "--output", str(output)]) == 0
    names = {p.name for p in output.iterdir()}
    assert names == {
        "placement.png",
        "placement.svg",
        "timeline.png",
        "timeline.svg",
        "timeline.json",
        "layers.csv",
        "devices.csv",
        "critical_path.csv",
    }
    assert all(p.stat().st_size > 100 for p in output.iterdir())
    assert json.loads((output / "timeline.json").read_text())["traceEvents"]
    with open(output / "devices.csv") as file:
        rows = list(csv.DictReader(file))
    assert [r["device"] for r in rows] == ["CPU:0", "GPU:0", "GPU:1"]
    text = capsys.readouterr().out
    assert "critical path" in text


def test_explain_of_a_placed_file_without_pictures(example, graph, graph_file, tmp_path):
    placed = type(graph)()
    placed.CopyFrom(graph)
    names = example.problem.topology.device_names
    for node, device in zip(placed.graph_def.node, example.placement, strict=True):
        node.device = names[device]
    path = tmp_path / "placed.pb"
    path.write_bytes(placed.SerializeToString())
    output = tmp_path / "out"
    arguments = [graph_file, str(path), "--devices=k80:2", f"--output={output}", "--nopictures"]
    assert main(["explain", *arguments]) == 0
    assert not list(output.glob("*.png"))
    with open(output / "devices.csv") as file:
        ops = [int(r["ops"]) for r in csv.DictReader(file)]
    executed = example.placement[example.problem.graph.executed]
    assert ops == np.bincount(executed, minlength=3).tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain"], "takes a GRAPH"),
        (["explain", "GRAPH"], "--output"),
        (["explain", "/nowhere/graph.pb", "--output=OUT"], "cannot read"),
        (["explain", "GRAPH", "--output=OUT", "--layers=1"], "layers"),
        (["explain", "GRAPH", "--output=GRAPH/x"], "cannot write to directory"),
    ],
)
def test_errors_are_one_line(arguments, message, graph_file, tmp_path, capsys):
    words = [
        a.replace("GRAPH", graph_file).replace("OUT", str(tmp_path / "out")) for a in arguments
    ]
    assert main(words) == 2
    error = capsys.readouterr().err
    lines = [line for line in error.splitlines() if line.startswith("placer:")]
    assert len(lines) == 1
    assert message in lines[0]
