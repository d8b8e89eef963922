"""Small problems for the policy's tests, through the whole pipeline."""

from __future__ import annotations

import dataclasses
import functools

import tensorflow as tf

from placer import devices, graph
from placer.constraints import allowed_devices
from placer.costs import analytical_costs
from placer.devices import Topology
from placer.grouping import Grouping, atoms
from placer.problem import PlacementProblem
from placer.search import Budget, Search
from placer.simulator import Simulator
from placer.simulator.build import build_simulator


def two_gpus() -> Topology:
    """Two K80s without their CPU: two devices."""
    topology = devices.parse("k80:2")
    gpus = tuple(d for d in topology.devices if d.model.type == "GPU")
    return dataclasses.replace(topology, devices=gpus, client=0)


@functools.cache
def chains(
    topology: Topology, length: int = 4, count: int = 2, size: int = 2048
) -> tuple[PlacementProblem, Grouping, Simulator]:
    """Independent chains of matrix products, summed at the end."""
    tf_graph = tf.Graph()
    with tf_graph.as_default():
        sums = []
        for c in range(count):
            x = tf.random.uniform([size, size], seed=c + 1, name=f"chain{c}_input")
            for i in range(length):
                x = tf.matmul(x, x, name=f"chain{c}_product{i}")
            sums.append(tf.reduce_sum(x, name=f"chain{c}_sum"))
        tf.add_n(sums, name="total")
    source = graph.read(tf_graph, fetches=["total"])
    op_graph = graph.build_op_graph(source)
    problem = PlacementProblem(
        op_graph,
        topology,
        analytical_costs(source, op_graph, topology),
        allowed_devices(op_graph, topology),
    )
    return problem, atoms(problem), build_simulator(problem)


def search_of(
    problem: tuple[PlacementProblem, Grouping, Simulator], evaluations: int, seed: int = 0
) -> Search:
    return Search(*problem, budget=Budget(evaluations=evaluations), seed=seed)
