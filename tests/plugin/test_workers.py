"""A session on two gRPC workers under the plugin, as the benchmark of the plugin runs it."""

from __future__ import annotations

import pytest

from benchmarks.cases import training_graph
from benchmarks.plugin import contiguous_placement, run_workers

WORKERS = [f"/job:worker/replica:0/task:{i}/device:CPU:0" for i in range(2)]


@pytest.mark.parametrize("model", ["inception_v3", "rnnlm"])
def test_training_step_runs_where_the_placement_says(model: str) -> None:
    meta = training_graph(model, "tiny")
    seen = run_workers(meta, contiguous_placement(meta), rounds=1, steps=0)
    assert seen["used"] == WORKERS
    assert seen["moved"] > 50
    assert seen["ran"] > 200
    assert seen["unexplained"] == []
    assert len(seen["elsewhere"]) <= 0.05 * seen["ran"]
    losses = seen["losses"]
    assert losses["plugin"] == losses["annotated"]
    # A fused op rounds otherwise, and the next steps of a small batch make much of it.
    steps = 1 if model == "inception_v3" else 3
    assert losses["plugin"][:steps] == pytest.approx(losses["unplaced"][:steps], rel=1e-6)
