"""Control edges: they help where they should, close no cycle, and change no number."""

from __future__ import annotations

import dataclasses
import itertools
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

import placer
from placer.cli.main import main
from placer.constraints import allowed_devices
from placer.costs import analytical_costs
from placer.devices import gpu_hosts, parse
from placer.graph import build_op_graph
from placer.pipeline import prepare
from placer.placement import Placement
from placer.problem import PlacementProblem
from placer.schedule import OrderRules, add_control_inputs, control_edges, find_schedule
from placer.simulator import Simulator
from placer.simulator.build import build_simulator, simulator_inputs
from tests.placers.problems import make_problem
from tests.sample_graphs import SAMPLES, Sample
from tests.test_legality import GPUS, run_step


def _clogged() -> graph_pb2.GraphDef:
    """Large tensors, ready at once, hold up the small one that a long chain waits for."""
    with tf.Graph().as_default() as graph:
        with tf.device("/GPU:0"):
            large = [tf.fill([4096, 4096], float(i), name=f"large_{i}") for i in range(3)]
            first = tf.random.uniform([512, 512], seed=1, name="first")
            urgent = tf.matmul(first, first, name="urgent")
        with tf.device("/GPU:1"):
            x = urgent
            for i in range(40):
                x = tf.matmul(x, x, name=f"chain_{i}")
            sums = [tf.reduce_sum(a, name=f"sum_{i}") for i, a in enumerate(large)]
            tf.add_n([tf.reduce_sum(x), *sums], name="out")
    return graph.as_graph_def()


def _step(problem: PlacementProblem, placement: np.ndarray, edges: list[tuple[int, int]]) -> float:
    inputs = simulator_inputs(problem)
    extra = np.array(edges, np.int32).reshape(-1, 2)
    inputs = dataclasses.replace(
        inputs,
        control_src=np.concatenate([inputs.control_src, extra[:, 0]]),
        control_dst=np.concatenate([inputs.control_dst, extra[:, 1]]),
    )
    return float(Simulator(inputs).evaluate(placement[None]).step_seconds[0])


def test_helps_where_early_tensors_clog_a_link() -> None:
    prepared = prepare(_clogged(), None, "k80:2")
    problem, placement = prepared.problem, prepared.came
    assert placement is not None
    found = find_schedule(problem, build_simulator(problem), placement, 30.0, 500)
    plain = _step(problem, placement, [])
    edges = list(zip(found.before.tolist(), found.after.tolist(), strict=True))
    assert found.step_seconds == _step(problem, placement, edges)
    # Every set of edges from the urgent product to the large tensors, by brute force.
    names = problem.graph.names
    urgent = names.index("urgent")
    large = [names.index(f"large_{i}") for i in range(3)]
    best = min(
        _step(problem, placement, [(urgent, b) for b in chosen])
        for size in range(4)
        for chosen in itertools.combinations(large, size)
    )
    assert best < 0.9 * plain
    assert found.step_seconds <= best * (1 + 1e-9)
    assert all(placement[a] == placement[b] for a, b in edges)


def test_optimize_writes_the_edges_and_records_them(tmp_path) -> None:
    graph_def = _clogged()
    before = graph_pb2.GraphDef.FromString(graph_def.SerializeToString())
    result = placer.optimize(
        graph_def, devices="k80:2", budget=30, evaluations=400, schedule=True, method="single_gpu"
    )
    assert [r.name for r in result.rows][-2:] == ["placer", "placer, scheduled"]
    assert result.step_seconds < result.rows[-2].step_seconds
    assert result.control_edges
    added = {
        (name.removeprefix("^"), node.name)
        for node, old in zip(graph_def.node, before.node, strict=True)
        for name in node.input[len(old.input) :]
    }
    assert added == set(result.control_edges)
    path = tmp_path / "placed.pb"
    result.save(path)
    saved = graph_pb2.GraphDef.FromString(path.read_bytes())
    assert saved == result.graph_def
    # Whoever reads the graph again finds the step time that was promised.
    again = prepare(saved, None, "k80:2")
    assert again.came is not None
    step = build_simulator(again.problem).evaluate(again.came[None]).step_seconds[0]
    assert step == pytest.approx(result.step_seconds, rel=1e-12)
    proto_path = tmp_path / "placement.pbtxt"
    result.placement.save(proto_path)
    loaded = Placement.load(proto_path)
    assert loaded.control_edges.tolist() == result.placement.control_edges.tolist()


def test_off_by_default() -> None:
    graph_def = _clogged()
    inputs = [list(node.input) for node in graph_def.node]
    result = placer.optimize(graph_def, devices="k80:2", evaluations=50, method="single_gpu")
    assert [list(node.input) for node in graph_def.node] == inputs
    assert not result.control_edges
    assert result.rows[-1].name == "placer"
    with pytest.raises(placer.PlacerError, match="reward simulate"):
        placer.optimize(graph_def, devices="local", reward="measure", schedule=True)


@pytest.mark.parametrize("name", SAMPLES)
def test_allowed_edges_change_no_number(name: str) -> None:
    """Hundreds of edges that the rules allow, useful or not: the real step gives the same."""
    sample = SAMPLES[name]()
    graph = build_op_graph(sample.source)
    topology = gpu_hosts("k80", GPUS)
    problem = PlacementProblem(
        graph,
        topology,
        analytical_costs(sample.source, graph, topology),
        allowed_devices(graph, topology),
    )
    rng = np.random.default_rng(1)
    wishes = rng.integers(0, topology.num_devices, int(graph.colocation.max()) + 1)
    placement = problem.repair(wishes[graph.colocation])
    rules = OrderRules(graph)
    executed = np.flatnonzero(graph.executed)
    edges: list[tuple[int, int]] = []
    for _ in range(3000):
        before, after = rng.choice(executed, 2).tolist()
        if placement[before] == placement[after] and rules.allows(before, after):
            rules.add(before, after)
            edges.append((before, after))
        if len(edges) == 200:
            break
    assert len(edges) >= 5
    scheduled = graph_pb2.GraphDef()
    scheduled.CopyFrom(sample.source.graph_def)
    for before, after in edges:
        scheduled.node[after].input.append("^" + scheduled.node[before].name)
    stand_ins = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(1 + GPUS)]
    devices = [stand_ins[d] for d in placement]
    expected, _, _ = run_step(sample, devices)
    changed = Sample(dataclasses.replace(sample.source, graph_def=scheduled), sample.values)
    got, _, _ = run_step(changed, devices)
    for a, b in zip(got, expected, strict=True):
        # Gradients may be summed in another order.
        scale = float(np.abs(b).max()) if np.size(b) else 0.0
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6 + 1e-4 * scale)


def test_what_may_not_wait_or_be_awaited() -> None:
    with tf.Graph().as_default() as graph:
        v = tf.Variable([1.0, 2.0], name="v")
        early = v.read_value()
        with tf.control_dependencies([early]):
            update = v.assign_add([1.0, 1.0])
        with tf.control_dependencies([update]):
            late = tf.raw_ops.ReadVariableOp(resource=v.handle, dtype=tf.float32, name="late")
        loose = tf.raw_ops.ReadVariableOp(resource=v.handle, dtype=tf.float32, name="loose")
        other = tf.square(tf.constant([3.0, 4.0]), name="other")
        noise = tf.raw_ops.RandomUniform(shape=[2], dtype=tf.float32, name="noise")
        tf.add_n([late, loose, other, noise, early], name="out")
    graph_def = graph.as_graph_def()
    problem = prepare(graph_def, ["out:0"], parse("k80:1")).problem
    names = problem.graph.names
    rules = OrderRules(problem.graph)
    at = names.index
    early_name = early.op.inputs[0].op.name if early.op.type == "Identity" else early.op.name
    assert rules.allows(at("other"), at(early_name))  # the update waits for this read
    assert not rules.allows(at("other"), at("loose"))  # it may come before the update, or after
    assert not rules.allows(at("other"), at("noise"))  # random numbers have a state
    assert not rules.allows(at("out"), at("other"))  # a cycle
    other_input = problem.graph.edge_src[problem.graph.edge_dst == at("other")][0]
    rules.add(at("other"), at(early_name))
    assert not rules.allows(at(early_name), int(other_input))  # a cycle through the added edge


def test_nothing_waits_for_what_writes_a_reference_variable() -> None:
    """One who fetches the accuracy alone would train the weights too."""
    tf1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [4, 2], name="x")
        v = tf1.get_variable("v", [2, 2], use_resource=False)
        loss = tf.reduce_sum(tf.matmul(x, v), name="loss")
        train = tf1.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
        tf.square(tf.constant([3.0, 4.0]), name="accuracy")
        tf.group(train, name="step")
    fetches = ["step", "accuracy:0", "loss:0"]
    problem = prepare(graph.as_graph_def(), fetches, parse("k80:1")).problem
    rules = OrderRules(problem.graph)
    types = [problem.graph.type_of(i) for i in range(problem.graph.num_ops)]
    writer = types.index("ApplyGradientDescent")
    accuracy = problem.graph.names.index("accuracy")
    assert not rules.allows(writer, accuracy)
    assert rules.allows(problem.graph.names.index("loss"), accuracy)


def test_keeps_to_its_deadline_where_the_rules_take_long() -> None:
    """Variables by the hundred, all read first and written behind a chain of thousands of ops."""
    variables, length = 500, 10_000
    last = variables + length
    edges = [(i, variables) for i in range(variables)]
    edges += [(i, i + 1) for i in range(variables, last - 1)]
    edges += [(last - 1, last + i) for i in range(variables)]
    problem = make_problem(
        edges,
        [1e-4] * (last + variables),
        types=["ReadVariableOp"] * variables + ["Tanh"] * length + ["AssignVariableOp"] * variables,
        together=[(i, last + i) for i in range(variables)],
    )
    rules = OrderRules(problem.graph)
    start = time.process_time()
    for writer in range(last, last + 20):
        rules.ancestors(writer)
    twenty = time.process_time() - start
    placement = problem.single_device(1)
    simulator = build_simulator(problem)
    start = time.process_time()
    found = find_schedule(problem, simulator, placement, 0.0)
    # To look behind every writer takes 25 times as long.
    assert time.process_time() - start < 10 * twenty
    assert not len(found.before)


def test_writes_each_edge_once() -> None:
    prepared = prepare(_clogged(), None, "k80:2")
    assert prepared.came is not None
    found = find_schedule(
        prepared.problem, build_simulator(prepared.problem), prepared.came, 30.0, 200
    )
    graph_def = graph_pb2.GraphDef()
    graph_def.CopyFrom(prepared.source.graph_def)
    add_control_inputs(graph_def, found)
    once = graph_def.SerializeToString()
    add_control_inputs(graph_def, found)
    assert graph_def.SerializeToString() == once


def test_command_line_writes_the_edges(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    graph, output = tmp_path / "graph.pb", tmp_path / "placed.pb"
    graph.write_bytes(_clogged().SerializeToString())
    flags = ["--devices", "k80:2", "--evaluations", "200", "--output", str(output)]
    assert main(["optimize", str(graph), *flags, "--schedule"]) == 0
    written = graph_pb2.GraphDef.FromString(output.read_bytes())
    edges = sum(name.startswith("^") for node in written.node for name in node.input)
    assert edges > 0
    assert f"{edges} control edges added" in capfd.readouterr().out
    assert main(["optimize", str(graph), *flags, "--schedule", "--reward", "measure"]) == 2
    assert "schedule works with reward simulate only" in capfd.readouterr().err


def test_ctrl_c_keeps_the_edges_found_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = prepare(_clogged(), None, "k80:2")
    problem, placement = prepared.problem, prepared.came
    assert placement is not None
    calls = []
    proposals = control_edges._proposals

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return proposals(*arguments)

    monkeypatch.setattr(control_edges, "_proposals", interrupted)
    found = find_schedule(problem, build_simulator(problem), placement, 30.0, 500)
    assert found.interrupted
    assert len(found.before) > 0
    edges = list(zip(found.before.tolist(), found.after.tolist(), strict=True))
    assert found.step_seconds == _step(problem, placement, edges)
