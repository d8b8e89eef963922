"""Facts about one placement in one case: what runs where, and what its step time comes from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from benchmarks.cases import Case
from placer.devices import Topology, short_device_names
from placer.report import find_layers, layer_seconds
from placer.simulator import SpanKind
from placer.simulator.build import build_simulator

# Factors on the cost of transfers that are tried, the last as good as any.
LINK_FACTORS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0)


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a step under a placement consists of.

    Attributes:
      cpu_share: CPUs' part of all compute time.
      gpu_busy: mean part of the step in which a GPU that runs anything computes; 0 if none does.
      gpus_used: how many GPUs run at least a hundredth of the compute time.
      crossing_tensors, crossing_gib: what is sent between devices.
      path_transfer_share: part of the critical path that is transfers.
      free_transfer_seconds: step time of the same placement with transfers that cost nothing.
      where: in words, the layers that most of each device's compute time goes to.
    """

    cpu_share: float
    gpu_busy: float
    gpus_used: int
    crossing_tensors: int
    crossing_gib: float
    path_transfer_share: float
    free_transfer_seconds: float
    where: str


def placement_facts(case: Case, placement: np.ndarray) -> Facts:
    """The facts of a placement, int32[N], from a simulation of it and two that vary it."""
    problem = case.problem
    topology = problem.topology
    trace = case.simulator.simulate(placement)
    busy = trace.busy_seconds / np.array([d.concurrency for d in topology.devices])
    total = float(busy.sum()) or 1.0
    cpu = np.array([d.model.type == "CPU" for d in topology.devices])
    used = ~cpu & (busy > 0.01 * total)
    path = trace.critical_path()
    moving = sum(step.end - step.start for step in path if step.kind != SpanKind.OP)
    wires = (trace.spans.kind == SpanKind.WIRE) & (trace.spans.tensor >= 0)
    return Facts(
        cpu_share=float(busy[cpu].sum()) / total,
        gpu_busy=float(busy[used].mean() / trace.step_seconds) if used.any() else 0.0,
        gpus_used=int(used.sum()),
        crossing_tensors=int(wires.sum()),
        crossing_gib=float(trace.transfer_bytes.sum()) / 2**30,
        path_transfer_share=moving / trace.step_seconds,
        free_transfer_seconds=_step_seconds(case, placement, topology.with_free_transfers()),
        where=_where(case, placement, busy > 0.01 * total),
    )


def _step_seconds(case: Case, placement: np.ndarray, topology: Topology) -> float:
    problem = dataclasses.replace(case.problem, topology=topology)
    return float(build_simulator(problem).evaluate(placement[None]).step_seconds[0])


def link_factor(
    case: Case, placement: np.ndarray, is_as_slow: Callable[[float], bool]
) -> float | None:
    """The least of LINK_FACTORS on all costs of transfers at which `is_as_slow(step seconds)`."""
    for factor in LINK_FACTORS:
        topology = case.problem.topology.with_scaled_links(factor)
        if is_as_slow(_step_seconds(case, placement, topology)):
            return factor
    return None


def _where(case: Case, placement: np.ndarray, shown: np.ndarray) -> str:
    """ "GPU:0 60 % (encoder, softmax), GPU:1 40 % (decoder)": parts of all compute time."""
    layers = find_layers(case.problem)
    seconds = layer_seconds(case.problem, placement, layers).sum(axis=1)
    names = short_device_names(case.problem.topology.device_names)
    parts = []
    for device in np.flatnonzero(shown):
        column = seconds[:, device]
        most = [r for r in np.argsort(-column, kind="stable")[:2] if column[r] > 0]
        parts.append(
            f"{names[device]} {column.sum() / seconds.sum():.0%} "
            f"({', '.join(layers.names[r] for r in most)})"
        )
    return ", ".join(parts)
