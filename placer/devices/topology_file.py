"""Topologies as protos and files (protos/topology.proto)."""

from __future__ import annotations

import dataclasses
import hashlib
import os

from google.protobuf import text_format

from placer.devices.catalogue import MODELS
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
from placer.files import read_proto, write_atomically
from placer.protos import topology_pb2


def save_topology(topology: Topology, path: str | os.PathLike[str]) -> None:
    """Writes a text proto (.pbtxt), atomically; PlacerError if that fails."""
    write_atomically(path, text_format.MessageToString(topology_to_proto(topology)).encode())


def load_topology(path: str | os.PathLike[str]) -> Topology:
    """Reads a topology file in text or binary form; PlacerError if it is not one."""
    proto = read_proto(path, topology_pb2.Topology, "topology", lambda p: bool(p.name or p.devices))
    return topology_from_proto(proto, where=str(path))


def topology_fingerprint(topology: Topology) -> str:
    """Hexadecimal hash of everything but the name."""
    proto = topology_to_proto(topology)
    proto.name = ""
    return hashlib.sha256(proto.SerializeToString(deterministic=True)).hexdigest()[:32]


def topology_to_proto(topology: Topology) -> topology_pb2.Topology:
    """As a proto; `topology_from_proto` gives an equal topology back."""
    client = topology.devices[topology.client].name
    proto = topology_pb2.Topology(name=topology.name, client=client)
    for m in topology.models:
        proto.models.add(
            name=m.name,
            type=m.type,
            frequency_mhz=m.frequency_mhz,
            num_cores=m.num_cores,
            bytes_per_second=m.bytes_per_second,
            memory_bytes=m.memory_bytes,
            environment=dict(m.environment),
            launch_seconds=m.launch_seconds,
            source=m.source,
        )
    for d in topology.devices:
        proto.devices.add(
            name=d.name,
            model=d.model.name,
            host=d.host,
            memory_bytes=d.memory_bytes,
            concurrency=d.concurrency,
            executor_threads=d.executor_threads,
            contention=d.contention,
        )
    for r in topology.link_rules:
        link = dataclasses.asdict(r.link)
        link["sharing"] = int(r.link.sharing)
        proto.links.add(src=r.src, dst=r.dst, scope=r.scope, **link)
    return proto


def topology_from_proto(proto: topology_pb2.Topology, where: str = "topology") -> Topology:
    """From a proto.

    Args:
      proto: devices may name models of the proto or of the catalogue.
      where: what to call it in errors.

    Raises:
      PlacerError: if it breaks an invariant of Topology.
    """
    models = MODELS | {m.name: _model(m, where) for m in proto.models}
    devices = []
    for d in proto.devices:
        if d.model not in models:
            raise PlacerError(
                f"{where}: device {d.name!r} has the unknown model {d.model!r}; "
                f"known are {', '.join(sorted(models))}"
            )
        model = models[d.model]
        devices.append(
            Device(
                d.name,
                model,
                d.host,
                d.memory_bytes or model.memory_bytes,
                d.concurrency or 1,
                d.executor_threads,
                d.contention,
            )
        )
    rules = tuple(_link_rule(r, where) for r in proto.links)
    names = [d.name for d in devices]
    if proto.client and proto.client not in names:
        raise PlacerError(f"{where}: client {proto.client!r} is not one of its devices")
    client = names.index(proto.client) if proto.client else first_cpu(devices)
    return Topology(proto.name or where, tuple(devices), rules, client)


def _model(proto: topology_pb2.DeviceModel, where: str) -> DeviceModel:
    rates = (proto.num_cores, proto.frequency_mhz, proto.bytes_per_second)
    if not (proto.name and proto.type and all(0 < rate < float("inf") for rate in rates)):
        raise PlacerError(
            f"{where}: device model {proto.name!r} needs name, type, num_cores, frequency_mhz, "
            "bytes_per_second"
        )
    if not 0 <= proto.launch_seconds < float("inf"):
        raise PlacerError(
            f"{where}: device model {proto.name!r} has launch_seconds {proto.launch_seconds}; "
            "give a number of 0 or more"
        )
    return DeviceModel(
        proto.name,
        proto.type.upper(),
        proto.frequency_mhz,
        proto.num_cores,
        proto.bytes_per_second,
        proto.memory_bytes,
        tuple(sorted(proto.environment.items())),
        proto.launch_seconds,
        proto.source,
    )


def _link_rule(proto: topology_pb2.Link, where: str) -> LinkRule:
    if int(proto.sharing) not in list(Sharing):
        raise PlacerError(
            f"{where}: link {proto.src!r} -> {proto.dst!r} has the unknown sharing {proto.sharing}"
        )
    if proto.scope not in topology_pb2.Link.Scope.values():
        raise PlacerError(
            f"{where}: link {proto.src!r} -> {proto.dst!r} has the unknown scope {proto.scope}"
        )
    link = Link(
        proto.latency_seconds,
        proto.bytes_per_second,
        Sharing(proto.sharing),
        proto.bus,
        proto.send_cpu_seconds,
        proto.send_cpu_seconds_per_byte,
        proto.receive_cpu_seconds,
        proto.receive_cpu_seconds_per_byte,
    )
    return LinkRule(link, proto.src, proto.dst, proto.scope)
