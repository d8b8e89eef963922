"""Interleaved comparison of two placements, with a confidence interval."""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy.special import stdtrit

from placer.errors import PlacerError
from placer.runtime.measurement import Measurement, MeasurementProtocol
from placer.runtime.runner import Runner


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two placements measured in turns.

    Attributes:
      a_seconds, b_seconds: median step times over all rounds.
      ratio: of the step times, A's over B's; above 1, B is faster.
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
) -> Comparison:
    """Measures A and B in turns (A B, B A, A B, ...), so that drift of the machine hits both.

    Each round gives one ratio of medians. Their geometric mean is the ratio, and Student's t of
    their logarithms gives the interval: what a session of its own adds to a step time differs from
    round to round, what the machine does in a round is in both times.

    Args:
      runner: of the graph.
      a: int32[N].
      b: int32[N].
      rounds: sessions of each, at least 2.
      steps: timed steps a session.
      confidence: of the interval, between 0 and 1.

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
    ratio, low, high = ratio_interval(times_a, times_b, confidence)
    a_seconds, b_seconds = (float(np.median(np.concatenate(t))) for t in (times_a, times_b))
    return Comparison(
        a_seconds,
        b_seconds,
        ratio,
        low,
        high,
        confidence,
        tuple(measured["A"]),
        tuple(measured["B"]),
    )


def ratio_interval(
    a: list[np.ndarray], b: list[np.ndarray], confidence: float
) -> tuple[float, float, float]:
    """The ratio of paired median step times and its confidence interval.

    Args:
      a: step times of each round, in seconds.
      b: the same, measured in turns with them.
      confidence: between 0 and 1.

    Returns:
      Geometric mean of median(a) / median(b) over the rounds, and the bounds of its interval: 0 and
      infinity after a single round.
    """
    logarithms = np.log([np.median(x) / np.median(y) for x, y in zip(a, b, strict=True)])
    count = len(logarithms)
    mean = float(logarithms.mean())
    if count < 2:
        return float(np.exp(mean)), 0.0, float("inf")
    quantile = float(stdtrit(count - 1, 0.5 + confidence / 2))
    half = quantile * float(logarithms.std(ddof=1)) / np.sqrt(count)
    return float(np.exp(mean)), float(np.exp(mean - half)), float(np.exp(mean + half))
