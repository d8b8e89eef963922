"""Size of a training graph."""

import dataclasses
import math

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class GraphStatistics:
    """Counts over a MetaGraphDef.

    Attributes:
      nodes: nodes of the graph.
      executed_ops: nodes that a run of the train ops executes (all they depend on, through data
        or control edges).
      variables: VarHandleOp nodes, slots of the optimizer included.
      variable_bytes: their size in bytes.
    """

    nodes: int
    executed_ops: int
    variables: int
    variable_bytes: int


def graph_statistics(meta_graph: tf.compat.v1.MetaGraphDef) -> GraphStatistics:
    """Counts the nodes and variables of a graph whose variables have static shapes."""
    nodes = {node.name: node for node in meta_graph.graph_def.node}
    pending = list(meta_graph.collection_def["train_op"].node_list.value)
    executed = set()
    while pending:
        name = pending.pop().lstrip("^").split(":")[0]
        if name not in executed:
            executed.add(name)
            pending.extend(nodes[name].input)
    handles = [node for node in nodes.values() if node.op == "VarHandleOp"]
    size = sum(
        math.prod(dim.size for dim in node.attr["shape"].shape.dim)
        * tf.as_dtype(node.attr["dtype"].type).size
        for node in handles
    )
    return GraphStatistics(len(nodes), len(executed), len(handles), size)
