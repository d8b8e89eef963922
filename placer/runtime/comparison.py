"""Interleaved comparison of two placements, with a confidence interval."""

from __future__ import annotations

import dataclasses

import numpy as np

from placer.errors import PlacerError
from placer.runtime.measurement import Measurement, MeasurementProtocol
from placer.runtime.runner import Runner

_RESAMPLES = 4000


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two placements measured in turns.

    Attributes:
      a_seconds, b_seconds: median step times.
      ratio: a_seconds / b_seconds; above 1, B is faster.
      low, high: bounds of the confidence interval of `ratio`.
      confidence: of the interval, such as 0.95.
      a, b: the measurements, one a round.
    """

    a_seconds: float
    b_seconds: float
    ratio: float
    low: float
    high: float
    confidence: float
    a: tuple[Measurement, ...] = dataclasses.field(repr=False)
    b: tuple[Measurement, ...] = dataclasses.field(repr=False)

    @property
    def verdict(self) -> str:
        """One line for a person."""
        if self.low > 1:
            return f"B is {self.ratio:.3f} times faster than A"
        if self.high < 1:
            return f"A is {1 / self.ratio:.3f} times faster than B"
        return "no difference beyond the noise"


def compare(
    runner: Runner,
    a: np.ndarray,
    b: np.ndarray,
    rounds: int = 4,
    steps: int = 10,
    confidence: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """Measures A and B in turns (A B, B A, A B, ...), so that drift of the machine hits both.

    The interval is a bootstrap of the ratio of medians. It resamples rounds and then steps within
    them, because steps of one session resemble each other more than those of two.

    Args:
      runner: of the graph.
      a: int32[N].
      b: int32[N].
      rounds: sessions of each, at least 2.
      steps: timed steps a session.
      confidence: of the interval, between 0 and 1.
      seed: of the bootstrap.

    Raises:
      PlacerError: if either does not run, or an argument is out of range.
    """
    if rounds < 2 or steps < 1 or not 0 < confidence < 1:
        raise PlacerError(
            f"compare: rounds={rounds}, steps={steps}, confidence={confidence}; give at least 2 "
            "rounds, 1 step and a confidence between 0 and 1"
        )
    protocol = MeasurementProtocol(steps=steps, stop_ratio=0.0, repeats=0)
    measured: dict[str, list[Measurement]] = {"A": [], "B": []}
    for i in range(rounds):
        turn = [("A", a), ("B", b)]
        for name, placement in turn if i % 2 == 0 else turn[::-1]:
            result = runner.measure(placement, protocol)
            if result.failure is not None:
                raise PlacerError(f"placement {name} does not run: {result.failure}")
            measured[name].append(result)
    times_a, times_b = ([np.array(m.steps) for m in measured[name]] for name in "AB")
    low, high = ratio_interval(times_a, times_b, confidence, seed)
    a_seconds, b_seconds = (float(np.median(np.concatenate(t))) for t in (times_a, times_b))
    return Comparison(
        a_seconds,
        b_seconds,
        a_seconds / b_seconds,
        low,
        high,
        confidence,
        tuple(measured["A"]),
        tuple(measured["B"]),
    )


def ratio_interval(
    a: list[np.ndarray], b: list[np.ndarray], confidence: float, seed: int = 0
) -> tuple[float, float]:
    """Bootstrap interval of median(a) / median(b).

    Args:
      a: step times of each round, in seconds.
      b: the same.
      confidence: between 0 and 1.
      seed: of the resampling.
    """
    generator = np.random.default_rng(seed)
    ratios = _medians(a, generator) / _medians(b, generator)
    tail = 50 * (1 - confidence)
    low, high = np.percentile(ratios, [tail, 100 - tail])
    return float(low), float(high)


def _medians(rounds: list[np.ndarray], generator: np.random.Generator) -> np.ndarray:
    """float64[_RESAMPLES] medians of resampled rounds of resampled steps."""
    count, size = len(rounds), min(len(r) for r in rounds)
    table = np.stack([r[:size] for r in rounds])
    chosen = generator.integers(0, count, (_RESAMPLES, count, 1))
    steps = generator.integers(0, size, (_RESAMPLES, count, size))
    return np.median(table[chosen, steps].reshape(_RESAMPLES, -1), axis=1)
