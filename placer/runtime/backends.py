"""Where placements run: in one process, on workers started here, on workers that run already."""

from __future__ import annotations

import dataclasses
import os
import re
import socket

from placer import devices
from placer.devices import Topology
from placer.errors import PlacerError
from placer.runtime.processes import Child, ProcessTree, wait_ready

_START_ATTEMPTS = 3


@dataclasses.dataclass(frozen=True)
class Backend:
    """How to reach the devices of a topology.

    Attributes:
      kind: "local", "workers" or "grpc".
      addresses: for "grpc", host:port of each task of /job:worker.
      logical_cpus: for "local", how many CPU devices the process has.
      session_devices: what TensorFlow calls each device of the topology.
    """

    kind: str
    addresses: tuple[str, ...]
    logical_cpus: int
    session_devices: tuple[str, ...]


def resolve(spec: str | Topology, emulate: bool = False) -> tuple[Topology, Backend]:
    """The topology and backend that a device spec names.

    Args:
      spec: see placer.devices.parse. A topology called "workers:N" or "grpc://..." runs there; one
        whose devices are all of /job:localhost runs in one process.
      emulate: run any topology in one process in which logical CPU devices stand for its devices.
        Right numbers, meaningless times.

    Raises:
      PlacerError: if there is no way to run on these devices here.
    """
    topology = devices.parse(spec)
    addresses: tuple[str, ...] = ()
    if topology.name.startswith("grpc://"):
        addresses = devices.grpc_addresses(topology.name)
    names = topology.device_names
    if emulate:
        stand_ins = tuple(
            f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(len(names))
        )
        return topology, Backend("local", (), len(names), stand_ins)
    if addresses:
        return topology, Backend("grpc", addresses, 0, names)
    workers = [re.fullmatch(r"/job:worker/replica:0/task:(\d+)/device:CPU:0", n) for n in names]
    if all(workers) and [int(m[1]) for m in workers if m] == list(range(len(names))):
        return topology, Backend("workers", (), 0, names)
    cpus = [n for n in names if re.fullmatch(r"/job:localhost/replica:0/task:0/device:CPU:\d+", n)]
    local = [n for n in names if n.startswith("/job:localhost/replica:0/task:0/")]
    if len(local) == len(names):
        wanted = sum(1 for n in names if "/device:GPU:" in n)
        if wanted and _gpus_here() < wanted:
            raise PlacerError(
                f"devices {topology.name!r}: cannot run on {wanted} GPUs, this machine has "
                f"{_gpus_here()}; simulate instead, or measure on workers:N"
            )
        count = 1 + max((int(n.rpartition(":")[2]) for n in cpus), default=0)
        return topology, Backend("local", (), count, names)
    raise PlacerError(
        f"devices {topology.name!r}: do not know where its devices run; measure on local, "
        "workers:N, grpc://host:port,... or a cluster file"
    )


def _gpus_here() -> int:
    import tensorflow as tf

    return len(tf.config.list_physical_devices("GPU"))


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that were free just now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def start_workers(
    tree: ProcessTree, count: int, address_space_bytes: int | None
) -> tuple[list[Child], tuple[str, ...]]:
    """Forks `count` workers, each pinned to a core of its own, and waits until they serve.

    Returns:
      The workers and their addresses.

    Raises:
      PlacerError: if they do not start.
    """
    cores = sorted(os.sched_getaffinity(0))
    for attempt in range(_START_ATTEMPTS):
        addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(count))
        try:
            workers = [
                tree.fork(
                    f"worker {task}",
                    "worker",
                    {
                        "addresses": addresses,
                        "task": task,
                        "cores": [cores[task % len(cores)]],
                        "address_space_bytes": address_space_bytes,
                    },
                )
                for task in range(count)
            ]
            wait_ready(workers, tree)
        except PlacerError:
            # Another process may have taken a port between the look and the leap.
            if attempt == _START_ATTEMPTS - 1:
                raise
            tree.kill_all()
        else:
            return workers, addresses
    raise AssertionError("unreachable")
