"""Real step times: running placements on devices, in processes that may die without harm."""

from placer.runtime.backends import resolve
from placer.runtime.measurement import (
    PAPER,
    PROTOCOLS,
    QUICK,
    Measurement,
    MeasurementProtocol,
)
from placer.runtime.runner import Runner, RunnerSettings, open_runner

__all__ = [
    "PAPER",
    "PROTOCOLS",
    "QUICK",
    "Measurement",
    "MeasurementProtocol",
    "Runner",
    "RunnerSettings",
    "open_runner",
    "resolve",
]
