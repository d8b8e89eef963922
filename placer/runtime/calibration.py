"""Calibration: what launching an op and crossing a link cost on real devices.

The model that is fitted is the simulator's (`placer.devices.Link`). Moving `b` bytes costs the
sender's processor `s0 + s1 b` seconds, the wire `w0 + w1 b` and the receiver's processor
`r0 + r1 b`: one after another, or at the same time between devices with executor threads (see
`placer.simulator`). Three experiments tell the parts apart, each at several sizes, and each a
difference of two placements of one graph, so that what they share cancels:

- a tensor handed to and fro between idle devices takes send + wire + receive a crossing, or the
  longest of the three;
- transfers next to a long computation on the sender cost its processor send each;
- transfers next to a long computation on the receiver cost its processor receive each.

Devices with executor threads on one host share its caches and memory. By what fraction one slows
another (their contention) is how much longer a step takes in which both run a chain of matrix
products than one in which one of them does. The first two on one host stand for all.

Processor time is read from the clock of the worker's process, which other processes do not add
to; where workers run elsewhere, the delay of the computation stands for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import tensorflow as tf

from placer.devices import Link, LinkRule, Topology
from placer.errors import PlacerError
from placer.graph.source import GraphSource
from placer.protos import topology_pb2
from placer.runtime.measurement import Measurement, MeasurementProtocol
from placer.runtime.runner import Runner
from placer.runtime.step_stats import op_seconds

SIZES = (4, 1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 23, 1 << 26)
# Each figure is the least over as many steps as this takes, within limits.
_FIGURE_SECONDS = 0.5
_MIN_STEPS, _MAX_STEPS = 5, 60
_MATRIX = 256
_HOPS_SECONDS = 0.01
_MIN_HOPS, _MAX_HOPS = 2, 16
# Transfers next to a computation should take about this long together.
_BURST_SECONDS = 0.03
_MAX_BURST = 48
# The chain that contention is measured with: products of activations of so many rows and square
# weights, of which so many take turns, more than caches hold (128 MiB). They stand for a recurrent
# layer at batch 32: the weights come from memory each time, at about 16 operations a byte. Layers
# with more operations a byte slow each other less.
_CHAIN_ROWS, _CHAIN_SIZE, _CHAIN_WEIGHTS, _CHAIN_PRODUCTS = 32, 1024, 32, 64
_CHAIN_SECONDS = 0.1
# Two ends that slow each other by more cannot be told apart.
_MOST_CONTENTION = 0.9
# No link is faster than memory; a fit that finds no cost a byte gets this.
_FASTEST_BYTES_PER_SECOND = 1e12


@dataclasses.dataclass(frozen=True)
class Sample:
    """One figure measured: seconds of `what` ("crossing", "send", "receive") for a transfer."""

    what: str
    source: str
    target: str
    bytes: int
    seconds: float
    fitted: float = 0.0


@dataclasses.dataclass(frozen=True)
class Calibration:
    """A calibrated topology and how well its model fits.

    Attributes:
      topology: with the launch overheads and links that were measured.
      samples: every figure measured, with what the fit says.
    """

    topology: Topology
    samples: tuple[Sample, ...]

    @property
    def errors(self) -> dict[str, float]:
        """What was measured -> median of |fitted - measured| / measured over its samples."""
        kinds = dict.fromkeys(s.what for s in self.samples)
        return {
            kind: float(
                np.median(
                    [
                        abs(s.fitted - s.seconds) / max(s.seconds, 1e-9)
                        for s in self.samples
                        if s.what == kind
                    ]
                )
            )
            for kind in kinds
        }


class _Graph:
    """A graph under construction whose nodes know by role where to go."""

    def __init__(self) -> None:
        self.graph = tf.Graph()
        self._roles: dict[str, int] = {}
        self.ends: list[tf.Operation] = []

    def place(self, role: int, *tensors: tf.Tensor) -> None:
        """Gives the ops of `tensors` a role."""
        for tensor in tensors:
            self._roles[tensor.op.name] = role

    def finish(self) -> tuple[GraphSource, np.ndarray]:
        """The graph, fetched by `end`, and int32[N] roles; 0 for nodes without one."""
        with self.graph.as_default():
            tf.group(*self.ends, name="end")
        graph_def = self.graph.as_graph_def()
        roles = np.array([self._roles.get(n.name, 0) for n in graph_def.node], np.int32)
        return GraphSource(graph_def, ("end",), origin="calibration graph"), roles


def calibrate(
    runner_of: Callable[[GraphSource], Runner],
    sizes: Sequence[int] = SIZES,
    report: Callable[[str], None] = lambda line: None,
) -> Calibration:
    """Measures the devices of a topology.

    One pair of devices, in both directions, stands for each link rule; each device model has its
    launch overhead measured on its first device, and contention on the first pair of devices that
    may slow each other.

    Args:
      runner_of: opens a runner of a graph on the topology; it is closed again.
      sizes: of transfers, in bytes, multiples of 4.
      report: is told what was found, a line at a time.

    Raises:
      PlacerError: if the devices do not run what they are given, or sizes are out of range.
    """
    if len(set(sizes)) < 2 or any(s < 4 or s % 4 for s in sizes):
        raise PlacerError("calibrate: give at least two sizes, multiples of 4 bytes")
    first, _ = _ops(2)
    with runner_of(first) as runner:
        topology = runner.topology
        models = {}
        for k, model in enumerate(topology.models):
            device = int(np.flatnonzero(topology.device_model == k)[0])
            launch = _launch_seconds(runner, device)
            report(f"{model.name}: {1e6 * launch:.2f} us to launch an op")
            models[model] = dataclasses.replace(
                model, launch_seconds=launch, source="measured by placer calibrate"
            )
        contention = None
        neighbours = _neighbours(topology)
        if neighbours is not None:
            contention = _contention(runner, *neighbours)
            a, b = (topology.device_names[i] for i in neighbours)
            report(f"{a}, {b}: {100 * contention:.1f} % slower while the other computes")
        rules, samples = [], []
        for rule, pair in representatives(topology):
            measured = []
            for source, target in (pair, pair[::-1]):
                measured += _measure_link(runner, source, target, sizes)
            overlap = all(topology.devices[i].executor_threads > 0 for i in pair)
            link, fitted = fit_link(rule.link, measured, overlap, contention or 0.0)
            report(_describe(link, topology.device_names[pair[0]], topology.device_names[pair[1]]))
            rules.append(dataclasses.replace(rule, link=link))
            samples += fitted
    calibrated = dataclasses.replace(
        topology,
        devices=tuple(
            dataclasses.replace(
                d,
                model=models[d.model],
                contention=d.contention
                if contention is None or not d.executor_threads
                else contention,
            )
            for d in topology.devices
        ),
        link_rules=tuple(rules) or topology.link_rules,
    )
    return Calibration(calibrated, tuple(samples))


def representatives(topology: Topology) -> Iterable[tuple[LinkRule, tuple[int, int]]]:
    """The link rules, each with the first pair of devices that it joins."""
    count = topology.num_devices
    for rule in topology.link_rules:
        for i in range(count):
            for j in range(count):
                if i != j and _applies(topology, rule, i, j):
                    yield rule, (i, j)
                    break
            else:
                continue
            break


def _applies(topology: Topology, rule: LinkRule, source: int, target: int) -> bool:
    """Whether `rule` is the first that matches the pair."""
    same = topology.devices[source].host == topology.devices[target].host
    unwanted = topology_pb2.Link.BETWEEN_HOSTS if same else topology_pb2.Link.SAME_HOST
    for candidate in topology.link_rules:
        if (
            candidate.scope != unwanted
            and topology.matching(candidate.src)[source]
            and topology.matching(candidate.dst)[target]
        ):
            return candidate is rule
    return False


def _describe(link: Link, source: str, target: str) -> str:
    return (
        f"{source} - {target}: wire {1e6 * link.latency_seconds:.0f} us + "
        f"{link.bytes_per_second / 1e9:.2f} GB/s, "
        f"sender {1e6 * link.send_cpu_seconds:.0f} us + "
        f"{1e9 * link.send_cpu_seconds_per_byte:.3f} ns/byte, "
        f"receiver {1e6 * link.receive_cpu_seconds:.0f} us + "
        f"{1e9 * link.receive_cpu_seconds_per_byte:.3f} ns/byte"
    )


def _measure(
    runner: Runner, placement: np.ndarray, expected: float, traced: int = 0
) -> Measurement:
    """Runs a placement for as many steps as its expected step time allows."""
    steps = int(np.clip(_FIGURE_SECONDS / expected, _MIN_STEPS, _MAX_STEPS))
    protocol = MeasurementProtocol(warm_up=2, steps=steps, stop_ratio=0.0, repeats=0)
    measured = runner.measure(placement.astype(np.int32), protocol, keep_step_stats=traced)
    if measured.failure is not None:
        raise PlacerError(f"cannot calibrate: {measured.failure}")
    return measured


def _seconds(runner: Runner, placement: np.ndarray, expected: float) -> float:
    """The least step time: what disturbs a machine only ever adds."""
    return min(_measure(runner, placement, expected).steps)


def _busy_seconds(runner: Runner, placement: np.ndarray, device: int, expected: float) -> float:
    """Processor time of a worker a step, or the step time where that is unknown."""
    measured = _measure(runner, placement, expected)
    if measured.worker_cpu_seconds:
        return measured.worker_cpu_seconds[device]
    return min(measured.steps)


def _ops(count: int) -> tuple[GraphSource, np.ndarray]:
    """`count` additions of scalars, eight abreast, as graphs of real models are."""
    made = _Graph()
    with made.graph.as_default():
        one = tf.constant(1.0)
        row = [one] * 8
        for _ in range(count // 8 + 1):
            row = [tf.add(a, b) for a, b in zip(row, row[1:] + row[:1], strict=True)]
        made.ends = [t.op for t in row]
    return made.finish()


def _launch_seconds(runner: Runner, device: int) -> float:
    """Seconds an op costs beyond its own computation, by the slope over graphs of many ops."""
    counts, totals, computed = [], [], []
    for count in (400, 3200):
        source, _ = _ops(count)
        runner.load(source)
        measured = _measure(runner, np.full(runner.num_nodes, device), 0.01, traced=3)
        times = op_seconds(measured.traced_steps, {runner.session_devices[device]})
        counts.append(len(times))
        totals.append(min(measured.steps))
        computed.append(sum(float(np.min(t)) for t in times.values()))
    ops = counts[1] - counts[0]
    return max(0.0, ((totals[1] - totals[0]) - (computed[1] - computed[0])) / ops)


def _hops(size: int, hops: int) -> tuple[GraphSource, np.ndarray]:
    """A tensor handed on `hops` times; role 1 is on the other side."""
    made = _Graph()
    with made.graph.as_default():
        value = _constant(size)
        for i in range(hops):
            value = tf.identity(value)
            made.place((i + 1) % 2, value)
        made.ends = [value.op]
    return made.finish()


def _constant(size: int) -> tf.Tensor:
    """A tensor that a Const holds ready; making it costs a step nothing."""
    return tf.constant(0.5, tf.float32, [size // 4])


def _burst(size: int, transfers: int, products: int) -> tuple[GraphSource, np.ndarray]:
    """A chain of matrix products next to transfers.

    Roles: 0 where the chain runs, 1 where tensors come from, 2 where they go to.
    """
    made = _Graph()
    with made.graph.as_default():
        made.ends = []
        for _ in range(transfers):
            start = _constant(size)
            made.place(1, start)
            end = tf.identity(start)
            made.place(2, end)
            made.ends.append(end.op)
        value = fixed = tf.constant(1.0 / _MATRIX, tf.float32, [_MATRIX, _MATRIX])
        for _ in range(products):
            value = tf.matmul(value, fixed)
        made.ends.append(value.op)
    return made.finish()


def _neighbours(topology: Topology) -> tuple[int, int] | None:
    """The first two devices with executor threads on one host, if there are any."""
    devices = topology.devices
    for j, b in enumerate(devices):
        for i, a in enumerate(devices[:j]):
            if a.executor_threads and b.executor_threads and a.host == b.host:
                return i, j
    return None


def _chains(roles: Sequence[int]) -> tuple[GraphSource, np.ndarray]:
    """Independent chains of matrix products, one for each of some roles."""
    made = _Graph()
    with made.graph.as_default():
        for role in roles:
            weights = [
                tf.constant(1.0 / _CHAIN_SIZE, tf.float32, [_CHAIN_SIZE, _CHAIN_SIZE])
                for _ in range(_CHAIN_WEIGHTS)
            ]
            value = tf.constant(1.0, tf.float32, [_CHAIN_ROWS, _CHAIN_SIZE])
            made.place(role, value, *weights)
            for i in range(_CHAIN_PRODUCTS):
                value = tf.matmul(value, weights[i % _CHAIN_WEIGHTS])
                made.place(role, value)
            made.ends.append(value.op)
    return made.finish()


def _contention(runner: Runner, first: int, second: int) -> float:
    """By what fraction a device is slowed while another computes, at least 0."""
    seconds = []
    # The step ends on `first` either way, so that what a step costs besides is in both.
    for chains in ((1,), (0, 1)):
        graph, roles = _chains(chains)
        runner.load(graph)
        placement = np.where(roles == 1, second, first)
        seconds.append(_seconds(runner, placement, _CHAIN_SECONDS))
    alone, beside = seconds
    return max(0.0, beside / alone - 1)


def _measure_link(runner: Runner, source: int, target: int, sizes: Sequence[int]) -> list[Sample]:
    names = runner.topology.device_names[source], runner.topology.device_names[target]
    samples = []
    products = 64
    graph, _ = _burst(4, 1, products)
    runner.load(graph)
    product = _seconds(runner, np.full(runner.num_nodes, source), 0.01) / products
    crossing = 2e-4
    for size in sizes:
        hops = int(np.clip(_HOPS_SECONDS / crossing, _MIN_HOPS, _MAX_HOPS))
        graph, roles = _hops(size, hops)
        runner.load(graph)
        expected = hops * crossing
        apart = _seconds(runner, np.where(roles == 1, target, source), expected)
        together = _seconds(runner, np.full(len(roles), source), expected)
        crossing = max(1e-9, (apart - together) / hops)
        samples.append(Sample("crossing", *names, size, crossing))
        transfers = int(np.clip(_BURST_SECONDS / crossing, 1, _MAX_BURST))
        # Long enough to outlast the transfers, which it slows.
        length = 3 * transfers * crossing + 0.02
        graph, roles = _burst(size, transfers, int(np.ceil(length / product)))
        runner.load(graph)
        for what, busy in (("send", source), ("receive", target)):
            # The computation runs on `busy` each time; only the transfers come and go.
            away = np.choose(roles, [busy, source, target])
            near = np.full(len(roles), busy)
            cost = _busy_seconds(runner, away, busy, length)
            cost -= _busy_seconds(runner, near, busy, length)
            samples.append(Sample(what, *names, size, max(0.0, cost / transfers)))
    return samples


def fit_link(
    link: Link, samples: Sequence[Sample], overlap: bool = False, contention: float = 0.0
) -> tuple[Link, list[Sample]]:
    """Fits the link model to samples.

    Send and receive are fitted by themselves; the wire gets what is left of the crossings, or where
    the three overlap, the crossings. Errors count relative to the crossing of the same size, so
    that small sizes weigh as much as large.

    Args:
      link: whose sharing and bus are kept.
      samples: at two sizes at least, of each kind.
      overlap: send, wire and receive happen at the same time.
      contention: then, by what fraction the two ends slow each other. What was measured at one end
        has some of the other's work in it, which is taken out again.

    Returns:
      The link, and the samples with what the fit says.
    """
    crossings = [s for s in samples if s.what == "crossing"]
    scale = {
        size: float(np.mean([s.seconds for s in crossings if s.bytes == size]))
        for size in {s.bytes for s in crossings}
    }
    parts = {}
    for what in ("send", "receive"):
        chosen = [s for s in samples if s.what == what]
        parts[what] = _fit(
            [s.bytes for s in chosen],
            [s.seconds for s in chosen],
            [scale[s.bytes] for s in chosen],
        )
    slowed = min(contention, _MOST_CONTENTION) if overlap else 0.0
    # Measured are s + c r and r + c s.
    (s0, r0), (s1, r1) = (
        (
            max(0.0, (send - slowed * receive) / (1 - slowed**2)),
            max(0.0, (receive - slowed * send) / (1 - slowed**2)),
        )
        for send, receive in zip(parts["send"], parts["receive"], strict=True)
    )
    if overlap:
        rest = [s.seconds for s in crossings]
    else:
        rest = [max(0.0, s.seconds - (s0 + r0) - (s1 + r1) * s.bytes) for s in crossings]
    w0, w1 = _fit([s.bytes for s in crossings], rest, [scale[s.bytes] for s in crossings])

    def predicted(what: str, size: int) -> float:
        if what != "crossing":
            return parts[what][0] + parts[what][1] * size
        send, wire, receive = s0 + s1 * size, w0 + w1 * size, r0 + r1 * size
        if overlap:
            return max((1 + slowed) * send, wire, (1 + slowed) * receive)
        return send + wire + receive

    fitted = [dataclasses.replace(s, fitted=predicted(s.what, s.bytes)) for s in samples]
    rate = 1 / w1 if w1 * _FASTEST_BYTES_PER_SECOND > 1 else _FASTEST_BYTES_PER_SECOND
    return dataclasses.replace(
        link,
        latency_seconds=w0,
        bytes_per_second=rate,
        send_cpu_seconds=s0,
        send_cpu_seconds_per_byte=s1,
        receive_cpu_seconds=r0,
        receive_cpu_seconds_per_byte=r1,
    ), fitted


def _fit(sizes: Sequence[int], seconds: Sequence[float], scale: Sequence[float]) -> tuple:
    """Least squares of ((a + b size) - seconds) / scale with a, b >= 0."""
    weight = 1 / np.asarray(scale)
    columns = np.stack([weight, weight * np.asarray(sizes, float)], axis=1)
    wanted = weight * np.asarray(seconds)
    both = np.linalg.lstsq(columns, wanted, rcond=None)[0]
    if (both >= 0).all():
        return float(both[0]), float(both[1])
    candidates = []
    for keep in (0, 1):
        value = max(0.0, float(columns[:, keep] @ wanted / (columns[:, keep] ** 2).sum()))
        pair = [0.0, 0.0]
        pair[keep] = value
        candidates.append((float(((columns @ pair - wanted) ** 2).sum()), pair))
    return tuple(min(candidates)[1])
