"""Single-CPU and Single-GPU: the whole graph on one device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placer.placers.spec import NoParameters, PlacerSpec

if TYPE_CHECKING:
    from placer.search.state import Search


def _run_single_cpu(search: Search, parameters: NoParameters) -> None:
    """Evaluates everything on each CPU; ops without a CPU kernel stay where they may run."""
    _run_each(search, "CPU", "single_cpu")


def _run_single_gpu(search: Search, parameters: NoParameters) -> None:
    """Evaluates everything on each accelerator; ops that may not run there go beside it."""
    _run_each(search, "GPU", "single_gpu")


def _run_each(search: Search, kind: str, source: str) -> None:
    topology = search.problem.topology
    devices = [
        i
        for i, device in enumerate(topology.devices)
        if (device.model.type == "CPU") == (kind == "CPU")
    ]
    # A machine without the wanted kind: its only kind stands in.
    devices = devices or list(range(topology.num_devices))
    devices = devices[: max(1, search.room(len(devices)))]
    search.evaluate(np.stack([search.problem.single_device(d) for d in devices]), source)


SPECS = (
    PlacerSpec(
        "single_cpu",
        "everything on one CPU; ops without a CPU kernel on the device they need",
        "Mirhoseini et al., Device Placement Optimization with RL, ICML 2017, section 4.1",
        NoParameters,
        _run_single_cpu,
    ),
    PlacerSpec(
        "single_gpu",
        "everything on one GPU, the best of them; ops without a GPU kernel on the CPU",
        "Mirhoseini et al., Device Placement Optimization with RL, ICML 2017, section 4.1",
        NoParameters,
        _run_single_gpu,
    ),
)
