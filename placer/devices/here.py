"""The devices of this machine: what TensorFlow sees, and pinned gRPC workers."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from placer.devices import catalogue
from placer.devices.topology import (
    Device,
    DeviceModel,
    Link,
    LinkRule,
    Sharing,
    Topology,
    first_cpu,
)
from placer.errors import PlacerError

# A loopback gRPC link between two workers, before `placer calibrate` has measured this machine's.
LOOPBACK = Link(
    latency_seconds=8e-5,
    bytes_per_second=3.5e9,
    sharing=Sharing.PAIR,
    send_cpu_seconds=8e-5,
    send_cpu_seconds_per_byte=2e-10,
    receive_cpu_seconds=4e-5,
    receive_cpu_seconds_per_byte=3.3e-10,
)
# By what fraction two workers slow each other, before it has been measured.
_CONTENTION = 0.1
# Logical devices of one process share memory: TensorFlow copies no bytes between CPUs.
_IN_PROCESS = Link(5e-6, 1e11, Sharing.PAIR)
_LAUNCH_SECONDS = 5e-6


def host_memory_bytes() -> int:
    """Physical memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _operations_per_cycle() -> int:
    """Floating-point operations a cycle and core that this processor's kernels sustain.

    Half of the peak of two fused multiply-add units of the widest vectors it has.
    """
    try:
        flags = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        flags = set()
    return 32 if "avx512f" in flags else 16 if "fma" in flags else 4


def cpu_model(cores: int, name: str) -> DeviceModel:
    """A model of `cores` cores of this machine's processor."""
    frequency = 2500.0
    try:
        found = re.search(r"^cpu MHz\s*:\s*([\d.]+)", Path("/proc/cpuinfo").read_text(), re.M)
        if found:
            # Rounded: the reading wavers, and a topology should compare equal to itself.
            frequency = round(float(found.group(1)), -2)
    except OSError:
        pass
    return DeviceModel(
        name,
        "CPU",
        frequency_mhz=frequency,
        num_cores=cores,
        bytes_per_second=10e9 * cores,
        memory_bytes=host_memory_bytes(),
        environment=(("operations_per_cycle", str(_operations_per_cycle())),),
        launch_seconds=_LAUNCH_SECONDS,
        source="this machine: /proc/cpuinfo, sysconf",
    )


# Device files of NVIDIA's driver, on Linux and on Windows' subsystem for it.
_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/dxg"))


def _logical_devices() -> list[Any]:
    """TensorFlow's logical devices.

    It looks for GPUs when first asked, and logs an error (cuInit) where there is no driver for
    any. That line is dropped then; all else that is written to standard error is passed on.
    """
    import tensorflow as tf

    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        try:
            return tf.config.list_logical_devices()
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            driver = any(path.exists() for path in _DRIVERS)
            log.seek(0)
            for line in log:
                if driver or b"failed call to cuInit" not in line:
                    os.write(2, line)


def local() -> Topology:
    """The logical devices that TensorFlow sees in this process."""
    devices = []
    cpu = cpu_model(os.cpu_count() or 1, "local-cpu")
    for device in _logical_devices():
        name = f"/job:localhost/replica:0/task:0{device.name[device.name.index('/device:') :]}"
        if device.device_type == "CPU":
            model = cpu
        elif device.device_type == "GPU":
            model = _gpu_model(device)
        else:
            continue
        devices.append(Device(name, model, 0, model.memory_bytes))
    gpu = "/device:GPU:*"
    rules = (
        LinkRule(_IN_PROCESS, "/device:CPU:*", "/device:CPU:*"),
        LinkRule(Link(10e-6, 20e9, Sharing.PAIR), gpu, gpu),
        LinkRule(Link(25e-6, 12e9, Sharing.EGRESS)),
    )
    return Topology("local", tuple(devices), rules, first_cpu(devices))


def _gpu_model(device: object) -> DeviceModel:
    """The catalogue's model of a GPU that TensorFlow sees, by its reported name."""
    import tensorflow as tf

    index = int(device.name.rsplit(":", 1)[1])  # type: ignore[attr-defined]
    physical = tf.config.list_physical_devices("GPU")
    details = tf.config.experimental.get_device_details(physical[min(index, len(physical) - 1)])
    reported = details.get("device_name", "").lower()
    for name in catalogue.GPU_MODELS:
        if name in reported:
            return catalogue.MODELS[name]
    major, minor = details.get("compute_capability", (7, 0))
    return DeviceModel(
        name=reported.replace(" ", "-") or "gpu",
        type="GPU",
        frequency_mhz=1500,
        num_cores=80,
        bytes_per_second=900e9,
        memory_bytes=16 * catalogue.GIB,
        environment=(("architecture", f"{major}.{minor}"),),
        launch_seconds=catalogue.LAUNCH_SECONDS,
        source="not in the catalogue: the V100's figures; profile it for better ones",
    )


def worker_threads(cores: int) -> int:
    """Threads that run ops on a worker of so many cores: one more.

    Requests for tensors join the queue of the ops; the thread more answers them while ops run
    (see `placer.runtime.worker.start_server`).
    """
    return cores + 1


def workers(count: int, hosts: tuple[str, ...] = ()) -> Topology:
    """`count` single-core TensorFlow gRPC workers, each one device.

    Args:
      count: 1 to 64 workers.
      hosts: host of each worker where they run already; workers on this machine share it.

    Raises:
      PlacerError: for a number out of range, or more workers here than there are cores.
    """
    if not 1 <= count <= 64:
        raise PlacerError(f"devices workers:{count}: give 1 to 64 workers")
    cores = len(os.sched_getaffinity(0))
    if not hosts and count > cores:
        raise PlacerError(
            f"devices workers:{count}: each worker is pinned to a core and this machine lends "
            f"{cores}; ask for workers:{cores} or fewer"
        )
    model = cpu_model(1, "worker-core")
    distinct = list(dict.fromkeys(hosts)) or [""]
    here = hosts or ("",) * count
    share = max(here.count(h) for h in distinct)
    devices = tuple(
        Device(
            f"/job:worker/replica:0/task:{i}/device:CPU:0",
            model,
            distinct.index(here[i]),
            # Workers share the machine's memory; a tenth is left for what else runs.
            int(0.9 * model.memory_bytes) // share,
            # What runs elsewhere may have more threads and cores.
            executor_threads=0 if hosts else worker_threads(1),
            contention=0.0 if hosts else _CONTENTION,
        )
        for i in range(count)
    )
    return Topology(f"workers:{count}", devices, (LinkRule(LOOPBACK),))
