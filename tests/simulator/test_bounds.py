"""Lower bounds against every placement of small graphs."""

import dataclasses
import itertools

import numpy as np
import pytest

from placer.simulator import Simulator, SimulatorInputs
from tests.simulator.graphs import random_inputs
from tests.simulator.test_simulator import chain


def all_placements(inputs: SimulatorInputs) -> np.ndarray:
    return np.array(
        list(itertools.product(range(inputs.num_devices), repeat=inputs.num_ops)), np.int32
    )


def test_no_placement_beats_the_bound() -> None:
    reached = 0
    for seed in range(150):
        rng = np.random.default_rng(seed)
        inputs = random_inputs(rng, max_ops=7, max_devices=3)
        simulator = Simulator(inputs)
        placements = all_placements(inputs)
        result = simulator.evaluate(placements)
        bound = simulator.lower_bound()
        assert bound.step_seconds <= result.step_seconds.min()
        reached += bound.step_seconds >= 0.99 * result.step_seconds.min()
        if bound.memory_problem:
            assert not result.feasible.any()

        allowed = rng.random((inputs.num_ops, inputs.num_devices)) < 0.7
        colocation = rng.integers(-1, 3, inputs.num_ops)
        legal = allowed[np.arange(inputs.num_ops), placements].all(axis=1)
        for group in range(3):
            members = placements[:, colocation == group]
            if members.shape[1]:
                legal &= (members == members[:, :1]).all(axis=1)
        if not legal.any():
            with pytest.raises(ValueError, match="has no allowed device"):
                simulator.lower_bound(allowed, colocation)
            continue
        bound = simulator.lower_bound(allowed, colocation)
        assert bound.step_seconds <= result.step_seconds[legal].min()
        if bound.memory_problem:
            assert not result.feasible[legal].any()
    assert reached > 50  # it is not trivially low


@pytest.mark.parametrize("seed", range(60))
def test_no_placement_beats_the_transfer_bound(seed: int) -> None:
    """Larger graphs with dear and free transfers, against every placement on two devices."""
    rng = np.random.default_rng(1000 + seed)
    inputs = random_inputs(rng, max_ops=11, max_devices=2)
    scale = rng.choice([0.0, 0.3, 3.0])
    inputs = dataclasses.replace(inputs, seconds_per_byte=inputs.seconds_per_byte * scale)
    simulator = Simulator(inputs)
    steps = simulator.evaluate(all_placements(inputs)).step_seconds
    bound = simulator.lower_bound()
    assert bound.transfer_seconds <= steps.min()
    assert bound.window_seconds <= steps.min()
    assert bound.transfer_seconds >= bound.critical_path_seconds


def test_ops_whose_transfers_are_dear_share_a_device() -> None:
    """Four ops between a source and a sink: apart they pay transfers, together they queue."""

    def fork(transfer_seconds: float) -> SimulatorInputs:
        return chain(
            executed=[True] * 6,
            inline_op=[False] * 6,
            op_seconds=[[0.5, 1.0, 1.0, 1.0, 1.0, 0.5]],
            persistent_bytes=[0] * 6,
            temporary_bytes=[[0] * 6],
            out_ptr=[0, 1, 2, 3, 4, 5, 5],
            tensor_bytes=[1] * 5,
            tensor_local_bytes=[1] * 5,
            tensor_alias=[-1] * 5,
            in_ptr=[0, 0, 1, 2, 3, 4, 8],
            in_tensor=[0, 0, 0, 0, 1, 2, 3, 4],
            latency=np.full((2, 2), transfer_seconds),
            seconds_per_byte=np.zeros((2, 2)),
        )

    for transfer_seconds in (0.25, 1.0, 2.0):
        inputs = fork(transfer_seconds)
        simulator = Simulator(inputs)
        best = simulator.evaluate(all_placements(inputs)).step_seconds.min()
        bound = simulator.lower_bound()
        assert bound.critical_path_seconds == pytest.approx(2.0)
        # Either all four queue, or one is elsewhere, or source and sink are apart.
        expected = min(0.5 + 4.0, 0.5 + 1.0 + transfer_seconds) + 0.5
        assert bound.transfer_seconds == pytest.approx(expected, rel=1e-8)
        assert bound.step_seconds <= best
    # Ops that share a device queue, however cheap the transfers.
    together = Simulator(fork(0.0)).lower_bound(colocation=[-1, 7, 7, 7, 7, 7])
    assert together.transfer_seconds == pytest.approx(5.0, rel=1e-8)


def test_bounds_by_hand() -> None:
    bound = Simulator(chain()).lower_bound()
    assert bound.critical_path_seconds == pytest.approx(3, rel=1e-8)
    assert bound.work_seconds == pytest.approx(1.5, rel=1e-8)
    assert bound.memory_problem is None
    # Device 1 is twice as fast: all work split is 3 / (1/1 + 1/0.5) of a second.
    faster = chain(op_seconds=[[1.0] * 3, [0.5] * 3], temporary_bytes=[[0] * 3] * 2)
    faster = dataclasses.replace(faster, device_class=[0, 1])
    assert Simulator(faster).lower_bound().work_seconds == pytest.approx(1.0, rel=0.02)
    # Only device 0 may run op 1.
    allowed = np.ones((3, 2), bool)
    allowed[1, 1] = False
    bound = Simulator(faster).lower_bound(allowed)
    assert bound.critical_path_seconds == pytest.approx(2, rel=1e-8)


def test_memory_that_cannot_fit() -> None:
    problem = Simulator(chain(persistent_bytes=[90, 90, 90])).lower_bound().memory_problem
    assert problem is not None
    assert "270" in problem
    assert "200" in problem
    inputs = chain(persistent_bytes=[60, 60, 0])
    assert Simulator(inputs).lower_bound().memory_problem is None
    problem = Simulator(inputs).lower_bound(colocation=[0, 0, -1]).memory_problem
    assert problem is not None
    assert "130 bytes" in problem


def test_refuses_bad_constraints() -> None:
    simulator = Simulator(chain())
    with pytest.raises(ValueError, match="allowed has shape"):
        simulator.lower_bound(np.ones((3, 3), bool))
    with pytest.raises(ValueError, match="colocation has shape"):
        simulator.lower_bound(colocation=[0, 1])
