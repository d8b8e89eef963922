"""How long the pass takes, against the set-up of a session on a graph of 13,000 nodes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cases import training_graph
from benchmarks.plugin import IDLE_SHARE, MATCHED_SHARE, contiguous_placement

DEVICES = tuple(f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(2))


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What a fresh process answers to each state; the idle one, the first, warms it up."""
    folder: Path = tmp_path_factory.mktemp("setup")
    meta = training_graph("inception_v3", "tiny")
    files = folder / "graph.pb", folder / "placement.pb"
    files[0].write_bytes(meta.SerializeToString())
    contiguous_placement(meta, names=DEVICES).save(files[1])
    states = ["idle", "no match", "matched", "whole"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.plugin_setup", *map(str, files)],
        input="\n".join(states),
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return dict(zip(states, answers, strict=True))


def test_a_matched_graph_costs_under_a_twentieth_of_set_up(seen: dict[str, Any]) -> None:
    matched, whole = seen["matched"], seen["whole"]
    assert matched["moved"] > 1000
    assert matched["pass_seconds"] < MATCHED_SHARE * matched["setup_seconds"]
    # Had the session not pruned it, twice as TensorFlow hands it over twice.
    assert whole["pass_nodes"] > 12_500
    assert 2 * whole["pass_seconds"] < MATCHED_SHARE * matched["setup_seconds"]


def test_a_graph_that_nothing_matches_costs_under_a_hundredth(seen: dict[str, Any]) -> None:
    other = seen["no match"]
    assert other["pass_nodes"] > 5000
    assert other["moved"] == 0
    assert 0 < other["pass_seconds"] < IDLE_SHARE * other["setup_seconds"]


def test_loaded_and_idle_the_pass_sees_no_graph(seen: dict[str, Any]) -> None:
    assert seen["idle"]["pass_seconds"] == 0
    assert seen["idle"]["pass_nodes"] == 0
