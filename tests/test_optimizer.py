"""placer.optimize from a GraphDef to its devices."""

from __future__ import annotations

import contextlib
import dataclasses
import signal

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

import placer
from placer.devices import Topology, parse
from placer.errors import InfeasibleError, PlacerError
from placer.search import Search


def _two_chains(size: int = 1024, length: int = 4) -> graph_pb2.GraphDef:
    """Two independent chains of heavy matrix products that meet at the end."""
    with tf.Graph().as_default() as graph:
        ends = []
        for chain in "ab":
            x = tf.random.uniform([size, size], name=f"{chain}/start")
            for i in range(length):
                x = tf.matmul(x, x, name=f"{chain}/product_{i}")
            ends.append(tf.reduce_sum(x, name=f"{chain}/sum"))
        tf.add(*ends, name="out")
    return graph.as_graph_def()


def _devices(graph_def: graph_pb2.GraphDef) -> list[str]:
    return [n.device for n in graph_def.node]


def test_two_chains_on_two_devices() -> None:
    graph_def = _two_chains()
    bare = graph_pb2.GraphDef.FromString(graph_def.SerializeToString())
    result = placer.optimize(graph_def, devices="k80:2", evaluations=1500, seed=1)
    assert result.graph_def is graph_def
    # The proto itself was annotated, and nothing of it but the devices changed.
    found = dict(zip((n.name for n in graph_def.node), _devices(graph_def), strict=True))
    assert found == dict(result.placement)
    assert set(found.values()) <= set(parse("k80:2").device_names)
    for node in graph_def.node:
        node.device = ""
    assert graph_def == bare
    # No worse than any reference; and each chain is alone on a GPU, which halves the step.
    rows = {r.name: r for r in result.rows}
    assert list(rows) == ["as it came", "one GPU", "one CPU", "placer"]
    assert result.step_seconds == min(r.step_seconds for r in result.rows)
    assert result.step_seconds < 0.55 * rows["one GPU"].step_seconds
    heavy = {chain: {found[f"{chain}/product_{i}"] for i in range(4)} for chain in "ab"}
    assert len(heavy["a"]) == len(heavy["b"]) == 1
    assert heavy["a"] != heavy["b"]
    assert not result.interrupted
    assert result.history.step_seconds.iloc[-1] == result.step_seconds
    assert list(result.peak_bytes) == list(result.placement.devices)


@pytest.mark.parametrize("method", ["auto", "annealing", "cross_entropy"])
def test_one_seed_gives_one_placement(method: str) -> None:
    found = []
    for _ in range(2):
        graph_def = _two_chains(512, 3)
        result = placer.optimize(graph_def, devices="k80:2", method=method, evaluations=400, seed=7)
        found.append((_devices(graph_def), result.step_seconds, result.evaluations))
    assert found[0] == found[1]


def test_ctrl_c_gives_the_best_so_far() -> None:
    bests: list[float] = []

    def on_progress(search: Search) -> None:
        bests.append(search.best_seconds)
        if search.evaluations >= 50:
            raise KeyboardInterrupt

    graph_def = _two_chains()
    result = placer.optimize(graph_def, devices="k80:2", budget=60, on_progress=on_progress)
    assert result.interrupted
    assert result.seconds < 30
    assert result.step_seconds == min(bests)
    assert all(_devices(graph_def))


def test_ctrl_c_at_the_first_evaluation() -> None:
    def on_progress(search: Search) -> None:
        raise KeyboardInterrupt

    result = placer.optimize(_two_chains(64), devices="k80:2", on_progress=on_progress)
    assert result.interrupted
    assert result.evaluations == 1


def test_ctrl_c_while_grouping_gives_the_best_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("placer.optimizer.group_ops", interrupted)
    graph_def = _two_chains()
    result = placer.optimize(graph_def, devices="k80:2")
    assert result.interrupted
    assert result.evaluations == len(result.rows) - 1 > 1
    assert result.step_seconds == min(r.step_seconds for r in result.rows)
    assert all(_devices(graph_def))


def test_ctrl_c_while_workers_start_gives_the_best_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("placer.rewards.open_runner", interrupted)
    result = placer.optimize(_two_chains(64), devices="workers:2", reward="both")
    assert result.interrupted
    assert result.measured_seconds is None
    assert result.step_seconds == min(r.step_seconds for r in result.rows)


def test_both_rewards_without_budget_and_with_the_last_seed() -> None:
    result = placer.optimize(
        _two_chains(64), devices="workers:2", reward="both", budget=0, seed=2**31 - 1
    )
    assert result.measured_seconds is not None
    assert result.evaluations == 1


def test_an_error_on_the_way_keeps_what_was_found() -> None:
    def on_progress(search: Search) -> None:
        if search.evaluations >= 100:
            raise PlacerError("the workers went away")

    graph_def = _two_chains()
    result = placer.optimize(
        graph_def, devices="k80:2", method="annealing", evaluations=500, on_progress=on_progress
    )
    assert result.failure == "the workers went away"
    assert not result.interrupted
    assert result.step_seconds < min(r.step_seconds for r in result.rows[:-1])
    assert all(_devices(graph_def))


def test_an_error_before_anything_is_found_is_raised() -> None:
    def on_progress(search: Search) -> None:
        if search.evaluations > 2:
            raise PlacerError("the workers went away")

    with pytest.raises(PlacerError, match="went away"):
        placer.optimize(_two_chains(16), devices="k80:2", evaluations=9, on_progress=on_progress)


@pytest.mark.parametrize("evaluations", [4, 9])
def test_evaluations_are_a_limit(evaluations: int) -> None:
    result = placer.optimize(_two_chains(64), devices="k80:2", evaluations=evaluations)
    assert result.evaluations <= evaluations


def test_auto_with_an_odd_share_of_the_policy() -> None:
    result = placer.optimize(
        _two_chains(64),
        devices="k80:2",
        evaluations=101,
        method_options={"policy": 0.5, "local_search": False},
    )
    assert result.evaluations <= 101


def test_a_placement_that_ran_fits_whatever_the_simulator_thinks() -> None:
    topology = parse("workers:2")
    small = tuple(dataclasses.replace(d, memory_bytes=1 << 10) for d in topology.devices)
    topology = dataclasses.replace(topology, devices=small)
    result = placer.optimize(
        _two_chains(128), devices=topology, reward="measure", evaluations=3, method="random_search"
    )
    assert result.measured_seconds is not None
    assert max(result.peak_bytes.values()) > 1 << 10
    assert result.rows[-1].infeasible == ""


def test_both_rewards_without_a_limit_in_seconds() -> None:
    result = placer.optimize(
        _two_chains(128),
        devices="workers:2",
        reward="both",
        budget=float("inf"),
        evaluations=5,
        method="random_search",
    )
    assert result.measured_seconds is not None
    assert result.evaluations <= 5
    assert [c for c in result.table if c.startswith("peak")] == [
        "peak_gib 0/CPU:0",
        "peak_gib 1/CPU:0",
    ]


def test_no_budget_gives_the_best_reference() -> None:
    result = placer.optimize(_two_chains(), devices="k80:2", budget=0)
    assert result.step_seconds == min(r.step_seconds for r in result.rows)


def _with_memory(mib: float) -> Topology:
    topology = parse("k80:2")
    return topology.with_memory([int(mib * 2**20)] * topology.num_devices)


def test_memory_that_suffices_nowhere_names_the_device() -> None:
    graph_def = _two_chains()
    before = graph_def.SerializeToString(deterministic=True)
    with pytest.raises(
        InfeasibleError, match=r"GPU:\d needs .* GiB, has .*, lacks [\d.]+"
    ) as error:
        placer.optimize(graph_def, devices=_with_memory(5), evaluations=300)
    assert "\n" not in str(error.value)
    assert graph_def.SerializeToString(deterministic=True) == before


def test_variables_larger_than_all_memory() -> None:
    with tf.Graph().as_default() as graph:
        v = tf.compat.v1.get_variable("v", [1024, 1024], use_resource=True)
        tf.reduce_sum(v.read_value(), name="out")
    with pytest.raises(InfeasibleError, match="variables alone"):
        placer.optimize(graph, ["out"], _with_memory(1), evaluations=100)


def test_memory_that_one_device_lacks_is_found_on_two() -> None:
    with tf.Graph().as_default() as graph:
        ends = []
        for i in range(4):
            v = tf.compat.v1.get_variable(f"v{i}", [512, 512], use_resource=True)
            ends.append(tf.reduce_sum(v.read_value(), name=f"sum{i}"))
        tf.add_n(ends, name="out")
    result = placer.optimize(graph, ["out"], _with_memory(2.5), evaluations=500)
    rows = {r.name: r.infeasible for r in result.rows}
    assert "out of memory" in rows["one GPU"]
    assert not rows["placer"]
    assert max(result.peak_bytes.values()) <= 2.5 * 2**20


def test_devices_of_the_graph_are_kept_or_cleared() -> None:
    graph_def = _two_chains(256)
    kept = {"a/product_0": "/device:GPU:1", "b/sum": "/device:CPU:0"}
    for node in graph_def.node:
        node.device = kept.get(node.name, "")
    result = placer.optimize(graph_def, devices="k80:2", evaluations=200)
    for name, device in kept.items():
        assert result.placement[name].endswith(device)
    for node in graph_def.node:
        node.device = "/device:GPU:5" if node.name == "b/sum" else ""
    with pytest.raises(PlacerError, match=r"'b/sum'.*GPU:5.*--clear_devices"):
        placer.optimize(graph_def, devices="k80:2", evaluations=200)
    assert placer.optimize(graph_def, devices="k80:2", evaluations=200, clear_devices=True)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"reward": "praise"}, "'praise'"),
        ({"budget": -1}, "budget"),
        ({"budget": float("nan")}, "budget"),
        ({"method": "magic"}, "'magic'"),
        ({"max_groups": 0}, "max_groups"),
        ({"checkpoint_dir": "checkpoints"}, "checkpoint_dir"),
        ({"method": "annealing", "method_options": {"x": 1}}, "'x'"),
        ({"fetches": ["nobody"]}, "'nobody'"),
        ({"trip_counts": {"loop": 3}}, "'loop'"),
        ({"evaluations": 0}, "evaluations"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**31}, "seed"),
        ({"method": "policy", "checkpoint_dir": "here", "reward": "both"}, "reward both"),
        ({"fetches": ["out:1"]}, "'out:1'"),
        ({"fetches": ["out:x"]}, "'out:x'"),
        ({"devices": "x" * 5000}, "unknown devices"),
    ],
)
def test_bad_arguments(arguments: dict, says: str) -> None:
    graph_def = _two_chains(16, 1)
    with pytest.raises(PlacerError, match=says):
        placer.optimize(graph_def, **{"devices": "k80:2", **arguments})
    assert not any(_devices(graph_def))


def test_a_result_is_saved_and_evaluated_the_same(tmp_path) -> None:
    from placer.evaluate import evaluate

    result = placer.optimize(_two_chains(), devices="k80:2", evaluations=300)
    result.save(tmp_path / "placed.pb")
    result.placement.save(tmp_path / "placement.pbtxt")
    rows = evaluate(
        _two_chains(), [tmp_path / "placed.pb", tmp_path / "placement.pbtxt"], devices="k80:2"
    ).rows
    assert [r.step_seconds for r in rows[1:]] == [result.step_seconds] * 2
    assert np.isfinite(rows[0].step_seconds)


def test_running_out_of_memory_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def method(search: Search) -> None:
        raise MemoryError("Unable to allocate 20.0 GiB")

    monkeypatch.setattr("placer.optimizer.get_method", lambda *arguments: method)
    with pytest.raises(PlacerError, match="auto failed: MemoryError: Unable to allocate"):
        placer.optimize(_two_chains(8), devices="k80:2")


def test_a_second_ctrl_c_does_not_lose_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    from placer import optimizer

    make_row = optimizer.make_row

    def method(search: Search) -> None:
        raise KeyboardInterrupt

    def impatient(*arguments):
        signal.raise_signal(signal.SIGINT)
        return make_row(*arguments)

    monkeypatch.setattr(optimizer, "get_method", lambda *arguments: method)
    monkeypatch.setattr(optimizer, "make_row", impatient)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        result = placer.optimize(_two_chains(8), devices="k80:2")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, handler)
    assert result.interrupted


def test_rows_of_placements_that_ran_survive_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    from placer import evaluate as module
    from placer.rewards import Judge

    class Failing(Judge):
        def measurement(self, placement: np.ndarray) -> None:
            self.calls = getattr(self, "calls", 0) + 1
            if self.calls == 3:
                raise failure

    monkeypatch.setattr(
        module,
        "open_reward",
        lambda reward, prepared, simulator: contextlib.nullcontext(Failing(simulator, simulator)),
    )
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "g.pb").write_bytes(_two_chains(8).SerializeToString())
    files = [tmp_path / folder / "g.pb" for folder in ("a", "b")]
    failure: BaseException = PlacerError("the workers are gone")
    found = module.evaluate(_two_chains(8), files, devices="k80:2", measure=True)
    assert [r.name for r in found.rows] == ["as it came", str(files[0])]
    assert (found.failure, found.interrupted) == ("the workers are gone", False)
    failure = KeyboardInterrupt()
    found = module.evaluate(_two_chains(8), files, devices="k80:2", measure=True)
    assert len(found.rows) == 2
    assert found.interrupted


def test_devices_within_functions_are_cleared_too() -> None:
    from placer.pipeline import prepare

    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        with tf.device("/device:GPU:7"):
            return tf.matmul(x, x)

    with tf.Graph().as_default() as graph:
        tf.identity(inner(tf.ones([4, 4])), name="out")
    graph_def = graph.as_graph_def()

    def devices(graph_def: graph_pb2.GraphDef) -> list[str]:
        return [n.device for f in graph_def.library.function for n in f.node_def if n.device]

    prepared = prepare(graph_def, ["out"], "k80:2", clear_devices=True)
    assert not devices(prepared.to_run.graph_def)
    assert devices(graph_def)
    assert prepare(graph_def, ["out"], "k80:2").to_run.graph_def is graph_def
    placer.optimize(graph_def, ["out"], devices="k80:2", evaluations=1, clear_devices=True)
    assert not devices(graph_def)
