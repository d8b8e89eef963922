"""Workers' memory: steps reuse it, and the next placement finds it free."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from placer.runtime import MeasurementProtocol, open_runner
from tests.runtime.graphs import BLOCK_BYTES, large_block

_PAGE_BYTES = 4096


def _page_faults(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES


def test_steps_reuse_pages_and_a_new_placement_gives_them_back() -> None:
    source = large_block()
    with open_runner("workers:2", source) as runner:
        first, second = runner.worker_pids
        apart = np.array([int(n.name != "there") for n in source.graph_def.node], np.int32)
        faults = []
        for steps in (2, 12):
            before = _page_faults(second)
            protocol = MeasurementProtocol(warm_up=2, steps=steps, stop_ratio=0.0, repeats=0)
            assert runner.measure(apart, protocol).ok
            faults.append(_page_faults(second) - before)
        # Ten steps more; each would fault in the block that arrives if it were mapped anew.
        assert faults[1] - faults[0] < BLOCK_BYTES // _PAGE_BYTES
        held = _resident_bytes(second)
        assert runner.measure(np.zeros(runner.num_nodes, np.int32), protocol).ok
        assert runner.worker_pids == (first, second)
        assert _resident_bytes(second) < held - BLOCK_BYTES // 2
