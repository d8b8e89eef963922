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
