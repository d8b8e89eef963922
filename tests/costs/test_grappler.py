import functools

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow.python.grappler import cluster as grappler_cluster
from tensorflow.python.grappler import item as grappler_item

from benchmarks.models.registry import build
from placer.costs import grappler, known_ops
from placer.devices import MODELS
from placer.errors import PlacerError
from placer.graph import read
from tests.costs.graphs import cost, matmul_chain

DEVICE = "/job:localhost/replica:0/task:0/device:GPU:0"


@functools.cache
def tiny(name):
    return read(build(name, "tiny"))


def measured_by_grappler(source, model):
    """Nanoseconds by op name, and the simulated run time, from MeasureCosts on the model itself."""
    meta = meta_graph_pb2.MetaGraphDef()
    meta.graph_def.CopyFrom(source.graph_def)
    meta.collection_def["train_op"].node_list.value.extend(source.fetch_ops)
    device = grappler.named_device(model, DEVICE.replace("GPU", model.type))
    cluster = grappler_cluster.Cluster(devices=[device], disable_timeline=False)
    _, run_time, stats = cluster.MeasureCosts(grappler_item.Item(meta, True, True))
    times = {n.node_name: n.op_end_rel_nanos for d in stats.dev_stats for n in d.node_stats}
    return times, run_time


@pytest.mark.parametrize("model", ["cpu", "k80", "h100"])
@pytest.mark.parametrize("name", ["inception_v3", "transformer"])
def test_costs_equal_measure_costs_op_by_op(name, model):
    source = tiny(name)
    times, run_time = measured_by_grappler(source, MODELS[model])
    work = grappler.measure_work(source.graph_def, source.fetch_ops)
    seconds = grappler.seconds(work.operations, work.bytes, MODELS[model])
    assert work.measured.sum() == len(times) > 500
    for i in np.flatnonzero(work.measured):
        node = source.graph_def.node[i]
        least = 1 if node.op in known_ops.MINIMUM_OPS else 0
        assert abs(seconds[i] * 1e9 + least - times[node.name]) < 1.5, node.name
    # One device runs one op at a time: the run time is their sum, to a microsecond.
    assert run_time == pytest.approx(sum(times.values()) * 1e-9, abs=2e-6)


def test_chain_costs_what_grappler_simulates():
    chain = cost(matmul_chain(20, 512), ["result"])
    _, run_time = measured_by_grappler(chain.source, MODELS["k80"])
    assert chain.costs.seconds[chain.row("k80")].sum() == pytest.approx(run_time, rel=1e-3)


def test_matmul_costs_operations_and_bytes():
    chain = cost(matmul_chain(1), ["result"], "v100:1")
    model = MODELS["v100"]
    expected = 2 * 256**3 / (80 * 1530e6 * 128) + 3 * 256 * 256 * 4 / 900e9
    assert chain.seconds("step_0", "v100") == pytest.approx(expected, abs=2e-9)
    assert model.launch_seconds > 0  # and is no part of it


def test_only_what_the_fetches_need_is_measured():
    chain = cost(matmul_chain(5), ["step_2"])
    assert chain.seconds("step_2") > 0
    assert chain.seconds("step_3") == chain.seconds("result") == 0


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("Sum", lambda x: tf.reduce_sum(x)),
        ("AddV2", lambda x: x + x),
        ("TopKV2", lambda x: tf.math.top_k(x).values),
        ("AddN", lambda x: tf.add_n([x, x])),
        ("BatchMatMulV2", lambda x: tf.linalg.matmul(x[None], x[None])),
        ("Softmax", lambda x: tf.nn.softmax(x)),
        ("Mean", lambda x: tf.reduce_mean(x)),
        ("SigmoidGrad", lambda x: tf.raw_ops.SigmoidGrad(y=x, dy=x)),
        ("LeakyRelu", lambda x: tf.nn.leaky_relu(x)),
        ("Elu", lambda x: tf.nn.elu(x)),
        ("Cumsum", lambda x: tf.cumsum(x)),
    ],
)
def test_known_ops_are_those_that_grappler_counts_operations_for(kind, make):
    with tf.Graph().as_default() as graph:
        make(tf.compat.v1.placeholder(tf.float32, [64, 64]))
    source = read(graph)
    work = grappler.measure_work(source.graph_def, source.fetch_ops)
    (position,) = (i for i, n in enumerate(source.graph_def.node) if n.op == kind)
    counted = work.operations[position] > 0
    assert counted == (kind in known_ops.ELEMENTWISE_OPS | known_ops.MODELLED_OPS)
    assert work.bytes[position] > 0


def test_a_graph_that_tensorflow_refuses_is_an_error():
    graph_def = matmul_chain(1).as_graph_def()
    with pytest.raises(PlacerError, match="some graph"):
        grappler.measure_work(graph_def, ["nowhere"], "some graph")


@pytest.mark.parametrize("in_loop", [False, True])
def test_placeholders_without_a_shape_are_costed(in_loop):
    tf.compat.v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default() as graph:
            extra = tf.compat.v1.placeholder(tf.float32, name="extra")
            x = tf.compat.v1.placeholder(tf.float32, [64, 64])
            step = lambda y: tf.matmul(y, y, name="product")
            if in_loop:
                _, x = tf.while_loop(lambda i, _: i < 5, lambda i, y: (i + 1, step(y)), (0, x))
            else:
                x = step(x)
            tf.add(tf.reduce_sum(x), tf.reduce_sum(extra), name="result")
            meta = tf.compat.v1.train.export_meta_graph(graph=graph, strip_default_attrs=True)
    finally:
        tf.compat.v1.enable_control_flow_v2()
    (node,) = (n for n in meta.graph_def.node if n.name == "extra")
    assert "shape" not in node.attr
    costed = cost(meta, ["result"])
    assert "shape" not in node.attr
    product = "while/product" if in_loop else "product"
    assert costed.graph.tensor_known[costed.graph.out_ptr[costed.op(product)]]
    assert costed.seconds(product) > (5 if in_loop else 1) * 2 * 64**3 / (13 * 824e6 * 384)


def test_cheaper_on_faster_hardware():
    source = tiny("inception_v3")
    work = grappler.measure_work(source.graph_def, source.fetch_ops)
    totals = [
        grappler.seconds(work.operations, work.bytes, MODELS[m]).sum()
        for m in ("cpu", "k80", "p100", "v100", "a100", "h100")
    ]
    assert totals == sorted(totals, reverse=True)
