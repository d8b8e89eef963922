import pytest
import tensorflow as tf

from placer.costs import CostOrigin
from placer.errors import PlacerError
from tests.costs.graphs import cost, matmul_chain

SIZE = 256
tf1 = tf.compat.v1


@pytest.fixture(scope="module")
def unrolled():
    """Seconds of 12 matmuls and of one."""
    chain = cost(matmul_chain(12, SIZE), ["result"])
    return 12 * chain.seconds("step_0"), chain.seconds("step_0")


def build(make, functional):
    """A graph of `make(x, w)` with v1 or functional control flow."""
    if functional:
        tf1.enable_control_flow_v2()
    else:
        tf1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default() as graph:
            x = tf1.placeholder(tf.float32, [SIZE, SIZE], name="x")
            w = tf.ones([SIZE, SIZE], name="w")
            tf.identity(make(x, w), name="result")
    finally:
        tf1.enable_control_flow_v2()
    return graph


def counting_loop(x, w, limit=12, **kwargs):
    return tf.while_loop(
        lambda i, _: i < limit, lambda i, y: (i + 1, y @ w), (0, x), name="loop", **kwargs
    )[1]


def _halved(number):
    # The ops themselves: Python's operators on constants are folded.
    real = tf.raw_ops.Cast(x=tf.constant(number), DstT=tf.float32)
    return tf.raw_ops.Cast(x=tf.raw_ops.Mul(x=real, y=tf.constant(0.5)), DstT=tf.int32)


def loop_of(costed):
    (found,) = costed.costs.trip_count_source.values()
    return found


@pytest.mark.parametrize("functional", [False, True])
class TestLoops:
    def test_costs_what_its_unrolled_form_costs(self, functional, unrolled):
        costed = cost(build(counting_loop, functional), ["result"])
        assert loop_of(costed) == (12, "loop bound")
        whole = costed.costs.seconds[costed.row("k80")].sum()
        launch = costed.topology.models[1].launch_seconds
        # What the loop itself takes: some 12 ops an iteration, launches more than anything.
        assert unrolled[0] < whole < unrolled[0] + 12 * 13 * (launch + 1e-6)

    def test_the_caller_knows_better(self, functional, unrolled):
        graph = build(counting_loop, functional)
        (loop,) = cost(graph, ["result"]).costs.trip_count_source
        costed = cost(graph, ["result"], trip_counts={loop: 100})
        assert loop_of(costed) == (100, "given")
        assert costed.costs.seconds[1].sum() > 100 * unrolled[1]

    @pytest.mark.parametrize(
        ("condition", "step", "start", "count"),
        [
            (lambda i: i < 10, 3, 0, 4),
            (lambda i: i <= 9, 3, 0, 4),
            (lambda i: i > 0, -2, 9, 5),
            (lambda i: i >= 0, -2, 9, 5),
            (lambda i: tf.not_equal(i, 6), 2, 0, 3),
            (lambda i: tf.logical_and(i < 100, i < 7), 1, 0, 7),
            (lambda i: tf.constant(8) > i, 1, 0, 8),
            (lambda i: i < tf.shape(tf.zeros([5, 2]))[0], 1, 0, 5),
            # The op itself: tf.shape is folded to a constant.
            (lambda i: i < tf.raw_ops.Shape(input=tf.zeros([5, 2]))[0], 1, 0, 5),
            # 3.5 as a whole number is 3.
            (lambda i: i < _halved(7), 1, 0, 3),
        ],
    )
    def test_reads_bounds(self, functional, condition, step, start, count):
        def make(x, w):
            body = lambda i, y: (i + step, y @ w)
            return tf.while_loop(lambda i, _: condition(i), body, (tf.constant(start), x))[1]

        costed = cost(build(make, functional), ["result"])
        assert loop_of(costed) == (count, "loop bound")

    def test_maximum_iterations_bound_an_open_condition(self, functional):
        def make(x, w):
            return tf.while_loop(
                lambda y: tf.reduce_sum(y) < 1e9, lambda y: [y @ w], [x], maximum_iterations=9
            )[0]

        costed = cost(build(make, functional), ["result"])
        assert loop_of(costed) == (9, "loop bound")

    def test_unreadable_bounds_are_assumed_and_said(self, functional):
        def make(x, w):
            return tf.while_loop(lambda y: tf.reduce_sum(y) < 1e9, lambda y: y @ w, (x,))

        costed = cost(build(make, functional), ["result"])
        count, source = loop_of(costed)
        assert count == 1
        assert "unknown" in source

    def test_tensor_array_sizes_stand_in(self, functional):
        def make(x, w):
            rows = tf.TensorArray(tf.float32, SIZE).unstack(x)
            return tf.while_loop(
                lambda i, y: tf.reduce_sum(y) < 1e9,
                lambda i, y: (i + 1, y + rows.read(i)),
                (0, tf.zeros([SIZE])),
            )[1]

        costed = cost(build(make, functional), ["result"])
        count, source = loop_of(costed)
        assert count == SIZE
        assert "tensor list" in source

    @pytest.mark.parametrize(
        ("bound", "count", "says"),
        [
            (lambda size: size, 1, "unknown"),
            (lambda size: size - 1, 1, "unknown"),
            (lambda size: tf.minimum(size, 5), 5, "loop bound"),
        ],
    )
    def test_unknown_sizes_bound_nothing(self, functional, bound, count, says):
        def make(x, w):
            size = tf.shape(tf1.placeholder(tf.float32, [None, 2]))[0]
            return tf.while_loop(lambda i, _: i < bound(size), lambda i, y: (i + 1, y @ w), (0, x))[
                1
            ]

        found, source = loop_of(cost(build(make, functional), ["result"]))
        assert found == count
        assert says in source

    def test_the_loop_of_a_gradient_runs_as_often(self, functional, unrolled):
        def make(x, w):
            return tf.gradients(tf.reduce_sum(counting_loop(x, w, 7)), x)[0]

        costed = cost(build(make, functional), ["result"])
        assert list(costed.costs.trip_count_source.values()) == [(7, "loop bound")] * 2
        # One product of matrices an iteration forward, which the gradient does not need, and
        # one backward.
        assert costed.costs.seconds[1].sum() > 7 * unrolled[1]

    def test_nested_loops_multiply(self, functional, unrolled):
        def make(x, w):
            def outer(i, y):
                return i + 1, counting_loop(y, w, 4)

            return tf.while_loop(lambda i, _: i < 3, outer, (0, x))[1]

        costed = cost(build(make, functional), ["result"])
        counts = sorted(count for count, _ in costed.costs.trip_count_source.values())
        assert counts == [3, 4]
        launch = costed.topology.models[1].launch_seconds
        whole = costed.costs.seconds[1].sum()
        assert unrolled[0] < whole < unrolled[0] + (12 + 3) * 16 * (launch + 1e-6)


def test_the_ops_of_a_v1_frame_carry_the_count(unrolled):
    costed = cost(build(counting_loop, False), ["result"])
    launch = costed.topology.models[1].launch_seconds
    expected = unrolled[0] + 11 * launch
    assert costed.seconds("loop/matmul") == pytest.approx(expected, rel=1e-6)


def test_unknown_loops_are_refused():
    with pytest.raises(PlacerError, match=r"nothing.*loop"):
        cost(build(counting_loop, True), ["result"], trip_counts={"nothing": 3})


@pytest.mark.parametrize("count", [-1, float("nan"), float("inf")])
def test_bad_counts_are_refused(count):
    with pytest.raises(PlacerError, match="trip count"):
        cost(build(counting_loop, True), ["result"], trip_counts={"loop": count})


class TestFunctions:
    def test_a_call_costs_its_body(self, unrolled):
        @tf.function(autograph=False)
        def twice(y, w):
            return (y @ w) @ w

        costed = cost(build(lambda x, w: twice(twice(x, w), w), True), ["result"])
        launch = costed.topology.models[1].launch_seconds
        calls = [
            i for i in range(costed.graph.num_ops) if "PartitionedCall" in costed.graph.type_of(i)
        ]
        assert len(calls) == 2
        for call in calls:
            seconds = costed.costs.seconds[1, call]
            assert 2 * unrolled[1] < seconds < 2 * (unrolled[1] + launch) + 3 * (launch + 1e-8)
            assert costed.costs.origin[1, call] == CostOrigin.ANALYTICAL
            assert costed.costs.temporary_bytes[1, call] >= 2 * SIZE * SIZE * 4

    def test_branches_cost_the_dearest(self, unrolled):
        def make(x, w):
            return tf.cond(tf.reduce_sum(x) > 0, lambda: x, lambda: ((x @ w) @ w) @ w)

        costed = cost(build(make, True), ["result"])
        (branch,) = (
            i for i in range(costed.graph.num_ops) if costed.graph.type_of(i).endswith("If")
        )
        launch = costed.topology.models[1].launch_seconds
        seconds = costed.costs.seconds[1, branch]
        assert 3 * unrolled[1] < seconds < 3 * unrolled[1] + 10 * launch

    def test_cases_cost_the_dearest(self, unrolled):
        def make(x, w):
            index = tf.cast(tf.reduce_sum(x), tf.int32)
            return tf.switch_case(index, [lambda: x, lambda: x @ w, lambda: (x @ w) @ w])

        costed = cost(build(make, True), ["result"])
        (case,) = (
            i for i in range(costed.graph.num_ops) if costed.graph.type_of(i).endswith("Case")
        )
        launch = costed.topology.models[1].launch_seconds
        seconds = costed.costs.seconds[1, case]
        assert 2 * unrolled[1] < seconds < 2 * unrolled[1] + 10 * launch

    def test_variables_keep_their_shape_inside(self, unrolled):
        with tf.Graph().as_default() as graph:
            x = tf1.placeholder(tf.float32, [SIZE, SIZE])
            w = tf1.get_variable("w", [SIZE, SIZE], use_resource=True)
            step = tf.function(lambda y: y @ w, autograph=False)
            tf.identity(step(x), name="result")
        costed = cost(graph, ["result"])
        (call,) = (
            i for i in range(costed.graph.num_ops) if "PartitionedCall" in costed.graph.type_of(i)
        )
        assert costed.costs.seconds[1, call] > unrolled[1]

    def test_a_function_that_calls_itself_is_refused(self):
        @tf.function(autograph=False)
        def f(y):
            return y + 1.0

        with tf.Graph().as_default() as graph:
            tf.identity(f(tf.zeros([8])), name="result")
        graph_def = graph.as_graph_def()
        (function,) = graph_def.library.function
        name = function.signature.name
        add = next(n for n in function.node_def if n.op.startswith("Add"))
        add.op = "PartitionedCall"
        add.attr["f"].func.name = name
        with pytest.raises(PlacerError, match=f"{name} -> {name}"):
            cost(graph_def, ["result"])


def test_shared_arithmetic_is_worked_out_once():
    """Each product reads the one before twice: 2^60 ways lead to the first."""
    with tf.Graph().as_default() as graph:
        x = tf.constant(1.0)
        for _ in range(60):
            x = tf.raw_ops.Mul(x=x, y=x)
        body = lambda i, y: (i + 1, y * x)
        tf.compat.v1.disable_control_flow_v2()
        try:
            _, y = tf.while_loop(lambda i, _: i < 5, body, (0, x))
        finally:
            tf.compat.v1.enable_control_flow_v2()
        tf.identity(y, name="result")
    assert loop_of(cost(graph, ["result"])) == (5, "loop bound")
