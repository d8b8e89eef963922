"""Op profiles: how long each op of a graph takes on each kind of device, from step stats."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from placer.errors import PlacerError
from placer.graph.fingerprint import fingerprint
from placer.protos import profile_pb2
from placer.runtime.measurement import Measurement, MeasurementProtocol
from placer.runtime.runner import Runner
from placer.runtime.step_stats import op_frame, op_seconds

if TYPE_CHECKING:
    from placer.graph.source import GraphSource

DEFAULT_STEPS = 5


def profile(
    runner: Runner,
    source: GraphSource,
    placements: dict[str, np.ndarray] | None = None,
    steps: int = DEFAULT_STEPS,
) -> profile_pb2.GraphProfile:
    """Profiles a graph on every distinct device model of the runner's topology.

    Args:
      runner: of `source`.
      source: the graph.
      placements: device model's name -> int32[N], a placement that runs as much of the graph as
        it can on a device of that model; by default all of it on the model's first device.
      steps: how many steps to average over.

    Returns:
      One OpProfile a model. Ops are counted on devices of that model alone.

    Raises:
      PlacerError: if a placement does not run.
    """
    topology = runner.topology
    result = profile_pb2.GraphProfile(graph_fingerprint=fingerprint(source.graph_def))
    for k, model in enumerate(topology.models):
        device = int(np.flatnonzero(topology.device_model == k)[0])
        placement = (placements or {}).get(model.name, np.full(runner.num_nodes, device, np.int32))
        protocol = MeasurementProtocol(warm_up=2, steps=1, stop_ratio=0.0, repeats=0)
        measured = runner.measure(placement, protocol, keep_step_stats=steps)
        if measured.failure is not None:
            raise PlacerError(f"cannot profile on {model.name}: {measured.failure}")
        here = [
            name
            for name, number in zip(runner.session_devices, topology.device_model, strict=True)
            if number == k
        ]
        result.devices.append(op_profile(model.name, measured, set(here)))
    return result


def op_profile(model: str, measured: Measurement, devices: set[str]) -> profile_pb2.OpProfile:
    """The profile of the ops that ran on `devices` (full names) in traced steps."""
    traced = measured.traced_steps
    times = op_seconds(traced, devices)
    frame = op_frame(traced[-1])
    frame = frame[frame["device"].isin(devices)]
    runs = Counter(frame["op"])
    output = frame.groupby("op")["bytes"].max()
    temporary = frame.groupby("op")["temporary_bytes"].max()
    found = profile_pb2.OpProfile(model=model, steps=len(traced))
    for op in sorted(runs):
        found.ops.append(op)
        found.mean_seconds.append(float(np.mean(times[op])))
        found.stddev_seconds.append(float(np.std(times[op])))
        found.runs_per_step.append(float(runs[op]))
        found.output_bytes.append(int(output[op]))
        found.temporary_bytes.append(int(temporary[op]))
    return found
