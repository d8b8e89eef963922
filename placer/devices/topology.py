"""Device topology: the devices that ops may be placed on and the links between them."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence

import numpy as np

from placer.devices.names import DEVICE_NAME, parse_device_spec
from placer.errors import PlacerError
from placer.protos import topology_pb2

# More than any worker has; the native simulator has the same limit.
MAX_EXECUTOR_THREADS = 256


@dataclasses.dataclass(frozen=True)
class DeviceModel:
    """What is known about one kind of device; analytical costs are computed from it.

    Attributes:
      name: a name of its own, such as "k80".
      type: TensorFlow's device type, "CPU" or "GPU".
      frequency_mhz: clock in MHz.
      num_cores: streaming multiprocessors of a GPU, cores of a CPU.
      bytes_per_second: memory bandwidth.
      memory_bytes: memory capacity.
      environment: (key, value) pairs: `architecture`, a GPU's compute capability, and
        `operations_per_cycle` of a core or multiprocessor where that does not tell it.
      launch_seconds: time that starting one op costs.
      source: where the figures come from.
    """

    name: str
    type: str
    frequency_mhz: float
    num_cores: int
    bytes_per_second: float
    memory_bytes: int
    environment: tuple[tuple[str, str], ...] = ()
    launch_seconds: float = 0.0
    source: str = ""


class Sharing(enum.IntEnum):
    """Which transfers queue behind each other; values as in protos/topology.proto."""

    PAIR = 0
    EGRESS = 1
    INGRESS = 2
    EGRESS_INGRESS = 3
    BUS = 4


@dataclasses.dataclass(frozen=True)
class Link:
    """How a tensor crosses from one device to another.

    A transfer of `b` bytes holds its wire for `latency_seconds + b / bytes_per_second` and takes
    `*_cpu_seconds + b * *_cpu_seconds_per_byte` from the computation of the device at that end.
    """

    latency_seconds: float
    bytes_per_second: float
    sharing: Sharing = Sharing.EGRESS
    bus: str = ""
    send_cpu_seconds: float = 0.0
    send_cpu_seconds_per_byte: float = 0.0
    receive_cpu_seconds: float = 0.0
    receive_cpu_seconds_per_byte: float = 0.0


@dataclasses.dataclass(frozen=True)
class LinkRule:
    """`link` joins devices matching `src` to devices matching `dst` (partial names, "" is any)."""

    link: Link
    src: str = ""
    dst: str = ""
    scope: int = topology_pb2.Link.ANY


@dataclasses.dataclass(frozen=True)
class Device:
    """One device of a topology. `memory_bytes` is its limit; `concurrency` ops run at a time.

    `executor_threads`: if not 0, so many threads of TensorFlow's executor run its ops on one core,
    which transfers share (see `placer.simulator`); `concurrency` is 1 then. `contention`: by
    what fraction each other such device of the host slows them while it works, for cores share
    caches and memory.
    """

    name: str
    model: DeviceModel
    host: int
    memory_bytes: int
    concurrency: int = 1
    executor_threads: int = 0
    contention: float = 0.0


@dataclasses.dataclass(frozen=True)
class LinkArrays:
    """The links of a topology as arrays over ordered pairs of its D devices.

    Attributes:
      latency: float64[D, D] seconds.
      seconds_per_byte: float64[D, D].
      channels: int32[D, D, 2], the channels that a transfer occupies, -1 for none.
      num_channels: number of channels.
      send_cpu, send_cpu_per_byte, receive_cpu, receive_cpu_per_byte: float64[D, D], seconds and
        seconds per byte that a transfer takes from the sender's and receiver's computation.
    """

    latency: np.ndarray
    seconds_per_byte: np.ndarray
    channels: np.ndarray
    num_channels: int
    send_cpu: np.ndarray
    send_cpu_per_byte: np.ndarray
    receive_cpu: np.ndarray
    receive_cpu_per_byte: np.ndarray


@dataclasses.dataclass(frozen=True)
class Topology:
    """Devices and the links between them.

    Invariants: at least one device; names are full TensorFlow device names and unique; every
    ordered pair of devices is matched by a rule. Devices of one model and one kind of links are
    interchangeable (see `symmetry_classes`).

    Attributes:
      name: how it was asked for, such as "k80:4".
      devices: D devices; a placement holds indices into them.
      link_rules: the first matching rule is a pair's link.
      client: index of the device that feeds and fetches pass through.
    """

    name: str
    devices: tuple[Device, ...]
    link_rules: tuple[LinkRule, ...]
    client: int = 0

    def __post_init__(self) -> None:
        if not self.devices:
            raise PlacerError(f"topology {self.name!r} has no devices; give at least one")
        names = [d.name for d in self.devices]
        for name in names:
            if DEVICE_NAME.fullmatch(name) is None:
                raise PlacerError(
                    f"topology {self.name!r}: device {name!r} is not a full device name; "
                    'write it like "/job:localhost/replica:0/task:0/device:GPU:0"'
                )
        if len(set(names)) != len(names):
            twice = next(n for n in names if names.count(n) > 1)
            raise PlacerError(f"topology {self.name!r}: device {twice!r} is listed twice")
        for device in self.devices:
            if device.memory_bytes <= 0 or device.concurrency < 1:
                raise PlacerError(
                    f"topology {self.name!r}: device {device.name!r} needs memory_bytes > 0 "
                    f"and concurrency >= 1, has {device.memory_bytes} and {device.concurrency}"
                )
            if not 0 <= device.executor_threads <= MAX_EXECUTOR_THREADS or not (
                0 <= device.contention < float("inf")
            ):
                raise PlacerError(
                    f"topology {self.name!r}: device {device.name!r} needs executor_threads of 0 "
                    f"to {MAX_EXECUTOR_THREADS} and contention >= 0, has "
                    f"{device.executor_threads} and {device.contention}"
                )
            if device.executor_threads and device.concurrency != 1:
                raise PlacerError(
                    f"topology {self.name!r}: device {device.name!r} has executor threads, which "
                    f"share one core; its concurrency must be 1, not {device.concurrency}"
                )
        if not 0 <= self.client < len(names):
            raise PlacerError(f"topology {self.name!r}: client {self.client} is not a device")
        for rule in self.link_rules:
            link = rule.link
            costs = (
                link.latency_seconds,
                link.send_cpu_seconds,
                link.send_cpu_seconds_per_byte,
                link.receive_cpu_seconds,
                link.receive_cpu_seconds_per_byte,
            )
            if not (all(0 <= c < float("inf") for c in costs) and link.bytes_per_second > 0):
                raise PlacerError(
                    f"topology {self.name!r}: link {rule.src!r} -> {rule.dst!r} needs costs >= 0 "
                    "and bytes_per_second > 0"
                )
        self.links()

    @property
    def num_devices(self) -> int:
        """D."""
        return len(self.devices)

    @property
    def device_names(self) -> tuple[str, ...]:
        """Full device names, in index order."""
        return tuple(d.name for d in self.devices)

    @property
    def models(self) -> tuple[DeviceModel, ...]:
        """The K distinct device models, in order of first appearance."""
        return tuple(dict.fromkeys(d.model for d in self.devices))

    @property
    def device_model(self) -> np.ndarray:
        """int32[D], index of each device's model in `models`."""
        models = self.models
        return np.array([models.index(d.model) for d in self.devices], np.int32)

    @property
    def memory_bytes(self) -> np.ndarray:
        """int64[D]."""
        return np.array([d.memory_bytes for d in self.devices], np.int64)

    @property
    def contention(self) -> np.ndarray:
        """float64[D, D]: by what fraction a device (row) is slowed while another (column) works."""
        hosts = np.array([d.host for d in self.devices])
        executors = np.array([d.executor_threads > 0 for d in self.devices])
        near = (hosts[:, None] == hosts[None, :]) & executors[:, None] & executors[None, :]
        np.fill_diagonal(near, False)
        return near * np.array([d.contention for d in self.devices])[:, None]

    @property
    def accelerators(self) -> tuple[int, ...]:
        """Indices of the devices to compute on: the GPUs, or all devices where there are none."""
        gpus = tuple(i for i, d in enumerate(self.devices) if d.model.type != "CPU")
        return gpus or tuple(range(len(self.devices)))

    def index(self, name: str) -> int:
        """Index of the device called `name` in full; PlacerError if there is none."""
        try:
            return self.device_names.index(name)
        except ValueError:
            raise PlacerError(
                f"topology {self.name!r} has no device {name!r}; it has "
                + ", ".join(self.device_names)
            ) from None

    def matching(self, spec: str) -> np.ndarray:
        """bool[D]: the devices that a full or partial device name allows."""
        wanted = parse_device_spec(spec)
        allowed = np.ones(len(self.devices), bool)
        for i, device in enumerate(self.devices):
            fields = DEVICE_NAME.fullmatch(device.name).groupdict()  # type: ignore[union-attr]
            fields["type"] = fields["type"].upper()
            allowed[i] = all(fields[key] == value for key, value in wanted.items())
        return allowed

    def link(self, src: int, dst: int) -> Link:
        """The link from device `src` to device `dst`; PlacerError where no rule matches."""
        return self.link_rules[self._rule_of()[src, dst]].link

    def _rule_of(self) -> np.ndarray:
        """int32[D, D]: number of the first rule that matches a pair, -1 on the diagonal."""
        hosts = np.array([d.host for d in self.devices])
        same_host = hosts[:, None] == hosts[None, :]
        scopes: dict[int, np.ndarray] = {
            topology_pb2.Link.ANY: np.ones_like(same_host),
            topology_pb2.Link.SAME_HOST: same_host,
            topology_pb2.Link.BETWEEN_HOSTS: ~same_host,
        }
        rule_of = np.full(same_host.shape, -1, np.int32)
        for number in reversed(range(len(self.link_rules))):
            rule = self.link_rules[number]
            pairs = self.matching(rule.src)[:, None] & self.matching(rule.dst)[None, :]
            rule_of[pairs & scopes[rule.scope]] = number
        np.fill_diagonal(rule_of, -1)
        missing = np.argwhere((rule_of < 0) & ~np.eye(len(hosts), dtype=bool))
        if len(missing):
            src, dst = missing[0]
            raise PlacerError(
                f"topology {self.name!r} has no link from {self.devices[src].name} to "
                f"{self.devices[dst].name}; add one that matches"
            )
        return rule_of

    def links(self) -> LinkArrays:
        """The links as arrays; see LinkArrays."""
        cached = self.__dict__.get("_links")
        if cached is not None:
            return cached
        d = len(self.devices)
        rule_of = self._rule_of()
        channels = np.full((d, d, 2), -1, np.int32)
        ids: dict[tuple, int] = {}
        for i, j in np.argwhere(rule_of >= 0).tolist():
            for slot, key in enumerate(self._channel_keys(i, j, int(rule_of[i, j]))):
                channels[i, j, slot] = ids.setdefault(key, len(ids))
        costs = np.zeros((len(self.link_rules) + 1, 6))  # The last row, -1, is the diagonal's.
        for number, rule in enumerate(self.link_rules):
            link = rule.link
            costs[number] = (
                link.latency_seconds,
                1.0 / link.bytes_per_second,
                link.send_cpu_seconds,
                link.send_cpu_seconds_per_byte,
                link.receive_cpu_seconds,
                link.receive_cpu_seconds_per_byte,
            )
        latency, per_byte, *cpu = np.ascontiguousarray(np.moveaxis(costs[rule_of], 2, 0))
        arrays = LinkArrays(latency, per_byte, channels, len(ids), *cpu)
        object.__setattr__(self, "_links", arrays)
        return arrays

    def _channel_keys(self, src: int, dst: int, number: int) -> list[tuple]:
        """What a transfer by rule `number` occupies: equal keys are one channel."""
        link = self.link_rules[number].link
        if link.sharing == Sharing.PAIR:
            return [("pair", src, dst)]
        if link.sharing == Sharing.EGRESS:
            return [("egress", number, src)]
        if link.sharing == Sharing.INGRESS:
            return [("ingress", number, dst)]
        if link.sharing == Sharing.EGRESS_INGRESS:
            return [("egress", number, src), ("ingress", number, dst)]
        host = self.devices[src].host
        return [("bus", link.bus, host if host == self.devices[dst].host else -1)]

    def symmetry_classes(self) -> np.ndarray:
        """int32[D]: devices with equal numbers may be exchanged without changing a step time.

        Devices are in one class if they have the same model and memory, run as many ops in the same
        way and are slowed alike, lie on one host, see the same link costs to and from every other
        device, and share their links' channels in the same way.
        """
        arrays = self.links()
        costs = np.stack(
            [
                arrays.latency,
                arrays.seconds_per_byte,
                arrays.send_cpu,
                arrays.send_cpu_per_byte,
                arrays.receive_cpu,
                arrays.receive_cpu_per_byte,
            ]
        )
        occurrences = np.bincount(
            arrays.channels[arrays.channels >= 0], minlength=arrays.num_channels
        )
        classes = np.full(self.num_devices, -1, np.int32)
        for i, device in enumerate(self.devices):
            for j in range(i):
                other = self.devices[j]
                if dataclasses.replace(device, name=other.name) != other or (
                    i == self.client or j == self.client
                ):
                    continue
                swap = np.arange(self.num_devices)
                swap[[i, j]] = swap[[j, i]]
                if np.array_equal(costs, costs[:, swap][:, :, swap]) and (
                    _shared_alike(arrays.channels, occurrences, i, j)
                ):
                    classes[i] = classes[j]
                    break
            if classes[i] < 0:
                classes[i] = i
        return classes

    def with_memory(self, memory_bytes: Sequence[int]) -> Topology:
        """The same topology with other memory limits, one a device."""
        if len(memory_bytes) != len(self.devices):
            raise PlacerError(f"{len(memory_bytes)} memory limits for {len(self.devices)} devices")
        devices = tuple(
            dataclasses.replace(d, memory_bytes=int(m))
            for d, m in zip(self.devices, memory_bytes, strict=True)
        )
        return dataclasses.replace(self, devices=devices)

    def with_free_transfers(self) -> Topology:
        """The same devices with links that cost nothing."""
        free = Link(0.0, 1e30, Sharing.PAIR)
        return dataclasses.replace(self, link_rules=(LinkRule(free),))

    def with_contention(self, contention: float) -> Topology:
        """The same devices, slowed by this fraction each while a neighbour works (`contention`)."""
        devices = tuple(
            dataclasses.replace(d, contention=contention) if d.executor_threads else d
            for d in self.devices
        )
        return dataclasses.replace(self, devices=devices)

    def with_scaled_links(self, factor: float) -> Topology:
        """The same devices with every cost of a transfer multiplied by a positive factor."""
        rules = tuple(
            dataclasses.replace(
                rule,
                link=dataclasses.replace(
                    rule.link,
                    latency_seconds=rule.link.latency_seconds * factor,
                    bytes_per_second=rule.link.bytes_per_second / factor,
                    send_cpu_seconds=rule.link.send_cpu_seconds * factor,
                    send_cpu_seconds_per_byte=rule.link.send_cpu_seconds_per_byte * factor,
                    receive_cpu_seconds=rule.link.receive_cpu_seconds * factor,
                    receive_cpu_seconds_per_byte=rule.link.receive_cpu_seconds_per_byte * factor,
                ),
            )
            for rule in self.link_rules
        )
        return dataclasses.replace(self, link_rules=rules)


def _shared_alike(channels: np.ndarray, occurrences: np.ndarray, i: int, j: int) -> bool:
    """Whether exchanging devices i and j only renames the channels that their links occupy.

    Args:
      channels: int32[D, D, 2] of LinkArrays.
      occurrences: int64[C], how often each channel occurs there.
      i, j: devices.
    """
    every = np.arange(len(channels))
    others = every[(every != i) & (every != j)]
    rows = np.concatenate([np.full_like(every, i), np.full_like(every, j), others, others])
    columns = np.concatenate([every, every, np.full_like(others, i), np.full_like(others, j)])
    swap = every.copy()
    swap[[i, j]] = j, i
    before = channels[rows, columns].reshape(-1)
    after = channels[swap[rows], swap[columns]].reshape(-1)
    if not np.array_equal(before < 0, after < 0):
        return False
    before, after = before[before >= 0], after[after >= 0]
    name, back = np.full((2, len(occurrences)), -1)
    name[before], back[after] = after, before
    if not (np.array_equal(name[before], after) and np.array_equal(back[after], before)):
        return False
    # Channels that other links occupy too keep their names.
    elsewhere = occurrences - np.bincount(before, minlength=len(occurrences))
    kept = elsewhere[before] > 0
    return np.array_equal(after[kept], before[kept])


def first_cpu(devices: Sequence[Device]) -> int:
    """Index of the first CPU, or 0: where TensorFlow's client feeds and fetches."""
    return next((i for i, d in enumerate(devices) if d.model.type == "CPU"), 0)
