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
    for rounds in (2, 4, 8):
        inside = 0
        for _ in range(400):
            a, b = (
                [
                    s * generator.lognormal(0, 0.02) * generator.lognormal(0, 0.05, 10)
                    for _ in range(rounds)
                ]
                for s in (1.2, 1.0)
            )
            ratio, low, high = ratio_interval(a, b, 0.95)
            inside += low <= 1.2 <= high
            assert low < ratio < high
        # Of 400, 380 are expected, give or take 4.4.
        assert 363 <= inside <= 396


def test_drift_of_the_machine_cancels() -> None:
    generator = np.random.default_rng(1)
    drift = generator.lognormal(0, 0.3, 6)
    a = [1.2 * d * generator.lognormal(0, 0.01, 10) for d in drift]
    b = [d * generator.lognormal(0, 0.01, 10) for d in drift]
    ratio, low, high = ratio_interval(a, b, 0.95)
    assert 1.18 < low < ratio < high < 1.22


def test_the_faster_placement_is_found(workers: Runner, chains: GraphSource) -> None:
    result = compare(workers, everywhere(chains, 0), split_chains(chains), rounds=3, steps=8)
    assert result.ratio == pytest.approx(result.a_seconds / result.b_seconds, rel=0.1)
    assert result.low > 1
    assert "B is" in result.verdict


@pytest.mark.parametrize("bad", [{"rounds": 1}, {"steps": 0}, {"confidence": 1.0}])
def test_bad_arguments(workers: Runner, chains: GraphSource, bad: dict) -> None:
    placement = everywhere(chains, 0)
    with pytest.raises(PlacerError, match="compare"):
        compare(workers, placement, placement, **bad)
