"""Device topology: which devices there are, what they can do, and what joins them."""

from placer.devices.catalogue import GPU_MODELS, MODELS, gpu_hosts
from placer.devices.names import parse_device_spec, short_device_names
from placer.devices.spec import SPEC_HELP, cluster_addresses, grpc_addresses, parse
from placer.devices.topology import (
    Device,
    DeviceModel,
    Link,
    LinkArrays,
    LinkRule,
    Sharing,
    Topology,
)
from placer.devices.topology_file import (
    load_topology,
    save_topology,
    topology_fingerprint,
    topology_from_proto,
    topology_to_proto,
)

__all__ = [
    "GPU_MODELS",
    "MODELS",
    "SPEC_HELP",
    "Device",
    "DeviceModel",
    "Link",
    "LinkArrays",
    "LinkRule",
    "Sharing",
    "Topology",
    "cluster_addresses",
    "gpu_hosts",
    "grpc_addresses",
    "load_topology",
    "parse",
    "parse_device_spec",
    "save_topology",
    "short_device_names",
    "topology_fingerprint",
    "topology_from_proto",
    "topology_to_proto",
]
