"""Topologies: device names as TensorFlow reads them, links, files, and what is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from placer.devices import (
    LinkRule,
    Sharing,
    gpu_hosts,
    load_topology,
    parse,
    parse_device_spec,
    save_topology,
    topology_fingerprint,
    topology_from_proto,
    topology_to_proto,
)
from placer.errors import PlacerError
from placer.protos import topology_pb2
from placer.simulator.build import build_simulator
from tests.placers.problems import random_problem

_JOB = st.sampled_from(["", "/job:localhost", "/job:ps"])
_REPLICA = st.sampled_from(["", "/replica:0", "/replica:1"])
_TASK = st.sampled_from(["", "/task:0", "/task:1"])
_KIND = st.sampled_from(
    ["", "/device:GPU:1", "/device:GPU:*", "/gpu:0", "/GPU:2", "/cpu:0", "/device:CPU:0", "/CPU:*"]
)


@hypothesis.given(_JOB, _REPLICA, _TASK, _KIND)
@hypothesis.settings(deadline=None)
def test_partial_names_match_as_in_tensorflow(job: str, replica: str, task: str, kind: str) -> None:
    spec = job + replica + task + kind
    wanted = tf.DeviceSpec.from_string(spec)
    topology = gpu_hosts("k80", 2, 2)
    expected = []
    for name in topology.device_names:
        full = tf.DeviceSpec.from_string(name)
        expected.append(
            all(
                getattr(wanted, f) in (None, getattr(full, f))
                for f in ("job", "replica", "task", "device_type", "device_index")
            )
        )
    assert topology.matching(spec).tolist() == expected


@pytest.mark.parametrize(
    ("spec", "expected"), [("/", 6), ("/job:*", 6), ("/job:*/task:0/cpu:*", 1)]
)
def test_names_that_fix_little_are_names_to_tensorflow_too(spec: str, expected: int) -> None:
    graph_def = graph_pb2.GraphDef()
    with tf.Graph().as_default() as graph:
        tf.constant(1.0, name="x")
        graph_def.CopyFrom(graph.as_graph_def())
    graph_def.node[0].device = spec
    with tf.Graph().as_default():
        tf.graph_util.import_graph_def(graph_def, name="")
        with tf.compat.v1.Session() as session:
            assert session.run("x:0") == 1.0
    assert gpu_hosts("k80", 2, 2).matching(spec).sum() == expected


@pytest.mark.parametrize(
    "spec",
    ["here", "/device", "/job:0", "GPU:0", "/task:x", "/gpu:0 ", "//", "/job:*a", "/task:0/"],
)
def test_what_is_no_device_name_is_refused(spec: str) -> None:
    with pytest.raises(PlacerError, match="device"):
        parse_device_spec(spec)


def test_k80_links_follow_the_published_constants() -> None:
    topology = parse("k80:4")
    assert [d.model.type for d in topology.devices] == ["CPU"] + ["GPU"] * 4
    links = topology.links()
    off = ~np.eye(5, dtype=bool)
    assert links.latency[off] == pytest.approx(25e-6)
    assert links.seconds_per_byte[off] == pytest.approx(1 / 7.6e9)
    assert all(d.model.launch_seconds == pytest.approx(5.7e-6) for d in topology.devices[1:])
    # One outgoing bus a device: transfers from one device share a channel, from two they do not.
    for i in range(5):
        own = {int(links.channels[i, j, 0]) for j in range(5) if j != i}
        assert len(own) == 1
    assert len({int(links.channels[i, (i + 1) % 5, 0]) for i in range(5)}) == 5


@pytest.mark.parametrize("spec", ["k80:2", "v100:2x2", "h100:8", "local", "workers:2"])
def test_files_give_the_same_topology_back(spec: str, tmp_path: Path) -> None:
    topology = parse(spec)
    assert topology_from_proto(topology_to_proto(topology)) == topology
    save_topology(topology, tmp_path / "t.pbtxt")
    again = parse(str(tmp_path / "t.pbtxt"))
    assert again == topology
    assert topology_fingerprint(again) == topology_fingerprint(topology)
    (tmp_path / "t.pb").write_bytes(topology_to_proto(topology).SerializeToString())
    assert load_topology(tmp_path / "t.pb") == topology
    assert topology_fingerprint(topology.with_scaled_links(2)) != topology_fingerprint(topology)


@pytest.mark.parametrize("spec", ["k80:3", "v100:2x2"])
def test_devices_of_one_class_may_be_exchanged(spec: str) -> None:
    problem = random_problem(5, topology=spec)
    topology = problem.topology
    simulator = build_simulator(problem)
    rng = np.random.default_rng(0)
    classes = topology.symmetry_classes()
    pairs = [
        (i, j) for i in range(topology.num_devices) for j in range(i) if classes[i] == classes[j]
    ]
    assert pairs
    for i, j in pairs:
        wish = rng.integers(0, topology.num_devices, problem.graph.num_ops).astype(np.int32)
        placement = problem.repair(wish)
        swap = np.arange(topology.num_devices, dtype=np.int32)
        swap[[i, j]] = swap[[j, i]]
        both = simulator.evaluate(np.stack([placement, swap[placement]])).step_seconds
        assert both[0] == pytest.approx(both[1], rel=1e-12)
    assert [c for c in classes if c == classes[topology.client]] == [classes[topology.client]]


def _proto() -> topology_pb2.Topology:
    return topology_to_proto(gpu_hosts("k80", 2))


def _no_devices(p: topology_pb2.Topology) -> None:
    p.ClearField("devices")
    p.client = ""


def _twice(p: topology_pb2.Topology) -> None:
    p.devices[2].name = p.devices[1].name


def _short_name(p: topology_pb2.Topology) -> None:
    p.devices[1].name = "/gpu:0"


def _unknown_model(p: topology_pb2.Topology) -> None:
    p.devices[1].model = "abacus"


def _no_memory(p: topology_pb2.Topology) -> None:
    p.devices[1].memory_bytes = -1


def _no_link(p: topology_pb2.Topology) -> None:
    p.ClearField("links")


def _no_bandwidth(p: topology_pb2.Topology) -> None:
    p.links[0].bytes_per_second = 0


def _not_a_number(p: topology_pb2.Topology) -> None:
    p.links[0].latency_seconds = float("nan")


def _unknown_sharing(p: topology_pb2.Topology) -> None:
    p.links[0].sharing = 9


def _unknown_scope(p: topology_pb2.Topology) -> None:
    p.links[0].scope = 9


def _model(**values: float) -> Callable[[topology_pb2.Topology], None]:
    """Damage to the model of the GPUs."""

    def damage(p: topology_pb2.Topology) -> None:
        for name, value in values.items():
            setattr(p.models[1], name, value)

    return damage


def _client_elsewhere(p: topology_pb2.Topology) -> None:
    p.client = "/job:ps/replica:0/task:0/device:CPU:0"


def _bad_rule(p: topology_pb2.Topology) -> None:
    p.links[0].src = "everywhere"


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (_no_devices, "no devices"),
        (_twice, "twice"),
        (_short_name, "full device name"),
        (_unknown_model, "'abacus'"),
        (_no_memory, "memory_bytes"),
        (_no_link, "no link"),
        (_no_bandwidth, "bytes_per_second"),
        (_not_a_number, "costs"),
        (_unknown_sharing, "sharing"),
        (_unknown_scope, "scope 9"),
        (_model(bytes_per_second=0), "bytes_per_second"),
        (_model(bytes_per_second=float("inf")), "bytes_per_second"),
        (_model(bytes_per_second=float("nan")), "bytes_per_second"),
        (_model(frequency_mhz=float("inf")), "frequency_mhz"),
        (_model(num_cores=-1), "num_cores"),
        (_model(launch_seconds=-1), "launch_seconds"),
        (_model(launch_seconds=float("nan")), "launch_seconds"),
        (_client_elsewhere, "client"),
        (_bad_rule, "'everywhere'"),
    ],
)
def test_bad_files_are_refused(damage, says: str, tmp_path: Path) -> None:
    proto = _proto()
    damage(proto)
    (tmp_path / "bad.pb").write_bytes(proto.SerializeToString())
    with pytest.raises(PlacerError, match=says):
        load_topology(tmp_path / "bad.pb")


def test_files_that_are_no_topology(tmp_path: Path) -> None:
    (tmp_path / "noise.pbtxt").write_bytes(b"\xff\xfe not a proto")
    with pytest.raises(PlacerError, match=r"noise\.pbtxt"):
        parse(str(tmp_path / "noise.pbtxt"))
    with pytest.raises(PlacerError, match=r"absent\.pbtxt"):
        load_topology(tmp_path / "absent.pbtxt")


@pytest.mark.parametrize(
    "spec", ["k80:0", "k80:-1", "k80", "abacus:2", "", "k80:2x0", "workers:0", "grpc://here"]
)
def test_bad_specs(spec: str) -> None:
    with pytest.raises(PlacerError):
        parse(spec)


def test_memory_limits() -> None:
    topology = parse("k80:2")
    assert topology.with_memory([1, 2, 3]).memory_bytes.tolist() == [1, 2, 3]
    assert topology.with_memory(topology.memory_bytes.tolist()) == topology
    with pytest.raises(PlacerError, match="2 memory limits for 3 devices"):
        topology.with_memory([1, 2])
    with pytest.raises(PlacerError, match="no devices"):
        dataclasses.replace(topology, devices=())


def test_devices_on_different_buses_are_not_alike() -> None:
    topology = gpu_hosts("k80", 4)
    link = topology.link_rules[-1].link
    gpu = "/device:GPU:{}"
    rules = [
        LinkRule(
            dataclasses.replace(link, sharing=Sharing.BUS, bus=f"switch{pair[0] // 2}"),
            gpu.format(a),
            gpu.format(b),
        )
        for pair in ((0, 1), (2, 3))
        for a, b in (pair, pair[::-1])
    ]
    rules.append(LinkRule(dataclasses.replace(link, sharing=Sharing.BUS, bus="between")))
    switched = dataclasses.replace(topology, link_rules=tuple(rules))
    classes = switched.symmetry_classes()
    gpus = list(topology.accelerators)
    # Those of one switch may be exchanged, and no others.
    assert classes[gpus[0]] == classes[gpus[1]]
    assert classes[gpus[2]] == classes[gpus[3]]
    assert classes[gpus[0]] != classes[gpus[2]]
    assert len(set(topology.symmetry_classes()[gpus])) == 1


def test_executors_of_one_host_slow_each_other() -> None:
    workers = parse("workers:2")
    assert workers.devices[0].contention > 0
    first, second = workers.devices
    devices = (
        dataclasses.replace(first, contention=0.25),
        dataclasses.replace(second, contention=0.5),
        dataclasses.replace(first, name=first.name.replace("task:0", "task:2"), host=1),
        dataclasses.replace(first, name=first.name.replace("task:0", "task:3"), executor_threads=0),
    )
    topology = dataclasses.replace(workers, devices=devices)
    expected = np.zeros((4, 4))
    expected[0, 1], expected[1, 0] = 0.25, 0.5
    np.testing.assert_array_equal(topology.contention, expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"executor_threads": -1}, "executor_threads of 0 to"),
        ({"executor_threads": 1000}, "executor_threads of 0 to"),
        ({"contention": -0.1}, "contention >= 0"),
        ({"contention": float("nan")}, "contention >= 0"),
        ({"concurrency": 2}, "its concurrency must be 1, not 2"),
    ],
)
def test_bad_executors(changes: dict[str, float], message: str) -> None:
    workers = parse("workers:1")
    device = dataclasses.replace(workers.devices[0], **changes)
    with pytest.raises(PlacerError, match=message):
        dataclasses.replace(workers, devices=(device,))
