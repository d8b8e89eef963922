import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from absl import flags

from benchmarks import command, results
from benchmarks.experiment import Outcome, split_list
from benchmarks.quality import Settings
from placer.errors import PlacerError


def test_split_list():
    assert split_list("a,b[c=1,d=2], e,") == ["a", "b[c=1,d=2]", "e"]


def test_every_experiment_has_flags_a_smoke_version_and_a_duration():
    for name, summary in command.EXPERIMENTS.items():
        experiment = command.load(name)
        assert (experiment.name, experiment.summary) == (name, summary)
        values = flags.FlagValues()
        experiment.define_flags(values)
        values(["x"])
        defaults = experiment.settings()
        assert experiment.settings_from(values, defaults) == defaults
        assert isinstance(experiment.smoke, experiment.settings)
        quick, full = (experiment.expected_seconds(s) for s in (experiment.smoke, defaults))
        assert 0 < quick < full


def test_settings_from_flags():
    experiment = command.load("quality")
    values = flags.FlagValues()
    experiment.define_flags(values)
    values(["x", "--methods=auto,policy[preset=icml2017,samples=8]", "--seeds=3,4", "--budget=2"])
    settings = experiment.settings_from(values, experiment.settings())
    assert settings.methods == ("auto", "policy[preset=icml2017,samples=8]")
    assert settings.seeds == (3, 4)
    assert settings.budget == 2.0
    assert settings.rows == Settings().rows


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "no experiment 'nothing'"),
        (["quality", "fast"], "unexpected argument 'fast'"),
        (["quality", "--seeds=one"], "--seeds one: give int values"),
        (["quality", "--budget=soon"], "budget"),
        (["quality", "--colour=red"], "colour"),
        (["quality", "--methods=magic"], "unknown method 'magic'"),
        (["table", "--only=vgg"], "--only vgg"),
        (["measured", "--smoke", "--models=vgg"], "no model 'vgg'"),
        (["explain", "--row=nmt"], "row 'nmt'"),
        (["smoke", "nothing"], "no experiment 'nothing'"),
    ],
)
def test_errors_are_one_line(arguments, message, capsys, tmp_path):
    output = [f"--output={tmp_path}"] if arguments[0] != "smoke" else []
    assert command.main([*arguments, *output]) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1
    assert error[0].startswith("benchmarks: ")
    assert message in error[0]
    assert not list(tmp_path.iterdir())


def test_help_lists_settings(capsys):
    assert command.main(["scale", "--help"]) == 0
    text = capsys.readouterr().out
    assert "--ops" in text
    assert "1000,10000,100000,1000000" in text
    assert command.main([]) == 2
    assert all(name in capsys.readouterr().out for name in ["quality"])


def test_result_files(tmp_path):
    frame = pd.DataFrame({"x": [1, 2], "y": [math.inf, math.nan], "z": [np.float64(0.5), 2.0]})
    outcome = Outcome(
        tables={"main": frame, "other": frame.head(1), "empty": frame.head(0)},
        notes=("a note",),
        files={"a.bin": b"abc"},
    )
    paths = results.write_outcome(
        tmp_path, "quality", ["python"], Settings(), outcome, 1.23, results.describe_run()
    )
    assert {p.name for p in paths} == {
        "quality.json",
        "quality.csv",
        "quality-other.csv",
        "quality-empty.csv",
        "quality-a.bin",
    }
    text = paths[0].read_text()
    assert sum('"x":' in line for line in text.splitlines()) == 3  # a row a line
    record = json.loads(text)
    assert record["tables"]["empty"] == []
    assert record["tables"]["main"] == [
        {"x": 1, "y": "inf", "z": 0.5},
        {"x": 2, "y": None, "z": 2.0},
    ]
    assert record["settings"]["budget"] == 60.0
    assert record["machine"]["cores"] >= 1
    assert record["versions"]["tensorflow"].startswith("2.")
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "quality.csv"), frame)
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    if head.returncode == 0 and Path.cwd() == Path(results.__file__).parents[1]:
        assert record["commit"].startswith(head.stdout.strip())


def test_unwritable_directory(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    outcome = Outcome(tables={"main": pd.DataFrame({"x": [1]})})
    with pytest.raises(PlacerError, match="cannot make directory"):
        results.write_outcome(blocked, "quality", [], Settings(), outcome, 0.0, {})


def test_failures_give_exit_code_1(monkeypatch, tmp_path, capsys):
    experiment = command.load("quality")
    frame = pd.DataFrame({"x": [1]})
    broken = Outcome(tables={"main": frame}, failures=("policy on nmt:2: crashed",))
    object.__setattr__(experiment, "run", lambda settings: broken)
    try:
        assert command.main(["quality", "--smoke", f"--output={tmp_path}"]) == 1
    finally:
        from benchmarks import quality

        object.__setattr__(experiment, "run", quality.run)
    assert "FAILED: policy" in capsys.readouterr().err
    assert json.loads((tmp_path / "quality.json").read_text())["failures"]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (
            ["quality", "--methods=annealing,single_gpu", "--budget=0.3"],
            {"quality-anytime.svg", "quality-history.csv"},
        ),
        (
            ["explain", "--method=annealing", "--budget=0.3"],
            {
                "explain-devices.png",
                "explain-annealing-placement.svg",
                "explain-expert-timeline.json",
            },
        ),
    ],
)
def test_smoke_of_cheap_experiments(arguments, names, tmp_path, capsys):
    assert command.main([*arguments, "--smoke", f"--output={tmp_path}"]) == 0
    written = {p.name for p in tmp_path.iterdir()}
    assert names | {f"{arguments[0]}.json"} <= written
    assert all(p.stat().st_size for p in tmp_path.iterdir())
    text = capsys.readouterr().out
    assert "on two cores" in text.splitlines()[0]


def test_as_a_program():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "nothing"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.strip().startswith("benchmarks: no experiment 'nothing'")
    assert "Traceback" not in done.stderr
