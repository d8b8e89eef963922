import numpy as np
import pandas as pd
import pytest

from benchmarks.speed import growth_notes, measure_scale, peak_growth


@pytest.mark.parametrize(("size", "copies"), [(1 << 16, 200), (1 << 24, 1)])
def test_peak_growth_of_known_arrays(size, copies):
    def make():
        # The second is gone again, but while both are there the peak is higher.
        array, _ = np.ones(size, np.uint8), np.ones(4 * size if copies == 1 else 1, np.uint8)
        return array

    np.ones(1 << 26, np.uint8)  # Memory of the process before must not hide what follows.
    expected = 5 * size if copies == 1 else size
    assert peak_growth(make, copies) == pytest.approx(expected, rel=0.05)


def test_memory_of_a_simulator_is_repeatable():
    first, again = (measure_scale(5_000, repeats=1) for _ in range(2))
    assert first["bytes_per_op"] == pytest.approx(again["bytes_per_op"], rel=0.05)
    # At least what one run of an op needs: its costs, its edges and its state.
    assert 100 < first["bytes_per_op"] < 1000


def test_growth_is_told():
    scale = pd.DataFrame(
        {"ops": [10, 100], "ns_per_op": [50.0, 70.0], "bytes_per_op": [100.0, 151.0]}
    )
    time, memory = growth_notes(scale)
    assert "1.40 times that; flat within" in time
    assert "1.51 times that; not flat" in memory
