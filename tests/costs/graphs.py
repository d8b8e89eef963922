"""Small graphs for the tests of costs."""

import dataclasses

import tensorflow as tf

from placer.costs import OpCosts, analytical_costs
from placer.devices import Topology, parse
from placer.graph import GraphSource, OpGraph, build_op_graph, read


@dataclasses.dataclass
class Costed:
    source: GraphSource
    graph: OpGraph
    topology: Topology
    costs: OpCosts

    def op(self, name: str) -> int:
        return self.graph.names.index(name)

    def seconds(self, name: str, model: str = "k80") -> float:
        return float(self.costs.seconds[self.row(model), self.op(name)])

    def total(self, model: str = "k80") -> float:
        """Seconds of all executed ops one after the other, each with its first launch."""
        launch = self.topology.models[self.row(model)].launch_seconds
        return float(self.costs.seconds[self.row(model)].sum() + launch * self.launched)

    @property
    def launched(self) -> int:
        return int(self.graph.executed.sum())

    def row(self, model: str) -> int:
        return [m.name for m in self.topology.models].index(model)


def cost(source, fetches=None, devices="k80:2", trip_counts=None) -> Costed:
    source = read(source, fetches)
    graph = build_op_graph(source)
    topology = parse(devices)
    costs = analytical_costs(source, graph, topology, trip_counts=trip_counts)
    return Costed(source, graph, topology, costs)


def matmul_chain(length: int, size: int = 256) -> tf.Graph:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [size, size], name="x")
        w = tf.ones([size, size], name="w")
        for i in range(length):
            x = tf.matmul(x, w, name=f"step_{i}")
        tf.identity(x, name="result")
    return graph
