"""Sessions under the plugin: what moves, what stays, and that no number changes."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import placer.plugin
from placer.errors import PlacerError
from placer.graph import op_name
from placer.placement import Placement
from tests.sample_graphs import SAMPLES, Sample

tf1 = tf.compat.v1
DEVICES = tuple(f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(3))
# The last has GPU names of its own, which are not here.
NAMES = [name for name in SAMPLES if name != "user_devices"]


@pytest.fixture(autouse=True)
def _fresh_report() -> None:
    placer.plugin.reset_report()


def run(
    sample: Sample,
    placement: Mapping[str, str] | None = None,
    annotate: Mapping[str, str] | None = None,
) -> tuple[list[np.ndarray], dict[str, str]]:
    """Values after two steps, and node -> device of the second step.

    With `placement`, resources are created where it says; with `annotate`, every node carries its
    device in the GraphDef.
    """
    graph_def = tf1.GraphDef()
    graph_def.CopyFrom(sample.source.graph_def)
    for node in graph_def.node:
        node.device = annotate[node.name] if annotate else ""
    placement = placement or {}
    metadata = tf1.RunMetadata()
    with tf.Graph().as_default() as graph:
        with placer.plugin.variable_scope(placement):
            tf.graph_util.import_graph_def(graph_def, name="")
        with tf1.Session(config=tf1.ConfigProto(device_count={"CPU": len(DEVICES)})) as session:
            if sample.source.init_op is not None:
                session.run(sample.source.init_op)
            for name, value in sample.source.initial_values.items():
                with tf.device(placement.get(name)):
                    handle = graph.get_tensor_by_name(f"{name}:0")
                    value = tf.constant(value)
                    assign = tf.raw_ops.AssignVariableOp(resource=handle, value=value)
                session.run(assign)
            fetches = [graph.get_operation_by_name(op_name(f)) for f in sample.source.fetches]
            session.run(fetches)
            session.run(
                fetches,
                options=tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE),
                run_metadata=metadata,
            )
            values = session.run(list(sample.values))
    devices = {
        stats.node_name: device.device
        for device in metadata.step_stats.dev_stats
        for stats in device.node_stats
    }
    return values, devices


def legal(sample: Sample, seed: int | None = None) -> Placement:
    """Contiguous pieces, or random ones, that keep colocated ops together."""
    from placer.graph import build_op_graph

    graph = build_op_graph(sample.source)
    nodes = sample.source.graph_def.node
    wanted = np.arange(len(nodes)) * len(DEVICES) // len(nodes)
    if seed is not None:
        wanted = np.random.default_rng(seed).integers(0, len(DEVICES), len(nodes))
    of_group = dict(zip(graph.colocation.tolist(), wanted.tolist(), strict=True))
    return Placement(
        ops=tuple(n.name for n in nodes),
        op_types=tuple(n.op for n in nodes),
        devices=DEVICES,
        device_of_op=np.array([of_group[g] for g in graph.colocation.tolist()], np.int32),
        graph_fingerprint="the graph",
    )


def torn(sample: Sample, seed: int) -> dict[str, str]:
    """Every op anywhere: illegal wherever two must be together."""
    generator = np.random.default_rng(seed)
    return {n.name: DEVICES[generator.integers(3)] for n in sample.source.graph_def.node}


def assert_same(values: list[np.ndarray], base: list[np.ndarray]) -> None:
    for value, expected in zip(values, base, strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-6)


def left_nodes() -> set[str]:
    return {
        name
        for graph in placer.plugin.report().latest
        for names in graph.left.values()
        for name in names
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_op_runs_where_a_legal_placement_says(name: str) -> None:
    sample = SAMPLES[name]()
    placement = legal(sample)
    annotated, _ = run(sample, annotate=placement)
    with placer.plugin.applied(placement, graph=sample.source.graph_def):
        values, devices = run(sample, placement)
    assert_same(values, annotated)
    # Batch normalisation of two images makes the last bit of a fused op matter a great deal.
    if name != "inception_step":
        assert_same(values, run(sample)[0])
    assert placer.plugin.report().moved > 0
    elsewhere = {n for n, d in devices.items() if n in placement and placement[n] != d}
    assert not elsewhere - left_nodes()
    if name != "v1_while_loop":  # A loop that reads a variable stays with it, all of it.
        assert len(elsewhere) <= 0.1 * len(devices)


@pytest.mark.parametrize("name", [n for n in NAMES if n != "inception_step"])
@pytest.mark.parametrize("scoped", [False, True])
def test_a_torn_placement_changes_no_number(name: str, scoped: bool) -> None:
    sample = SAMPLES[name]()
    base, _ = run(sample)
    placement = torn(sample, seed=len(name))
    with placer.plugin.applied(placement, graph=sample.source.graph_def):
        values, devices = run(sample, placement if scoped else None)
    assert_same(values, base)
    elsewhere = {n for n, d in devices.items() if n in placement and placement[n] != d}
    assert not elsewhere - left_nodes()


def test_nothing_active_changes_nothing() -> None:
    sample = SAMPLES["lstm_step"]()
    placer.plugin.load()
    _, devices = run(sample)
    assert set(devices.values()) == {DEVICES[0]}
    report = placer.plugin.report()
    assert report.graphs == 0
    assert report.idle_graphs > 0


@pytest.mark.parametrize(
    "placement",
    [
        {},
        {"another/graph": DEVICES[1], "of/other/names": DEVICES[2]},
    ],
    ids=["empty", "of another graph"],
)
def test_a_placement_that_does_not_match_is_not_applied(placement: dict[str, str]) -> None:
    sample = SAMPLES["lstm_step"]()
    base, _ = run(sample)
    with placer.plugin.applied(placement):
        values, devices = run(sample)
    assert_same(values, base)
    assert set(devices.values()) == {DEVICES[0]}
    assert placer.plugin.report().matched == 0
    assert placer.plugin.report().graphs > 0


def test_same_names_and_types_but_other_edges_do_not_match() -> None:
    sample = SAMPLES["lstm_step"]()
    nodes = sample.source.graph_def.node
    other = tf1.GraphDef()
    other.CopyFrom(sample.source.graph_def)
    for node in other.node:
        del node.input[:]
        node.input.extend([nodes[0].name, nodes[1].name])
    with placer.plugin.applied(dict.fromkeys((n.name for n in nodes), DEVICES[1]), graph=other):
        run(sample)
    assert placer.plugin.report().matched == 0


def test_devices_that_do_not_exist_are_left(capfd: pytest.CaptureFixture[str]) -> None:
    sample = SAMPLES["lstm_step"]()
    base, _ = run(sample)
    names = ("/job:worker/replica:0/task:7/device:CPU:0", "/device:GPU:3")
    nodes = sample.source.graph_def.node
    placement = {n.name: names[i % 2] for i, n in enumerate(nodes)}
    with placer.plugin.applied(placement):
        values, devices = run(sample)
    assert_same(values, base)
    assert set(devices.values()) == {DEVICES[0]}
    assert "no such device in the session" in placer.plugin.report().latest[-1].left
    assert capfd.readouterr().err.count("devices that the session does not have") <= 1


def test_partial_device_names_are_completed() -> None:
    sample = SAMPLES["lstm_step"]()
    placement = dict.fromkeys((n.name for n in sample.source.graph_def.node), "/cpu:2")
    with placer.plugin.applied(placement):
        _, devices = run(sample, placement)
    assert set(devices.values()) == {DEVICES[2]}


def test_a_corrupt_file_activates_nothing(tmp_path: Path) -> None:
    sample = SAMPLES["lstm_step"]()
    legal(sample).save(tmp_path / "a.pb")
    (tmp_path / "b.pb").write_bytes((tmp_path / "a.pb").read_bytes()[:-7] + b"\xff" * 30)
    before = placer.plugin.report().active
    with pytest.raises(PlacerError, match=r"b\.pb"):
        placer.plugin.activate(tmp_path)
    assert placer.plugin.report().active == before


@pytest.mark.parametrize(
    ("placement", "options", "message"),
    [
        (None, {}, "needs a placement"),
        ({"a": "nowhere"}, {}, "names no device"),
        ({"a": DEVICES[0]}, {"mode": "other"}, "mode"),
        ({"a": 3}, {}, "op names to device names"),
        (3, {}, "cannot activate"),
        (None, {"mode": "heuristic", "time_limit": 0}, "time_limit"),
    ],
)
def test_bad_arguments_are_refused(placement: object, options: dict, message: str) -> None:
    with pytest.raises(PlacerError, match=message):
        placer.plugin.activate(placement, **options)  # type: ignore[arg-type]


def test_empty_and_missing_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlacerError, match="no placement file"):
        placer.plugin.activate(tmp_path)
    with pytest.raises(PlacerError, match="missing"):
        placer.plugin.activate(tmp_path / "missing.pb")


def test_the_latest_of_two_placements_of_a_graph_counts() -> None:
    sample = SAMPLES["lstm_step"]()
    names = [n.name for n in sample.source.graph_def.node]
    with contextlib.ExitStack() as stack:
        for device in (DEVICES[1], DEVICES[2]):
            stack.enter_context(placer.plugin.applied(dict.fromkeys(names, device)))
        _, devices = run(sample, dict.fromkeys(names, DEVICES[2]))
    assert set(devices.values()) == {DEVICES[2]}


def test_placements_of_different_graphs_that_match_alike_are_ambiguous() -> None:
    sample = SAMPLES["lstm_step"]()
    nodes = sample.source.graph_def.node
    with contextlib.ExitStack() as stack:
        for i in (1, 2):
            placement = Placement(
                ops=tuple(n.name for n in nodes),
                op_types=tuple(n.op for n in nodes),
                devices=DEVICES,
                device_of_op=np.full(len(nodes), i, np.int32),
                graph_fingerprint=f"graph {i}",
            )
            stack.enter_context(placer.plugin.applied(placement))
        _, devices = run(sample)
    assert set(devices.values()) == {DEVICES[0]}
    assert {g.outcome for g in placer.plugin.report().latest} == {"ambiguous"}


def test_deactivation_twice_is_harmless() -> None:
    activation = placer.plugin.activate({"a": DEVICES[1]})
    placer.plugin.deactivate(activation)
    placer.plugin.deactivate(activation)
    assert placer.plugin.report().active == 0


def test_the_heuristic_is_on_until_its_last_activation_ends() -> None:
    with placer.plugin.applied(mode="heuristic", time_limit=0.1):
        with placer.plugin.applied(mode="heuristic"):
            pass
        run(SAMPLES["lstm_step"]())
    assert {g.outcome for g in placer.plugin.report().latest} == {"heuristic"}
    placer.plugin.reset_report()
    run(SAMPLES["lstm_step"]())
    assert placer.plugin.report().graphs == 0


def test_the_sums_that_grappler_makes_of_add_n_move_with_it() -> None:
    """Its memory optimizer replaces an AddN by a temporary variable, which takes its name."""
    with tf.Graph().as_default() as graph:
        values = [tf1.random_uniform([4, 4], name=f"value_{i}") for i in range(2)]
        variable = tf.raw_ops.TemporaryVariable(
            shape=[4, 4], dtype=tf.float32, var_name="sum", name="sum/tmp_var"
        )
        zeros = tf.zeros([4, 4], name="sum/tmp_var_zeros")
        start = tf.raw_ops.Assign(ref=variable, value=zeros, name="sum/tmp_var_initializer")
        with tf.control_dependencies([start.op]):
            sums = [tf.raw_ops.AssignAdd(ref=variable, value=value) for value in values]
        with tf.control_dependencies([s.op for s in sums]):
            tf.raw_ops.DestroyTemporaryVariable(ref=variable, var_name="sum", name="sum")
    graph_def = graph.as_graph_def()
    for node in graph_def.node:
        node.device = DEVICES[0]
    known = [n.name for n in graph_def.node if n.name == "sum" or n.name.startswith("value")]
    with placer.plugin.applied(dict.fromkeys([*known, "sum/tmp_var"], DEVICES[1])):
        placed = placer.plugin.rewrite(graph_def.SerializeToString(), DEVICES)
    assert placed is not None
    devices = {n.name: n.device for n in tf1.GraphDef.FromString(placed).node}
    assert len(devices) > 8
    assert set(devices.values()) == {DEVICES[1]}


def test_variables_of_one_name_go_where_their_ops_are_placed() -> None:
    """TensorFlow makes names unique only after the scope has been asked."""
    placement = {"kernel": DEVICES[1], "kernel_1": DEVICES[2]}
    with tf.Graph().as_default(), placer.plugin.variable_scope(placement):
        handles = [tf.Variable(1.0, name="kernel").handle.op for _ in placement]
    assert {op.name: op.device for op in handles} == placement
