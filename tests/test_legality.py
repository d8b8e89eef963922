"""TensorFlow accepts our placements, honours them to the letter, and computes the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from placer.constraints import allowed_devices
from placer.costs import analytical_costs
from placer.devices import gpu_hosts
from placer.graph import OpGraph, build_op_graph, op_name
from placer.problem import PlacementProblem
from tests.sample_graphs import SAMPLES, Sample

tf1 = tf.compat.v1
GPUS = 3


def run_step(
    sample: Sample, devices: list[str] | None
) -> tuple[list[np.ndarray], tf1.RunMetadata, graph_pb2.GraphDef]:
    """Runs a step of a graph under TensorFlow's own placer, soft placement off.

    Returns:
      The sample's values before the step and the variables after it, the step stats, and the graph.
    """
    graph_def = graph_pb2.GraphDef()
    graph_def.CopyFrom(sample.source.graph_def)
    for i, node in enumerate(graph_def.node):
        node.device = "" if devices is None else devices[i]
    options = tf1.OptimizerOptions(opt_level=tf1.OptimizerOptions.L0)
    config = tf1.ConfigProto(
        device_count={"CPU": 1 + GPUS},
        allow_soft_placement=False,
        graph_options=tf1.GraphOptions(optimizer_options=options),
    )
    # The optimizer would fold and rename ops; what is asked is where each op of ours runs.
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    metadata = tf1.RunMetadata()
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(graph_def, name="")
        variables = []
        for node in graph_def.node:
            if node.op == "VarHandleOp":
                with graph.device(node.device or None):
                    handle = graph.get_tensor_by_name(f"{node.name}:0")
                    dtype = node.attr["dtype"].type
                    variables.append(tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype))
        with tf1.Session(graph=graph, config=config) as session:
            if sample.source.init_op is not None:
                session.run(sample.source.init_op)
            for name, value in sample.source.initial_values.items():
                handle = graph.get_tensor_by_name(f"{name}:0")
                node = next(n for n in graph_def.node if n.name == name)
                with graph.as_default(), graph.device(node.device or None):
                    assign = tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant(value))
                session.run(assign)
            fetches = [graph.get_operation_by_name(op_name(f)) for f in sample.source.fetches]
            values = session.run(list(sample.values))
            session.run(
                fetches,
                options=tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE),
                run_metadata=metadata,
            )
            values += session.run(variables)
    return values, metadata, graph_def


def misplaced(metadata: tf1.RunMetadata, graph_def: graph_pb2.GraphDef) -> tuple[set, set]:
    """(ops that ran, ops that ran elsewhere than annotated) by the step stats."""
    wanted = {node.name: node.device for node in graph_def.node}
    ran, elsewhere = set(), set()
    for device in metadata.step_stats.dev_stats:
        for stats in device.node_stats:
            if stats.node_name in wanted:
                ran.add(stats.node_name)
                if device.device != wanted[stats.node_name]:
                    elsewhere.add((stats.node_name, device.device, wanted[stats.node_name]))
    return ran, elsewhere


@pytest.mark.parametrize("name", SAMPLES)
def test_random_legal_placements_are_honoured(name: str) -> None:
    sample = SAMPLES[name]()
    topology = gpu_hosts("k80", GPUS)
    graph = build_op_graph(sample.source)
    problem = PlacementProblem(
        graph,
        topology,
        analytical_costs(sample.source, graph, topology),
        allowed_devices(graph, topology),
    )
    expected, _, _ = run_step(sample, None)
    stand_ins = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(1 + GPUS)]
    rng = np.random.default_rng(0)
    for _ in range(3):
        wishes = rng.integers(0, topology.num_devices, int(graph.colocation.max()) + 1)
        placement = problem.repair(wishes[graph.colocation])
        problem.check(placement)
        values, metadata, graph_def = run_step(sample, [stand_ins[d] for d in placement])
        ran, elsewhere = misplaced(metadata, graph_def)
        assert not elsewhere
        assert not _expected_to_run(sample, graph) - ran
        assert len(set(placement.tolist())) > 1
        for got, want in zip(values, expected, strict=True):
            # Other devices, other orders of summation: equal to rounding, which the gradients of
            # an untrained Inception with batch normalisation magnify.
            scale = float(np.abs(want).max()) if np.size(want) else 0.0
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 + 2e-3 * scale)


def _expected_to_run(sample: Sample, graph: OpGraph) -> set[str]:
    """Names of the ops that must show in the step stats.

    Not there: functional control flow, which TensorFlow lowers to other ops; the branch of a
    conditional that is not taken, and what only it reads; constants, which it copies to each
    device that reads them.
    """
    absent = ("While", "StatelessWhile", "If", "StatelessIf", "PartitionedCall", "Const")
    branches = any(n.op in ("Switch", "If", "StatelessIf") for n in sample.source.graph_def.node)
    return {
        name
        for i, name in enumerate(graph.names)
        if graph.executed[i]
        and graph.type_of(i) not in absent
        and graph.type_of(i) != "StatefulPartitionedCall"
        and not (branches and name.startswith(("cond", "gradients")))
    }


def test_devices_that_the_user_fixed_are_kept() -> None:
    sample = SAMPLES["user_devices"]()
    topology = gpu_hosts("k80", GPUS)
    graph = build_op_graph(sample.source)
    allowed = allowed_devices(graph, topology)
    at = {name: np.flatnonzero(allowed[i]).tolist() for i, name in enumerate(graph.names)}
    assert at["on_gpu_1"] == [2]
    assert at["w"] == [2]
    assert at["on_cpu"] == [0]
    assert at["on_any_gpu"] == [1, 2, 3]
