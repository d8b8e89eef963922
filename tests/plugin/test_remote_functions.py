"""tf.functions on two gRPC workers under the plugin of the client."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

WORKERS = [f"/job:worker/replica:0/task:{i}/device:CPU:0" for i in range(2)]


def check(name: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.plugin.programs.remote_functions", name],
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.stdout, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(("model", "ops"), [("lstm", 100), ("inception", 4000)])
def test_training_step_runs_where_the_placement_says(model: str, ops: int) -> None:
    seen = check(model)
    assert seen["losses"] == seen["base"]
    assert len(set(seen["losses"])) == 3
    assert seen["ran"] > ops
    assert seen["moved"] > 0.8 * seen["ran"]  # The client has it all at first.
    assert seen["elsewhere"] == []
    assert seen["used"] == WORKERS
    assert all(device == wanted for _, device, wanted in seen["variables"])


def test_a_function_called_on_a_worker_is_placed_by_the_plugin_of_that_worker() -> None:
    seen = check("remote_call")
    assert seen["client_graphs"] == 0
    assert seen["losses"][0] == seen["losses"][1]
    active, idle = seen["workers"]
    assert active["matched"] > 0
    assert active["moved"] > 30
    assert idle["matched"] == 0
    assert idle["idle"] > 0
