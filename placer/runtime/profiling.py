"""Op profiles: how long each op of a graph takes on each kind of device, from step stats."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placer.costs import profile_from_steps
from placer.errors import PlacerError
from placer.protos import profile_pb2
from placer.runtime.measurement import MeasurementProtocol
from placer.runtime.runner import Runner
from placer.runtime.step_stats import op_frame

if TYPE_CHECKING:
    from tensorflow.core.protobuf import config_pb2

    from placer.problem import PlacementProblem

DEFAULT_STEPS = 5
_WARM_UP = MeasurementProtocol(warm_up=2, steps=1, stop_ratio=0.0, repeats=0)


def profile(
    runner: Runner, problem: PlacementProblem, steps: int = DEFAULT_STEPS
) -> profile_pb2.GraphProfile:
    """Profiles a graph on every distinct device model of a topology.

    For each model, all of the graph that may be runs on that model's first device. Twice `steps`
    steps are traced and those in which ops took longest together are left out: another process
    has interrupted them.

    Args:
      runner: of the problem's graph on its topology.
      problem: says what may run where.
      steps: how many steps to average over.

    Returns:
      Times per op and model, as `placer.costs.profile_from_steps` makes them.

    Raises:
      PlacerError: if the graph does not run on one of the models, or steps is not positive.
    """
    if steps < 1:
        raise PlacerError(f"profile: steps={steps}; give at least 1")
    topology = problem.topology
    result = profile_pb2.GraphProfile(graph_fingerprint=problem.graph.fingerprint)
    for k, model in enumerate(topology.models):
        device = int(np.flatnonzero(topology.device_model == k)[0])
        placement = problem.repair(np.full(problem.graph.num_ops, device, np.int32))
        measured = runner.measure(placement, _WARM_UP, keep_step_stats=2 * steps)
        if measured.failure is not None:
            raise PlacerError(f"cannot profile on {model.name}: {measured.failure}")
        undisturbed = sorted(measured.traced_steps, key=_op_time)[:steps]
        found = profile_from_steps(problem.graph, topology, undisturbed)
        result.devices.extend(d for d in found.devices if d.model == model.name)
    return result


def _op_time(metadata: config_pb2.RunMetadata) -> float:
    return float(op_frame(metadata)["duration"].sum())
