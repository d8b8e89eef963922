import numpy as np
import pytest
import tensorflow as tf

from placer.costs import CostOrigin, describe
from placer.costs.estimates import estimate_sizes
from placer.devices import MODELS
from tests.costs.graphs import cost, matmul_chain

K80_BYTES, K80_OPERATIONS = 240e9, 13 * 824e6 * 384


def graph_of(make, *shapes, dtype=tf.float32):
    with tf.Graph().as_default() as graph:
        inputs = [tf.compat.v1.placeholder(dtype, s) for s in shapes]
        tf.identity(make(*inputs), name="result")
    return graph


def op_of(costed, kind):
    (op,) = (i for i in range(costed.graph.num_ops) if costed.graph.type_of(i) == kind)
    return op


def test_known_ops_of_known_shapes_are_analytical():
    chain = cost(matmul_chain(3), ["result"])
    assert (chain.costs.origin == CostOrigin.ANALYTICAL).all()


def test_ops_behind_unique_are_sized_by_its_input_and_counted():
    def lookup(ids, table):
        unique = tf.unique(ids)
        return tf.gather(table, unique.y) * 2.0

    costed = cost(graph_of(lambda t: lookup(tf.zeros([300], tf.int32), t), [1000, 64]), ["result"])
    sizes = estimate_sizes(costed.graph)
    for kind in ("Unique", "GatherV2", "Mul"):
        op = op_of(costed, kind)
        assert costed.costs.origin[1, op] == CostOrigin.ESTIMATED
        assert sizes.unknown_dimension[costed.graph.out_ptr[op]] == 300
    product = op_of(costed, "Mul")
    assert sizes.elements[costed.graph.out_ptr[product]] == 300 * 64
    expected = 2 * 300 * 64 * 4 / K80_BYTES + 300 * 64 / K80_OPERATIONS
    assert costed.costs.seconds[1, product] == pytest.approx(expected, rel=0.02)


def test_unknown_batch_is_counted():
    costed = cost(graph_of(lambda x: x @ tf.ones([64, 64]), [None, 64]), ["result"])
    op = op_of(costed, "MatMul")
    assert costed.costs.origin[0, op] == CostOrigin.ESTIMATED
    assert costed.costs.seconds[1, op] > 0


@pytest.mark.parametrize(
    ("kind", "make", "shapes", "operations"),
    [
        (
            "Conv3D",
            lambda x, w: tf.nn.conv3d(x, w, [1, 1, 1, 1, 1], "SAME"),
            ([2, 8, 8, 8, 4], [3, 3, 3, 4, 16]),
            2 * 2 * 8**3 * 16 * 27 * 4,
        ),
        (
            "BatchMatMulV3",
            lambda x, y: tf.raw_ops.BatchMatMulV3(x=x, y=y, Tout=tf.float32, adj_x=True),
            ([4, 32, 16], [4, 32, 8]),
            2 * 4 * 16 * 8 * 32,
        ),
        ("Cholesky", tf.linalg.cholesky, ([2, 64, 64],), 2 * 64**3),
        ("Selu", tf.nn.selu, ([100, 100],), 100 * 100),
    ],
)
def test_unknown_types_count_operations(kind, make, shapes, operations):
    costed = cost(graph_of(make, *shapes), ["result"])
    op = op_of(costed, kind)
    graph = costed.graph
    moved = sum(graph.tensor_bytes[graph.in_tensor[graph.in_ptr[op] : graph.in_ptr[op + 1]]])
    moved += graph.tensor_bytes[graph.out_ptr[op] : graph.out_ptr[op + 1]].sum()
    expected = operations / K80_OPERATIONS + moved / K80_BYTES
    assert costed.costs.seconds[1, op] == pytest.approx(expected, abs=3e-9)
    assert costed.costs.origin[1, op] == CostOrigin.ESTIMATED


def test_conv3d_counts_as_much_as_the_same_conv2d():
    def conv2d(x, w):
        return tf.nn.conv2d(x, w, 1, "SAME")

    def conv3d(x, w):
        return tf.nn.conv3d(x, w, [1] * 5, "SAME")

    flat = cost(graph_of(conv2d, [8, 32, 32, 64], [3, 3, 64, 64]), ["result"])
    deep = cost(graph_of(conv3d, [8, 1, 32, 32, 64], [1, 3, 3, 64, 64]), ["result"])
    assert deep.costs.seconds[1, op_of(deep, "Conv3D")] == pytest.approx(
        flat.costs.seconds[1, op_of(flat, "Conv2D")], rel=0.01
    )


def test_optimizer_updates_move_their_variables():
    with tf.Graph().as_default() as graph:
        handles = [
            tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[512, 512], shared_name=n, name=n)
            for n in ("var", "m", "v")
        ]
        gradient = tf.compat.v1.placeholder(tf.float32, [512, 512])
        tf.raw_ops.ResourceApplyAdam(
            var=handles[0], m=handles[1], v=handles[2], beta1_power=0.9, beta2_power=0.9, lr=0.1,
            beta1=0.9, beta2=0.9, epsilon=1e-8, grad=gradient, name="adam",
        )  # fmt: skip
    costed = cost(graph, ["adam"])
    seconds = costed.seconds("adam")
    assert seconds == pytest.approx(7 * 512 * 512 * 4 / K80_BYTES, rel=0.05)


def test_describe_counts_origins_and_types():
    costed = cost(graph_of(lambda x: tf.nn.selu(x) + tf.nn.selu(x + 1), [64, 64]), ["result"])
    for k, summary in enumerate(describe(costed.costs, costed.graph)):
        assert summary.model == costed.topology.models[k].name
        assert sum(summary.ops_by_origin.values()) == costed.launched
        assert summary.ops_by_origin["estimated"] == 2
        assert summary.seconds == pytest.approx(costed.costs.seconds[k].sum())
        assert summary.estimated["Selu"][0] == 2
        assert any("Selu x2" in line for line in summary.lines())


def test_costs_are_never_negative_nor_silently_zero():
    costed = cost(graph_of(lambda x: tf.nn.elu(tf.cumsum(x)) @ x, [32, 32]), ["result"])
    assert np.isfinite(costed.costs.seconds).all()
    assert (costed.costs.seconds[:, costed.graph.executed] > 0).all()
    assert MODELS["k80"].launch_seconds > 0
