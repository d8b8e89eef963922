"""The link model's fit, against links whose costs are known, and one real calibration."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from placer.devices import (
    Link,
    LinkRule,
    Sharing,
    gpu_hosts,
    load_topology,
    parse,
    save_topology,
)
from placer.errors import PlacerError
from placer.runtime import RunnerSettings, open_runner
from placer.runtime.calibration import SIZES, Sample, _neighbours, calibrate, fit_link

PARTS = {"send": (1e-4, 3e-10), "wire": (2e-5, 2e-10), "receive": (5e-5, 4e-10)}


def samples(parts: dict[str, tuple[float, float]], noise: float = 0.0) -> list[Sample]:
    generator = np.random.default_rng(0)
    found = []
    for size in SIZES:
        cost = {k: a + b * size for k, (a, b) in parts.items()}
        crossing = sum(cost.values())
        for what, seconds in (
            ("crossing", crossing),
            ("send", cost["send"]),
            ("receive", cost["receive"]),
        ):
            noisy = seconds + noise * crossing * generator.normal()
            found.append(Sample(what, "a", "b", size, max(0.0, noisy)))
    return found


def test_an_exact_link_is_recovered() -> None:
    link, fitted = fit_link(Link(1.0, 1.0, Sharing.BUS, "bus"), samples(PARTS))
    assert link.send_cpu_seconds == pytest.approx(1e-4)
    assert link.send_cpu_seconds_per_byte == pytest.approx(3e-10)
    assert link.latency_seconds == pytest.approx(2e-5)
    assert link.bytes_per_second == pytest.approx(5e9)
    assert link.receive_cpu_seconds == pytest.approx(5e-5)
    assert link.receive_cpu_seconds_per_byte == pytest.approx(4e-10)
    assert (link.sharing, link.bus) == (Sharing.BUS, "bus")
    assert [s.fitted for s in fitted] == pytest.approx([s.seconds for s in fitted])


def test_what_both_ends_cost_each_other_is_no_part_of_a_link() -> None:
    contention = 0.2
    (s0, s1), (r0, r1) = PARTS["send"], PARTS["receive"]
    wire = (1e-3, 1e-9)  # longer than either end's part
    found = []
    for size in SIZES:
        send, receive = s0 + s1 * size, r0 + r1 * size
        found += [
            Sample("crossing", "a", "b", size, wire[0] + wire[1] * size),
            Sample("send", "a", "b", size, send + contention * receive),
            Sample("receive", "a", "b", size, receive + contention * send),
        ]
    link, fitted = fit_link(Link(1.0, 1.0), found, overlap=True, contention=contention)
    assert link.send_cpu_seconds == pytest.approx(s0)
    assert link.send_cpu_seconds_per_byte == pytest.approx(s1)
    assert link.receive_cpu_seconds == pytest.approx(r0)
    assert link.receive_cpu_seconds_per_byte == pytest.approx(r1)
    assert link.latency_seconds == pytest.approx(wire[0])
    assert [s.fitted for s in fitted] == pytest.approx([s.seconds for s in fitted])


def test_devices_that_may_slow_each_other() -> None:
    assert _neighbours(parse("workers:2")) == (0, 1)
    assert _neighbours(parse("workers:1")) is None
    assert _neighbours(gpu_hosts("v100", 2)) is None
    apart = parse("workers:2")
    hosts = (dataclasses.replace(d, host=i) for i, d in enumerate(apart.devices))
    assert _neighbours(dataclasses.replace(apart, devices=tuple(hosts))) is None


def test_noise_moves_the_fit_little() -> None:
    link, _ = fit_link(Link(1.0, 1.0), samples(PARTS, noise=0.02))
    assert link.send_cpu_seconds_per_byte == pytest.approx(3e-10, rel=0.2)
    assert link.receive_cpu_seconds == pytest.approx(5e-5, rel=0.3)


def test_no_cost_is_negative_and_a_free_link_is_fast() -> None:
    free = {"send": (1e-4, 0.0), "wire": (0.0, 0.0), "receive": (0.0, 0.0)}
    link, _ = fit_link(Link(1.0, 1.0), samples(free, noise=0.05))
    assert (
        min(
            link.latency_seconds,
            link.send_cpu_seconds,
            link.send_cpu_seconds_per_byte,
            link.receive_cpu_seconds,
            link.receive_cpu_seconds_per_byte,
        )
        >= 0
    )
    assert link.bytes_per_second > 1e10


def test_two_workers_are_calibrated(tmp_path: Path) -> None:
    lines: list[str] = []
    result = calibrate(
        lambda source: open_runner("workers:2", source, RunnerSettings(disturbance_ratio=0)),
        sizes=(4, 1 << 20),
        report=lines.append,
    )
    assert len(lines) == 3
    contention = {d.contention for d in result.topology.devices}
    assert len(contention) == 1
    assert 0 <= contention.pop() < 3
    link = result.topology.link(0, 1)
    assert 0 < link.send_cpu_seconds < 0.1
    crossing = (
        link.latency_seconds
        + (1 << 20) / link.bytes_per_second
        + link.send_cpu_seconds
        + link.receive_cpu_seconds
        + (1 << 20) * (link.send_cpu_seconds_per_byte + link.receive_cpu_seconds_per_byte)
    )
    assert 1e-4 < crossing < 0.5
    assert set(result.errors) == {"crossing", "send", "receive"}
    save_topology(result.topology, tmp_path / "here.pbtxt")
    assert load_topology(tmp_path / "here.pbtxt") == result.topology
    assert result.topology.name == "workers:2"


def test_one_size_is_not_enough() -> None:
    with pytest.raises(PlacerError, match="two sizes"):
        calibrate(lambda source: open_runner("local", source), sizes=(4,))


def test_rules_that_join_nothing_are_kept() -> None:
    from placer.runtime.calibration import representatives

    topology = gpu_hosts("v100", 2)
    pairs = dict(representatives(topology))
    assert len(pairs) == 2  # NVLink and PCIe; there is no second host
    assert isinstance(next(iter(pairs)), LinkRule)
