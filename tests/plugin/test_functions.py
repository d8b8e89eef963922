"""tf.functions under the plugin. Each check runs in a process of its own with three CPU devices."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

CPU = "/job:localhost/replica:0/task:0/device:CPU:"


def check(name: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.plugin.programs.functions", name],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("model", ["conv", "lstm", "inception"])
def test_training_step_runs_where_the_placement_says(model: str) -> None:
    seen = check(model)
    assert seen["losses"] == seen["base"]
    assert seen["unexplained"] == []
    assert len(seen["elsewhere"]) <= 0.05 * seen["ran"]
    assert seen["used"] == [f"{CPU}{i}" for i in range(3)]


def test_variables_are_created_where_the_placement_says() -> None:
    variables = check("conv")["variables"]
    assert all(device == wanted for _, device, wanted in variables)
    assert all(device != f"{CPU}0" for _, device, _ in variables)


def test_inlined_function_keeps_its_placement() -> None:
    seen = check("inlined")
    assert seen["value"] == seen["base"]
    assert seen["moved"] > 0
    assert seen["ran"] > 20
    assert seen["unexplained"] == []


def test_two_graphs_of_a_process_get_their_own_placements() -> None:
    seen = check("two_graphs")
    assert seen["active"] == 2
    assert seen["after"] == 0
    for kind in ("conv", "lstm"):
        assert seen[kind]["ran"] > 20
        assert seen[kind]["unexplained"] == []
    assert f"{CPU}2" not in seen["conv"]["used"]
    assert seen["lstm"]["used"] == [f"{CPU}2"]


def test_activation_while_other_threads_run_functions() -> None:
    seen = check("threads")
    assert seen["wrong"] == []
    assert seen["active"] == 0


def test_load_twice_and_fork_after_load() -> None:
    seen = check("fork")
    assert seen["statuses"] == [0] * 5
    assert seen["lines"] == [f"192.0 {CPU}1"] * 5
    assert seen["active"] == 1  # A child's deactivation is its own.


def test_heuristic_spreads_independent_branches_within_its_time() -> None:
    seen = check("heuristic")
    assert seen["value"] == seen["base"]
    assert set(seen["outcomes"]) == {"heuristic"}
    assert len(set(seen["matmuls"])) > 1
    assert seen["gain"] > 1.1
    assert seen["seconds"] < 0.25
