"""Device topology: which devices there are, what they can do, and what joins them."""

from placer.devices.catalogue import GPU_MODELS, MODELS, gpu_hosts
from placer.devices.spec import SPEC_HELP, grpc_addresses, parse
from placer.devices.topology import (
    Device,
    DeviceModel,
    Link,
    LinkArrays,
    LinkRule,
    Sharing,
    Topology,
    parse_device_spec,
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
    "gpu_hosts",
    "grpc_addresses",
    "parse",
    "parse_device_spec",
]
