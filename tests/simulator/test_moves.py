"""Small moves against full runs."""

import numpy as np
import pytest

from placer.simulator import Simulator
from tests.simulator.graphs import random_inputs
from tests.simulator.test_simulator import chain


@pytest.mark.parametrize("part", range(3))
def test_moves_equal_full_runs(part: int) -> None:
    for seed in range(part * 120, part * 120 + 120):
        rng = np.random.default_rng(seed)
        inputs = random_inputs(rng, max_ops=80, max_devices=3 if seed % 10 else 14)
        width = inputs.num_ops
        groups = None
        if seed % 3 == 0:
            width = max(1, inputs.num_ops // 3)
            groups = rng.integers(0, width, inputs.num_ops)
        simulator = Simulator(inputs)
        base = rng.integers(0, inputs.num_devices, width)
        evaluator = simulator.moves_from(base, groups)
        placements, slots, devices, ptr = [], [], [], [0]
        for _ in range(12):
            which = rng.permutation(width)[: int(rng.integers(0, 4))]
            where = rng.integers(0, inputs.num_devices, which.size)
            placement = base.copy()
            placement[which] = where
            placements.append(placement)
            slots.extend(which.tolist())
            devices.extend(where.tolist())
            ptr.append(len(slots))
        own = simulator.evaluate(base[np.newaxis], groups)
        assert evaluator.step_seconds == own.step_seconds[0]
        np.testing.assert_array_equal(evaluator.peak_bytes, own.peak_bytes[0])
        full = simulator.evaluate(np.array(placements), groups)
        for cutoff in (np.inf, evaluator.step_seconds, float(full.step_seconds.min())):
            moved = evaluator.evaluate(
                np.array(slots, int), np.array(devices, int), ptr, cutoff=cutoff
            )
            kept = full.step_seconds <= cutoff
            np.testing.assert_array_equal(
                moved.step_seconds, np.where(kept, full.step_seconds, np.inf), f"seed {seed}"
            )
            np.testing.assert_array_equal(moved.peak_bytes[kept], full.peak_bytes[kept])
            np.testing.assert_array_equal(moved.feasible, full.feasible & kept)


def test_moves_do_not_depend_on_threads() -> None:
    rng = np.random.default_rng(3)
    inputs = random_inputs(rng, max_ops=200, max_devices=4)
    evaluator = Simulator(inputs).moves_from(np.zeros(inputs.num_ops, int))
    slots = rng.integers(0, inputs.num_ops, 200)
    devices = rng.integers(0, inputs.num_devices, 200)
    one = evaluator.evaluate(slots, devices, threads=1)
    many = evaluator.evaluate(slots, devices, threads=4)
    np.testing.assert_array_equal(one.step_seconds, many.step_seconds)
    np.testing.assert_array_equal(one.peak_bytes, many.peak_bytes)


def test_refuses_bad_moves() -> None:
    evaluator = Simulator(chain()).moves_from([0, 0, 0])
    with pytest.raises(ValueError, match=r"moves\[1\]: there is no 3"):
        evaluator.evaluate([0, 3], [0, 1])
    with pytest.raises(ValueError, match=r"moves\[0\]: device 2"):
        evaluator.evaluate([0], [2])
    with pytest.raises(ValueError, match=r"moves\[0\]: moves 1 twice"):
        evaluator.evaluate([1, 1], [0, 1], [0, 2])
    with pytest.raises(ValueError, match="move_devices has shape"):
        evaluator.evaluate([1, 1], [0])
    with pytest.raises(ValueError, match="move_ptr"):
        evaluator.evaluate([1, 1], [0, 1], [0, 3])
    with pytest.raises(ValueError, match="move_ptr"):
        evaluator.evaluate([1, 1], [0, 1], [0, 2, 1, 2])
