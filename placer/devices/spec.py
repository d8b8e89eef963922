"""Device specs: the strings that --devices and placer.optimize(devices=...) take."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path

from placer.devices import catalogue, here
from placer.devices.topology import Topology
from placer.devices.topology_file import load_topology
from placer.errors import PlacerError

SPEC_HELP = (
    "k80:2, p100:4, v100:8, a100:8, h100:8 (GPUs of one host; v100:8x2 is two hosts), "
    "local (what TensorFlow sees here), workers:2 (pinned workers on this machine), "
    "grpc://host:port,... (workers that run already), a cluster file (.json, as in "
    "TF_CONFIG; its worker job counts), or a topology file (.pbtxt)"
)


def grpc_addresses(spec: str) -> tuple[str, ...]:
    """The host:port addresses of a grpc:// spec; PlacerError if it has a bad one."""
    addresses = tuple(spec.removeprefix("grpc://").split(","))
    for address in addresses:
        if re.fullmatch(r"[^\s:/,]+:\d{1,5}", address) is None:
            raise PlacerError(f"devices {spec!r}: {address!r} is not host:port")
    return addresses


def cluster_addresses(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Addresses of the worker job of a TF_CONFIG-style file.

    Args:
      path: JSON, {"cluster": {"worker": ["host:port", ...]}} or the inner object alone.

    Raises:
      PlacerError: if it is not such a file.
    """
    try:
        data = json.loads(Path(path).read_text())
    except OSError as error:
        raise PlacerError(f"cannot read cluster file {path}: {error.strerror}") from None
    except ValueError as error:
        raise PlacerError(f"cluster file {path} is not JSON: {error}") from None
    cluster = data.get("cluster", data) if isinstance(data, dict) else None
    tasks = cluster.get("worker") if isinstance(cluster, dict) else None
    if not (isinstance(tasks, list) and tasks and all(isinstance(t, str) for t in tasks)):
        raise PlacerError(f'cluster file {path} has no list of addresses under "worker"')
    return grpc_addresses("grpc://" + ",".join(tasks))


def parse(devices: str | Topology) -> Topology:
    """The topology that a spec string, a file or a Topology names; see SPEC_HELP.

    Raises:
      PlacerError: if it is none of these, or the file is not a topology.
    """
    if isinstance(devices, Topology):
        return devices
    spec = str(devices).strip()
    if not spec:
        raise PlacerError(f"no devices given; give {SPEC_HELP}")
    gpus = re.fullmatch(r"(\w+):(\d+)(?:x(\d+))?", spec)
    if spec == "local":
        return here.local()
    if gpus and gpus[1] == "workers" and not gpus[3]:
        return here.workers(int(gpus[2]))
    if gpus and gpus[1] in catalogue.GPU_MODELS:
        return catalogue.gpu_hosts(gpus[1], int(gpus[2]), int(gpus[3] or 1))
    if spec.startswith("grpc://"):
        return _running_workers(grpc_addresses(spec))
    if spec.endswith(".json"):
        return _running_workers(cluster_addresses(spec))
    if os.path.isfile(spec):  # False, where Path.is_file raises, for names too long for a file.
        return load_topology(spec)
    raise PlacerError(f"unknown devices {spec!r}; give {SPEC_HELP}")


def _running_workers(addresses: tuple[str, ...]) -> Topology:
    """Workers that run already, under a name that says where."""
    topology = here.workers(len(addresses), tuple(a.rsplit(":", 1)[0] for a in addresses))
    return dataclasses.replace(topology, name="grpc://" + ",".join(addresses))
