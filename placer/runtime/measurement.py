"""What a measurement is: how it is taken, and what comes back."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from placer.errors import PlacerError

if TYPE_CHECKING:
    from tensorflow.core.protobuf import config_pb2


@dataclasses.dataclass(frozen=True)
class MeasurementProtocol:
    """How a placement is measured.

    Attributes:
      warm_up: steps that are run first and not counted, at least 1: the first step of a session
        also builds executors and kernels.
      steps: steps that are timed.
      stop_ratio: after two timed steps, stop if even the fastest took this many times the best
        step time so far; 0 never stops early.
      repeats: how many times `steps` more are timed while the median and the best step time so
        far are within each other's noise.
    """

    warm_up: int = 1
    steps: int = 5
    stop_ratio: float = 1.5
    repeats: int = 1

    def __post_init__(self) -> None:
        if self.warm_up < 1 or self.steps < 1 or self.repeats < 0:
            raise PlacerError(
                f"measurement protocol: warm_up={self.warm_up}, steps={self.steps}, "
                f"repeats={self.repeats}; give at least 1, 1 and 0"
            )
        if self.stop_ratio and self.stop_ratio <= 1:
            raise PlacerError(
                f"measurement protocol: stop_ratio={self.stop_ratio}; give more than 1, or 0"
            )


QUICK = MeasurementProtocol()
# Mirhoseini et al. 2017, section 3.3: each placement runs for 15 steps and the first is dropped.
PAPER = MeasurementProtocol(warm_up=1, steps=14, stop_ratio=0.0, repeats=0)
PROTOCOLS = {"quick": QUICK, "paper": PAPER}


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The outcome of running one placement.

    Invariant: exactly one of `steps` (not empty) and `failure` (not None) holds.

    Attributes:
      steps: seconds of each timed step, in order.
      warm_up: seconds of each warm-up step.
      failure: why the placement does not run, in one line; None if it does.
      faults: what went wrong with workers on the way and was repeated on fresh ones; not the
        placement's fault.
      built_seconds: making the session: devices into the graph, the graph into TensorFlow and
        past its placer.
      initialised_seconds: initialising variables, tables and iterators.
      ran_seconds: all steps, warm-up included.
      overhead_seconds: all other time the measurement took, lost attempts included.
      stopped_early: `stop_ratio` stopped it.
      disturbed: the machine was busy with something else all the while, repeats included.
      worker_cpu_seconds: processor time of each worker a timed step, which other processes on
        the machine do not add to; () if workers run elsewhere.
      traced_steps: step stats of further steps that were traced, if asked for.
    """

    steps: tuple[float, ...] = ()
    warm_up: tuple[float, ...] = ()
    failure: str | None = None
    faults: tuple[str, ...] = ()
    built_seconds: float = 0.0
    initialised_seconds: float = 0.0
    ran_seconds: float = 0.0
    overhead_seconds: float = 0.0
    stopped_early: bool = False
    disturbed: bool = False
    worker_cpu_seconds: tuple[float, ...] = ()
    traced_steps: tuple[config_pb2.RunMetadata, ...] = dataclasses.field(default=(), repr=False)

    def __post_init__(self) -> None:
        if bool(self.steps) == (self.failure is not None):
            raise ValueError("a measurement has steps or a failure")

    @property
    def ok(self) -> bool:
        """Whether the placement ran."""
        return self.failure is None

    @property
    def run_metadata(self) -> config_pb2.RunMetadata | None:
        """Step stats of the last traced step, None if none was traced."""
        return self.traced_steps[-1] if self.traced_steps else None

    @property
    def seconds(self) -> float:
        """Median step time; infinity for a failed placement."""
        return float(np.median(self.steps)) if self.steps else float("inf")

    @property
    def total_seconds(self) -> float:
        """Wall-clock time that it took."""
        accounted = self.built_seconds + self.initialised_seconds + self.ran_seconds
        return accounted + self.overhead_seconds

    @property
    def spread_seconds(self) -> float:
        """Interquartile range of the step times; infinity for a failed placement."""
        return spread(self.steps) if self.steps else float("inf")


def joined(sessions: Sequence[Measurement]) -> Measurement:
    """What several sessions of one placement, at least one, came to together.

    Returns:
      The first that failed if one did; else all their steps and times, and the faults of all.
    """
    failed = next((s for s in sessions if not s.ok), None)
    if failed is not None:
        return failed
    return Measurement(
        steps=tuple(x for s in sessions for x in s.steps),
        warm_up=tuple(x for s in sessions for x in s.warm_up),
        faults=tuple(x for s in sessions for x in s.faults),
        built_seconds=sum(s.built_seconds for s in sessions),
        initialised_seconds=sum(s.initialised_seconds for s in sessions),
        ran_seconds=sum(s.ran_seconds for s in sessions),
        overhead_seconds=sum(s.overhead_seconds for s in sessions),
        stopped_early=any(s.stopped_early for s in sessions),
        disturbed=any(s.disturbed for s in sessions),
        worker_cpu_seconds=tuple(
            float(x) for x in np.mean([s.worker_cpu_seconds for s in sessions], axis=0)
        ),
        traced_steps=tuple(x for s in sessions for x in s.traced_steps),
    )


def spread(steps: Sequence[float]) -> float:
    """Interquartile range in seconds; 0 for a single step."""
    low, high = np.percentile(steps, [25, 75])
    return float(high - low)


def standard_error(steps: Sequence[float]) -> float:
    """Standard error of the median in seconds, from the interquartile range.

    For a normal distribution the standard deviation is IQR / 1.349 and the median's standard
    error 1.253 times that of the mean.
    """
    return 1.253 * spread(steps) / 1.349 / float(np.sqrt(len(steps)))
