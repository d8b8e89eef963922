"""Interleaved comparison."""

from __future__ import annotations

import numpy as np
import pytest

from placer.errors import PlacerError
from placer.graph.source import GraphSource
from placer.runtime import Runner
from placer.runtime.comparison import compare, ratio_interval
from tests.runtime.graphs import everywhere, split_chains


def test_the_interval_covers_the_true_ratio() -> None:
    generator = np.random.default_rng(0)
    inside = 0
    for _ in range(60):
        a, b = (
            [s * generator.lognormal(0, 0.02) * generator.lognormal(0, 0.05, 10) for _ in range(6)]
            for s in (1.2, 1.0)
        )
        low, high = ratio_interval(a, b, 0.95)
        inside += low <= 1.2 <= high
        assert low < high
    assert inside >= 51


def test_the_faster_placement_is_found(workers: Runner, chains: GraphSource) -> None:
    result = compare(workers, everywhere(chains, 0), split_chains(chains), rounds=3, steps=8)
    assert result.ratio == pytest.approx(result.a_seconds / result.b_seconds)
    assert result.low > 1
    assert "B is" in result.verdict


@pytest.mark.parametrize("bad", [{"rounds": 1}, {"steps": 0}, {"confidence": 1.0}])
def test_bad_arguments(workers: Runner, chains: GraphSource, bad: dict) -> None:
    placement = everywhere(chains, 0)
    with pytest.raises(PlacerError, match="compare"):
        compare(workers, placement, placement, **bad)
