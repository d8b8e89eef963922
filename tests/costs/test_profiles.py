import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import step_stats_pb2
from tensorflow.core.protobuf import config_pb2

from placer.costs import (
    CostOrigin,
    corrected,
    load_profile,
    profile_from_steps,
    profiled_costs,
    save_profile,
)
from placer.costs.profiles import core_seconds
from placer.devices import Topology, parse
from placer.errors import PlacerError
from placer.graph import build_op_graph, read
from placer.protos import profile_pb2
from tests.costs.graphs import cost, matmul_chain
from tests.costs.test_loops import build, counting_loop

tf1 = tf.compat.v1


def here() -> Topology:
    return parse("local")


def traced_steps(graph, fetch, steps=3, feeds=None):
    """RunMetadata of real steps of a session."""
    options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
    result = []
    config = tf1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = -1
    with tf1.Session(graph=graph, config=config) as session:
        for _ in range(steps + 1):
            metadata = tf1.RunMetadata()
            session.run(fetch, feeds, options=options, run_metadata=metadata)
            result.append(metadata)
    return result[1:]


@pytest.fixture(scope="module")
def chain():
    graph = matmul_chain(4, 128)
    feeds = {"x:0": np.ones([128, 128], np.float32)}
    return graph, traced_steps(graph, "result:0", feeds=feeds)


def part(profile, op):
    position = list(profile.devices[0].ops).index(op)
    device = profile.devices[0]
    return device.mean_seconds[position], device.runs_per_step[position]


def test_means_of_real_steps(chain):
    graph, steps = chain
    source = read(graph, ["result:0"])
    profile = profile_from_steps(build_op_graph(source), here(), steps)
    assert profile.devices[0].steps == 3
    by_hand = np.mean(
        [
            n.op_end_rel_nanos - n.op_start_rel_nanos
            for step in steps
            for d in step.step_stats.dev_stats
            for n in d.node_stats
            if n.node_name == "step_2"
        ]
    )
    seconds, runs = part(profile, "step_2")
    assert seconds == pytest.approx(by_hand * 1e-9)
    assert runs == 1
    position = list(profile.devices[0].ops).index("step_2")
    assert profile.devices[0].output_bytes[position] >= 128 * 128 * 4


def test_loop_ops_are_counted_and_set_the_trip_count():
    graph = build(counting_loop, False)
    steps = traced_steps(graph, "result:0", feeds={"x:0": np.zeros([256, 256], np.float32)})
    costed = cost(graph, ["result:0"], "local", trip_counts={})
    (loop,) = costed.costs.trip_count_source
    profile = profile_from_steps(costed.graph, costed.topology, steps)
    assert part(profile, "loop/matmul")[1] == 12
    costs = profiled_costs(profile, costed.source, costed.graph, costed.topology, costed.costs)
    assert costs.trip_count_source[loop] == (12, "profile")
    given = cost(graph, ["result:0"], "local", trip_counts={loop: 5})
    kept = profiled_costs(profile, given.source, given.graph, given.topology, given.costs)
    assert kept.trip_count_source[loop] == (5, "given")


def test_profiled_trip_count_scales_what_was_not_profiled():
    graph = build(counting_loop, False)
    costed = cost(graph, ["result"], "local")
    names = list(costed.graph.names)
    profile = profile_pb2.GraphProfile(graph_fingerprint=costed.graph.fingerprint)
    device = profile.devices.add(model="local-cpu", steps=1)
    tested = next(n.name for n in costed.source.graph_def.node if n.op == "LoopCond")
    entered = [n.name for n in costed.source.graph_def.node if n.op == "Enter"]
    for name, runs in [(tested, 25.0), *((e, 1.0) for e in entered)]:
        device.ops.append(name)
        device.mean_seconds.append(1e-9)
        device.stddev_seconds.append(0.0)
        device.runs_per_step.append(runs)
    costs = profiled_costs(profile, costed.source, costed.graph, costed.topology, costed.costs)
    (found,) = costs.trip_count_source.values()
    assert found == (24, "profile")
    op = names.index("loop/matmul")
    launch = costed.topology.models[0].launch_seconds
    before = costed.costs.seconds[0, op] + launch
    assert costs.seconds[0, op] == pytest.approx(2 * before - launch)


def scaled_profile(costed, factor, ops, model="k80"):
    """A profile that says `factor` times the analytical seconds for some ops."""
    profile = profile_pb2.GraphProfile(graph_fingerprint=costed.graph.fingerprint)
    device = profile.devices.add(model=model, steps=2)
    for op in ops:
        device.ops.append(op)
        device.mean_seconds.append(factor * costed.seconds(op, model))
        device.stddev_seconds.append(0.0)
        device.runs_per_step.append(1.0)
    return profile


@pytest.fixture(scope="module")
def costed():
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [512, 512], name="x")
        for i in range(4):
            x = tf.nn.relu(tf.matmul(x, x, name=f"matmul_{i}"), name=f"relu_{i}")
        tf.tanh(x, name="result")
    return cost(graph, ["result"])


def apply(costed, profile):
    return profiled_costs(profile, costed.source, costed.graph, costed.topology, costed.costs)


def test_missing_ops_are_scaled_by_their_type_or_the_median(costed):
    profile = scaled_profile(costed, 3.0, ["matmul_0", "matmul_1"])
    relus = scaled_profile(costed, 10.0, ["relu_0"]).devices[0]
    for field in ("ops", "mean_seconds", "stddev_seconds", "runs_per_step"):
        getattr(profile.devices[0], field).extend(getattr(relus, field))
    costs = apply(costed, profile)
    k80 = costed.row("k80")

    def ratio(name):
        return costs.seconds[k80, costed.op(name)] / costed.seconds(name)

    assert ratio("matmul_0") == pytest.approx(3)
    assert ratio("matmul_3") == pytest.approx(3)
    assert ratio("relu_2") == pytest.approx(10)
    assert ratio("result") == pytest.approx(3)
    origin = costs.origin[k80]
    assert origin[costed.op("matmul_0")] == CostOrigin.PROFILED
    assert origin[costed.op("matmul_3")] == CostOrigin.ANALYTICAL
    cpu = costed.row("cpu")
    assert (costs.seconds[cpu] == costed.costs.seconds[cpu]).all()


def test_corrections_keep_the_sum_of_what_both_have():
    source = read(matmul_chain(2, 8), ["result:0"])
    graph = build_op_graph(source)
    topology = parse("k80:1")
    cpu, gpu = topology.device_names
    first, second, third = [n for n, ran in zip(graph.names, graph.executed, strict=True) if ran][
        :3
    ]
    known = profile_from_steps(graph, topology, _steps([(gpu, first, 1.0), (gpu, second, 1.0)]))
    steps = _steps([(gpu, first, 5.0), (gpu, second, 3.0), (gpu, third, 7.0), (cpu, first, 2.0)])
    found = corrected(known, profile_from_steps(graph, topology, steps))
    of_model = {p.model: dict(zip(p.ops, p.mean_seconds, strict=True)) for p in found.devices}
    of_gpu = of_model[topology.devices[1].model.name]
    # 5 and 3 of a sum of 8 are 1.25 and 0.75 of the sum of 2 that was known.
    assert of_gpu == pytest.approx({first: 1.125e-3, second: 0.875e-3, third: 7e-3})
    assert of_model[topology.devices[0].model.name] == pytest.approx({first: 2e-3})


def test_file_round_trip(costed, tmp_path):
    profile = scaled_profile(costed, 2.0, ["matmul_0", "relu_1"])
    path = tmp_path / "profile.pb"
    save_profile(profile, path)
    assert load_profile(path) == profile
    assert [p.name for p in tmp_path.iterdir()] == ["profile.pb"]


def test_profile_of_another_graph_is_refused(costed):
    profile = scaled_profile(costed, 2.0, ["matmul_0"])
    profile.graph_fingerprint = "0" * 32
    with pytest.raises(PlacerError, match="another graph"):
        apply(costed, profile)


def test_profile_of_other_hardware_is_refused(costed):
    profile = scaled_profile(costed, 2.0, ["matmul_0"])
    profile.devices[0].model = "abacus"
    with pytest.raises(PlacerError, match=r"abacus.*k80"):
        apply(costed, profile)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda p: p.devices[0].mean_seconds.append(1.0),
        lambda p: p.devices[0].mean_seconds.__setitem__(0, float("nan")),
        lambda p: p.devices[0].mean_seconds.__setitem__(0, -1.0),
        lambda p: p.devices[0].temporary_bytes.append(3),
        lambda p: p.ClearField("devices"),
    ],
)
def test_damaged_profiles_are_refused(costed, tmp_path, spoil):
    profile = scaled_profile(costed, 2.0, ["matmul_0", "relu_0"])
    spoil(profile)
    path = tmp_path / "profile.pb"
    path.write_bytes(profile.SerializeToString())
    with pytest.raises(PlacerError, match="profile"):
        load_profile(path)


def test_files_that_are_no_profile_are_refused(tmp_path):
    path = tmp_path / "profile.pb"
    with pytest.raises(PlacerError, match="No such file"):
        load_profile(path)
    path.write_bytes(b"\xff\xff\xff\xff not a proto")
    with pytest.raises(PlacerError, match="not an op profile"):
        load_profile(path)


def stats(name, nanoseconds, start=0):
    return step_stats_pb2.NodeExecStats(
        node_name=name, op_start_rel_nanos=start, op_end_rel_nanos=start + nanoseconds
    )


def test_kernel_times_replace_what_the_host_took_to_launch_them(costed):
    gpu = costed.topology.device_names[1]
    metadata = config_pb2.RunMetadata()
    host = metadata.step_stats.dev_stats.add(device=gpu)
    host.node_stats.extend([stats("matmul_0", 500, 10), stats("_SOURCE", 5)])
    for stream in ("all", "13"):
        kernels = metadata.step_stats.dev_stats.add(device=f"{gpu}/stream:{stream}")
        kernels.node_stats.extend([stats("matmul_0:MatMul", 7000), stats("matmul_0:MatMul", 1000)])
    profile = profile_from_steps(costed.graph, costed.topology, [metadata])
    assert part(profile, "matmul_0") == (pytest.approx(8e-6), 1)


@pytest.mark.parametrize("by_name", [False, True])
def test_ops_of_a_call_count_as_the_call(by_name):
    @tf.function
    def inner(x):
        return tf.matmul(x, x)

    with tf.Graph().as_default() as made:
        tf.identity(inner(tf.random.uniform([8, 8])), name="result")
    graph_def = made.as_graph_def()
    call = next(n for n in graph_def.node if "PartitionedCall" in n.op)
    if by_name:
        # A node may name a function as its op.
        call.op = call.attr["f"].func.name
        call.ClearField("attr")
    costed = cost(graph_def, ["result"])
    gpu = costed.topology.device_names[1]
    metadata = config_pb2.RunMetadata()
    device = metadata.step_stats.dev_stats.add(device=gpu)
    device.node_stats.extend([stats(f"{call.name}/x/a", 300), stats(f"{call.name}/b", 200)])
    profile = profile_from_steps(costed.graph, costed.topology, [metadata, metadata])
    assert part(profile, call.name)[0] == pytest.approx(5e-7)


def test_step_stats_without_the_graphs_ops_are_an_error(costed):
    with pytest.raises(PlacerError, match="FULL_TRACE"):
        profile_from_steps(costed.graph, costed.topology, [config_pb2.RunMetadata()])


def test_a_profile_with_runs_adds_their_launches(costed):
    profile = scaled_profile(costed, 1.0, ["matmul_0"])
    profile.devices[0].runs_per_step[0] = 4.0
    costs = apply(costed, profile)
    k80 = costed.row("k80")
    launch = costed.topology.models[k80].launch_seconds
    extra = costs.seconds[k80, costed.op("matmul_0")] - costed.seconds("matmul_0")
    assert extra == pytest.approx(3 * launch)


def test_ops_that_take_turns_share_the_time():
    """Against time cut into small slices, each shared by the computations that it lies in."""
    generator = np.random.default_rng(0)
    slice_seconds = 1e-3
    middles = (np.arange(80) + 0.5) * slice_seconds

    def within(starts, durations):
        return (middles >= starts[:, None]) & (middles < (starts + durations)[:, None])

    for count, cores in ((1, 0), (2, 0), (5, 0), (30, 0), (1, 1), (5, 1), (30, 2)):
        starts = generator.integers(0, 50, count) * slice_seconds
        durations = generator.integers(0, 20, count) * slice_seconds
        slowed = np.ones(80)
        neighbours = []
        for _ in range(cores):
            contention = generator.random()
            begins = generator.integers(0, 60, 3) * slice_seconds
            lengths = generator.integers(0, 20, 3) * slice_seconds
            neighbours.append((contention, begins, lengths))
            slowed += contention * within(begins, lengths).any(axis=0)
        mine = within(starts, durations)
        factor = np.maximum(mine.sum(axis=0), 1) * slowed
        expected = (mine / factor).sum(axis=1) * slice_seconds
        found = core_seconds(starts, durations, neighbours)
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_what_contention_adds_is_no_part_of_an_op_s_cost():
    source = read(matmul_chain(2, 8), ["result:0"])
    graph = build_op_graph(source)
    product = next(
        n for n, t in zip(graph.names, graph.op_type, strict=True) if graph.op_types[t] == "MatMul"
    )
    topology = parse("workers:2")
    found = []
    for apart in (0, 10**9):  # nanoseconds between the two devices' runs
        steps = step_stats_pb2.StepStats()
        for i, name in enumerate(topology.device_names):
            device = steps.dev_stats.add(device=name)
            device.node_stats.add(
                node_name=product,
                all_start_nanos=10**18 + i * apart,
                op_start_rel_nanos=1,
                op_end_rel_nanos=2_000_001,
            )
        profile = profile_from_steps(graph, topology, [config_pb2.RunMetadata(step_stats=steps)])
        found.append(profile.devices[0].mean_seconds[0])
    contention = topology.devices[0].contention
    assert contention > 0
    np.testing.assert_allclose(found, [4e-3 / (1 + contention), 4e-3], rtol=1e-6)


def test_only_ops_of_executor_threads_take_turns():
    source = read(matmul_chain(2, 8), ["result:0"])
    graph = build_op_graph(source)
    ops = [
        n for n, t in zip(graph.names, graph.op_type, strict=True) if graph.op_types[t] == "MatMul"
    ]
    found = {}
    for spec in ("workers:2", "local"):
        topology = parse(spec)
        steps = step_stats_pb2.StepStats()
        device = steps.dev_stats.add(device=topology.device_names[0])
        for name in ops[:2]:
            device.node_stats.add(
                node_name=name,
                all_start_nanos=10**18,
                op_start_rel_nanos=1,
                op_end_rel_nanos=2_000_001,
            )
        profile = profile_from_steps(graph, topology, [config_pb2.RunMetadata(step_stats=steps)])
        found[spec] = list(profile.devices[0].mean_seconds)
    np.testing.assert_allclose(found["workers:2"], [1e-3, 1e-3], rtol=1e-6)
    np.testing.assert_allclose(found["local"], [2e-3, 2e-3], rtol=1e-6)


def _steps(*ran):
    """Metadata of steps, each of (device, node, milliseconds)."""
    steps = []
    for step in ran:
        stats = step_stats_pb2.StepStats()
        for device, node, milliseconds in step:
            stats.dev_stats.add(device=device).node_stats.add(
                node_name=node,
                all_start_nanos=10**18,
                op_start_rel_nanos=1,
                op_end_rel_nanos=1 + int(1e6 * milliseconds),
            )
        steps.append(config_pb2.RunMetadata(step_stats=stats))
    return steps


def test_steps_in_which_an_op_ran_elsewhere_do_not_count():
    source = read(matmul_chain(2, 8), ["result:0"])
    graph = build_op_graph(source)
    first, second = [
        n for n, t in zip(graph.names, graph.op_type, strict=True) if graph.op_types[t] == "MatMul"
    ][:2]
    topology = parse("k80:1")
    cpu, gpu = topology.device_names
    # A name that extends an op's is of what TensorFlow added, and no run of the op.
    steps = _steps(
        [(cpu, first, 4.0), (gpu, second, 1.0)],
        [(gpu, first, 2.0), (cpu, f"{first}/_7", 0.5)],
    )
    profile = profile_from_steps(graph, topology, steps)
    seconds = {
        (part.model, op): s
        for part in profile.devices
        for op, s in zip(part.ops, part.mean_seconds, strict=True)
    }
    models = [d.model.name for d in topology.devices]
    assert seconds == pytest.approx(
        {
            (models[0], first): 4e-3,
            (models[1], first): 2e-3,
            # It ran in one step of two, and in the other nowhere.
            (models[1], second): 0.5e-3,
        }
    )
    # What both have is scaled to the same sum, here of one op.
    newer = profile_from_steps(graph, topology, _steps([(gpu, first, 3.0)]))
    both = corrected(profile, newer)
    found = {p.model: dict(zip(p.ops, p.mean_seconds, strict=True)) for p in both.devices}
    assert found[models[1]] == pytest.approx({first: 2e-3, second: 0.5e-3})
    assert found[models[0]] == pytest.approx({first: 4e-3})
    assert all(len(p.stddev_seconds) == len(p.output_bytes) == len(p.ops) for p in both.devices)
