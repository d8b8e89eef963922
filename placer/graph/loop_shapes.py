"""Shapes inside while frames, which importing a graph leaves unknown."""

from __future__ import annotations

from collections.abc import Sequence

from tensorflow.core.framework import graph_pb2
from tensorflow.core.grappler.costs import op_performance_data_pb2
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow.python.grappler import _pywrap_tf_item

from placer.graph.source import GraphSource

# An op with a shape attribute that is not fed: Grappler takes what is fed to have any shape.
_SHAPED_OP = "InfeedDequeue"
_CALLED_BY_SHAPE = frozenset({"Placeholder", "PlaceholderV2"})


def has_frames(graph_def: graph_pb2.GraphDef) -> bool:
    """Whether the graph has a v1 while loop."""
    return any(node.op in ("Enter", "RefEnter") for node in graph_def.node)


def loop_shapes(source: GraphSource) -> dict[str, Sequence]:
    """Node name -> output shapes (TensorShapeProto) by Grappler's inference.

    TensorFlow's own shape function of Enter gives up on what an iteration may change; Grappler
    iterates around loops until shapes settle
    (tensorflow/core/grappler/costs/graph_properties.cc). Empty where Grappler cannot read the
    graph.
    """
    meta = meta_graph_pb2.MetaGraphDef()
    meta.graph_def.CopyFrom(source.graph_def)
    for node in meta.graph_def.node:
        if node.op in _CALLED_BY_SHAPE and not node.input:
            node.op = _SHAPED_OP
    meta.collection_def["train_op"].node_list.value.extend(source.fetch_ops)
    try:
        item = _pywrap_tf_item.TF_NewItem(meta.SerializeToString(), True, True)
        properties = _pywrap_tf_item.TF_GetOpProperties(item)
    except Exception:
        # The importer's answer stands; what is unknown there is counted as such.
        return {}
    parse = op_performance_data_pb2.OpInfo.TensorProperties.FromString
    return {name: [parse(p).shape for p in outputs] for name, outputs in properties.items()}
