"""What a device model can do at best."""

from __future__ import annotations

from placer.devices import DeviceModel
from placer.errors import PlacerError

# FP32 cores of a multiprocessor by compute capability: "Arithmetic Instructions" table of NVIDIA's
# CUDA C++ Programming Guide; each does a multiply and an add a cycle. Grappler's own table
# (op_level_cost_estimator.cc, GetDeviceInfo) agrees up to 7.5 but for 6.1, and gives 64 to
# everything after, which halves an H100.
_CORES_PER_MULTIPROCESSOR = {
    2: 32,
    3: 192,
    5: 128,
    6: 128,
    7: 64,
    8: 128,
    9: 128,
    10: 128,
    12: 128,
}
_CORES_OF_EXCEPTIONS = {"6.0": 64, "8.0": 64}
_OPERATIONS_PER_MULTIPLY_ADD = 2
# Sustained FP32 operations a cycle and core of a CPU: one 8-wide AVX2 instruction, a quarter of the
# peak of two fused multiply-add units (32). It puts a K80 at 6 times the host of Mirhoseini et al.
# 2017, whose Table 2 measures 5.7 (Inception-V3) and 4.4 (RNNLM) times. Grappler takes 1, which
# would be 50 times.
_CPU_OPERATIONS_PER_CYCLE = 8
# DeviceModel.environment may state the figure instead, per core or multiprocessor.
OPERATIONS_PER_CYCLE = "operations_per_cycle"


def operations_per_second(model: DeviceModel) -> float:
    """FP32 operations a second, a multiply-add being two: cores x clock x operations a cycle.

    Operations a cycle come from `environment["operations_per_cycle"]`, else from
    `environment["architecture"]` (compute capability) for a GPU, else are a CPU's usual 8.

    Raises:
      PlacerError: for an environment that cannot be read.
    """
    environment = dict(model.environment)
    clock = model.num_cores * model.frequency_mhz * 1e6
    stated = environment.get(OPERATIONS_PER_CYCLE)
    if stated is not None:
        try:
            per_cycle = float(stated)
        except ValueError:
            per_cycle = 0.0
        if not 0 < per_cycle < float("inf"):
            raise PlacerError(
                f"device model {model.name!r}: {OPERATIONS_PER_CYCLE} {stated!r} in its "
                "environment is not a positive number"
            )
        return clock * per_cycle
    if model.type == "CPU":
        return clock * _CPU_OPERATIONS_PER_CYCLE
    architecture = environment.get("architecture", "7.0")
    cores = _CORES_OF_EXCEPTIONS.get(architecture)
    if cores is None:
        major = architecture.partition(".")[0]
        if not major.isdecimal():
            raise PlacerError(
                f"device model {model.name!r}: architecture {architecture!r} in its environment is "
                'not a compute capability such as "7.0"'
            )
        known = [m for m in _CORES_PER_MULTIPROCESSOR if m <= int(major)]
        cores = _CORES_PER_MULTIPROCESSOR[max(known, default=2)]
    return clock * cores * _OPERATIONS_PER_MULTIPLY_ADD
