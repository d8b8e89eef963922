"""Writing devices into a file's bytes changes nothing else."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from placer.graph import replace_devices

_NAMES = st.text("abc/_:", max_size=8)


@st.composite
def _graphs(draw: st.DrawFn) -> graph_pb2.GraphDef:
    graph = graph_pb2.GraphDef()
    graph.versions.producer = draw(st.integers(0, 1000))
    for i in range(draw(st.integers(0, 5))):
        node = graph.node.add(name=f"n{i}", op=draw(_NAMES), device=draw(_NAMES))
        node.input.extend(draw(st.lists(_NAMES, max_size=3)))
        for key in draw(st.sets(_NAMES, max_size=3)):
            node.attr[key].i = draw(st.integers(-5, 5))
        node.experimental_debug_info.original_node_names.extend(draw(st.lists(_NAMES, max_size=2)))
    for i in range(draw(st.integers(0, 2))):
        function = graph.library.function.add()
        function.signature.name = f"f{i}"
        function.node_def.add(name="inner", op="Tanh", device=draw(_NAMES))
    return graph


# A field that no message here knows: number 1000, two bytes.
_UNKNOWN = bytes([0xC2, 0x3E, 0x02, 0x07, 0x08])


@hypothesis.given(_graphs(), st.data(), st.booleans(), st.booleans())
@hypothesis.settings(deadline=None, max_examples=150)
def test_only_devices_change(
    graph: graph_pb2.GraphDef, data: st.DataObject, is_meta: bool, unknown: bool
) -> None:
    wanted = [data.draw(_NAMES) for _ in graph.node]
    tail = _UNKNOWN if unknown else b""
    body = graph.SerializeToString() + tail
    proto: graph_pb2.GraphDef | meta_graph_pb2.MetaGraphDef
    if is_meta:
        proto = meta_graph_pb2.MetaGraphDef()
        proto.meta_info_def.tags.append("serve")
        proto.graph_def.ParseFromString(body)
        proto.collection_def["c"].node_list.value.append("x")
    else:
        proto = graph_pb2.GraphDef()
        proto.ParseFromString(body)
    before = proto.SerializeToString()
    after = replace_devices(before, wanted, is_meta)
    found = type(proto)()
    found.ParseFromString(after)
    nodes = found.graph_def.node if is_meta else found.node
    assert [n.device for n in nodes] == wanted
    came = [n.device for n in graph.node]
    # Put back what was there: every other byte has to be what it was.
    restored = type(proto)()
    restored.ParseFromString(replace_devices(after, came, is_meta))
    assert restored.SerializeToString(deterministic=True) == type(proto).FromString(
        before
    ).SerializeToString(deterministic=True)
    assert replace_devices(before, came, is_meta) == before


def test_the_last_of_repeated_devices_counts_and_all_are_replaced() -> None:
    node = graph_pb2.GraphDef()
    node.node.add(name="n", op="NoOp", device="/cpu:0")
    body = node.node[0].SerializeToString()
    twice = body + bytes([0x22, 6]) + b"/gpu:0"
    data = bytes([0x0A, len(twice)]) + twice
    assert graph_pb2.GraphDef.FromString(data).node[0].device == "/gpu:0"
    assert replace_devices(data, ["/gpu:0"], False) == data
    changed = replace_devices(data, ["/gpu:1"], False)
    assert b"/cpu:0" not in changed
    assert graph_pb2.GraphDef.FromString(changed).node[0].device == "/gpu:1"
