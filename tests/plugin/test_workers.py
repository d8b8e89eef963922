"""A session on two gRPC workers under the plugin."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest


def run(model: str, size: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.plugin.programs.workers", model, size, "0"],
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.stdout, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("model", ["inception_v3", "rnnlm"])
def test_training_step_runs_where_the_placement_says(model: str) -> None:
    seen = run(model, "tiny")
    assert len(seen["devices"]) == 2
    assert seen["moved"] > 50
    assert seen["ran"] > 200
    assert seen["unexplained"] == []
    assert len(seen["elsewhere"]) <= 0.05 * seen["ran"]
    losses = seen["losses"]
    assert losses["plugin"] == losses["annotated"]
    # A fused op rounds otherwise, and the next steps of a small batch make much of it.
    steps = 1 if model == "inception_v3" else 3
    assert losses["plugin"][:steps] == pytest.approx(losses["one"][:steps], rel=1e-6)
