"""Real step times: running placements on devices, in processes that may die without harm."""

from placer.runtime.backends import resolve
from placer.runtime.comparison import Comparison, compare
from placer.runtime.measurement import (
    PAPER,
    PROTOCOLS,
    QUICK,
    Measurement,
    MeasurementProtocol,
    joined,
)
from placer.runtime.runner import Runner, RunnerSettings, open_runner
from placer.runtime.step_stats import (
    chrome_trace,
    device_frame,
    misplaced_ops,
    op_frame,
    save_chrome_trace,
    transfer_frame,
)

__all__ = [
    "PAPER",
    "PROTOCOLS",
    "QUICK",
    "Comparison",
    "Measurement",
    "MeasurementProtocol",
    "Runner",
    "RunnerSettings",
    "chrome_trace",
    "compare",
    "device_frame",
    "joined",
    "misplaced_ops",
    "op_frame",
    "open_runner",
    "resolve",
    "save_chrome_trace",
    "transfer_frame",
]
