"""The hardware catalogue: device models and hosts built from them, each figure with its source."""

from __future__ import annotations

from placer.devices.topology import Device, DeviceModel, Link, LinkRule, Sharing, Topology
from placer.errors import PlacerError
from placer.protos import topology_pb2

GIB = 1 << 30

# Op launch overhead and PCIe costs published with Placeto (Addanki et al., NeurIPS 2019) for a
# host of K80s; later hosts keep the launch overhead, which the driver sets, not the GPU.
LAUNCH_SECONDS = 5.7e-6
PCIE_LATENCY_SECONDS = 25e-6
# A peer copy skips the host's memory and one of the two DMA engines that PCIe copies pass; an
# assumption, as no vendor publishes it.
NVLINK_LATENCY_SECONDS = 10e-6

MODELS: dict[str, DeviceModel] = {
    m.name: m
    for m in (
        DeviceModel(
            "cpu",
            "CPU",
            frequency_mhz=2300,
            num_cores=36,
            bytes_per_second=136e9,
            memory_bytes=256 * GIB,
            # A quarter of the AVX2 peak of 32; see placer/costs/peak.py for why.
            environment=(("operations_per_cycle", "8"),),
            launch_seconds=LAUNCH_SECONDS,
            source="two Intel Xeon E5-2699 v3 (18 cores, 2.3 GHz, 68 GB/s each): Intel ARK 81061; "
            "the Haswell 2300 host of Mirhoseini et al. 2017, section 4.2",
        ),
        DeviceModel(
            "k80",
            "GPU",
            frequency_mhz=824,
            num_cores=13,
            bytes_per_second=240e9,
            memory_bytes=12 * GIB,
            environment=(("architecture", "3.7"),),
            launch_seconds=LAUNCH_SECONDS,
            source="one GK210 of a Tesla K80 board: NVIDIA BD-07317-001 (13 SMX of 192 cores, "
            "240 GB/s, 12 GB); 824 MHz, a step below the maximum boost of 875",
        ),
        DeviceModel(
            "p100",
            "GPU",
            frequency_mhz=1480,
            num_cores=56,
            bytes_per_second=732e9,
            memory_bytes=16 * GIB,
            environment=(("architecture", "6.0"),),
            launch_seconds=LAUNCH_SECONDS,
            source="Tesla P100 SXM2: NVIDIA WP-08019-001 (56 SMs, 1480 MHz boost, 10.6 TFLOP/s "
            "FP32, 732 GB/s, 16 GB)",
        ),
        DeviceModel(
            "v100",
            "GPU",
            frequency_mhz=1530,
            num_cores=80,
            bytes_per_second=900e9,
            memory_bytes=16 * GIB,
            environment=(("architecture", "7.0"),),
            launch_seconds=LAUNCH_SECONDS,
            source="Tesla V100 SXM2: NVIDIA WP-08608-001 (80 SMs, 1530 MHz boost, 15.7 TFLOP/s "
            "FP32, 900 GB/s, 16 GB)",
        ),
        DeviceModel(
            "a100",
            "GPU",
            frequency_mhz=1410,
            num_cores=108,
            bytes_per_second=1555e9,
            memory_bytes=40 * GIB,
            environment=(("architecture", "8.0"),),
            launch_seconds=LAUNCH_SECONDS,
            source="A100 SXM4 40 GB: NVIDIA Ampere architecture whitepaper (108 SMs, 1410 MHz "
            "boost, 19.5 TFLOP/s FP32, 1555 GB/s)",
        ),
        DeviceModel(
            "h100",
            "GPU",
            frequency_mhz=1980,
            num_cores=132,
            bytes_per_second=3350e9,
            memory_bytes=80 * GIB,
            environment=(("architecture", "9.0"),),
            launch_seconds=LAUNCH_SECONDS,
            source="H100 SXM5: NVIDIA Hopper architecture whitepaper (132 SMs of 128 "
            "cores); H100 datasheet (67 TFLOP/s FP32, so 1980 MHz; 3.35 TB/s, 80 GB)",
        ),
    )
}

_GPU = "/device:GPU:*"
_SAME = topology_pb2.Link.SAME_HOST
_BETWEEN = topology_pb2.Link.BETWEEN_HOSTS

# Published with Placeto: 25 us + bytes / 7.6 GB/s, one outgoing bus a device.
_K80_PCIE = Link(PCIE_LATENCY_SECONDS, 7.6e9, Sharing.EGRESS)
# PCIe 3.0 x16: 15.75 GB/s raw, about 12 GB/s with 256-byte payloads (PCI-SIG base specification).
_PCIE3 = Link(PCIE_LATENCY_SECONDS, 12e9, Sharing.EGRESS)
# PCIe 4.0 and 5.0 double the rate each (PCI-SIG base specifications).
_PCIE4 = Link(PCIE_LATENCY_SECONDS, 24e9, Sharing.EGRESS)
_PCIE5 = Link(PCIE_LATENCY_SECONDS, 48e9, Sharing.EGRESS)
# NVLink 1 and 2 join pairs of GPUs: 20 and 25 GB/s a direction and link (whitepapers above).
_NVLINK1 = Link(NVLINK_LATENCY_SECONDS, 20e9, Sharing.PAIR)
_NVLINK2 = Link(NVLINK_LATENCY_SECONDS, 25e9, Sharing.PAIR)
# NVSwitch: a GPU's full 300 (A100) and 450 GB/s (H100) a direction to any other (whitepapers).
_NVSWITCH2 = Link(NVLINK_LATENCY_SECONDS, 300e9, Sharing.EGRESS_INGRESS)
_NVSWITCH3 = Link(NVLINK_LATENCY_SECONDS, 450e9, Sharing.EGRESS_INGRESS)
# Between hosts: 10 Gb/s Ethernet in the K80's time, 100 Gb/s InfiniBand EDR (as in NVIDIA's DGX-1)
# after; the latencies of a gRPC message over either are assumptions.
_ETHERNET10 = Link(100e-6, 1.25e9, Sharing.BUS, "network")
_INFINIBAND100 = Link(50e-6, 12.5e9, Sharing.BUS, "network")

_HOST_LINKS: dict[str, tuple[LinkRule, ...]] = {
    "k80": (LinkRule(_ETHERNET10, scope=_BETWEEN), LinkRule(_K80_PCIE)),
    "p100": (
        LinkRule(_INFINIBAND100, scope=_BETWEEN),
        LinkRule(_NVLINK1, _GPU, _GPU, _SAME),
        LinkRule(_PCIE3),
    ),
    "v100": (
        LinkRule(_INFINIBAND100, scope=_BETWEEN),
        LinkRule(_NVLINK2, _GPU, _GPU, _SAME),
        LinkRule(_PCIE3),
    ),
    "a100": (
        LinkRule(_INFINIBAND100, scope=_BETWEEN),
        LinkRule(_NVSWITCH2, _GPU, _GPU, _SAME),
        LinkRule(_PCIE4),
    ),
    "h100": (
        LinkRule(_INFINIBAND100, scope=_BETWEEN),
        LinkRule(_NVSWITCH3, _GPU, _GPU, _SAME),
        LinkRule(_PCIE5),
    ),
}

GPU_MODELS = tuple(_HOST_LINKS)


def gpu_hosts(model: str, gpus: int, hosts: int = 1) -> Topology:
    """`hosts` equal hosts, each with a CPU and `gpus` GPUs of a catalogue model.

    Args:
      model: one of GPU_MODELS.
      gpus: GPUs a host, 1 to 64.
      hosts: number of hosts, 1 to 64. With one host devices are in /job:localhost, else in
        /job:worker with one task a host.

    Raises:
      PlacerError: for an unknown model or a number out of range.
    """
    if model not in _HOST_LINKS:
        raise PlacerError(
            f"device model {model!r} is not in the catalogue; it has {', '.join(GPU_MODELS)}"
        )
    if not (1 <= gpus <= 64 and 1 <= hosts <= 64):
        raise PlacerError(
            f"devices {model}:{gpus}x{hosts}: give 1 to 64 GPUs a host and 1 to 64 hosts"
        )
    devices = []
    for host in range(hosts):
        job = "localhost" if hosts == 1 else "worker"
        prefix = f"/job:{job}/replica:0/task:{host}/device:"
        cpu = MODELS["cpu"]
        devices.append(Device(f"{prefix}CPU:0", cpu, host, cpu.memory_bytes))
        gpu = MODELS[model]
        devices += [Device(f"{prefix}GPU:{i}", gpu, host, gpu.memory_bytes) for i in range(gpus)]
    name = f"{model}:{gpus}" if hosts == 1 else f"{model}:{gpus}x{hosts}"
    return Topology(name, tuple(devices), _HOST_LINKS[model])
