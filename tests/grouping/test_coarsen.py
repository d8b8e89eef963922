"""Groups are partitions that respect what must stay together."""

from __future__ import annotations

import numpy as np
import pytest

from placer.errors import PlacerError
from placer.grouping import group_ops
from tests.placers.problems import random_problem


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("limit", [1, 3, 8, 1000])
def test_groups(seed: int, limit: int) -> None:
    problem = random_problem(seed, topology="k80:2")
    graph = problem.graph
    grouping = group_ops(problem, limit)
    kinds = len(np.unique(problem.allowed, axis=0))
    assert grouping.num_groups <= max(limit, kinds)
    assert sorted(set(grouping.group_of.tolist())) == list(range(grouping.num_groups))
    for group in range(int(graph.colocation.max()) + 1):
        assert len(set(grouping.group_of[graph.colocation == group].tolist())) == 1
    for op, group in enumerate(grouping.group_of):
        assert (grouping.allowed[group] <= problem.allowed[op]).all()
    assert grouping.allowed.any(axis=1).all()
    again = group_ops(problem, limit)
    assert grouping.group_of.tolist() == again.group_of.tolist()
    # Bytes between groups, each tensor once a destination, counted one edge at a time.
    crossing: dict[tuple[int, int], set[int]] = {}
    for tensor, dst in zip(graph.in_tensor.tolist(), graph.edge_dst.tolist(), strict=True):
        a, b = grouping.group_of[graph.tensor_op[tensor]], grouping.group_of[dst]
        if a != b and graph.executed[dst]:
            crossing.setdefault((int(a), int(b)), set()).add(tensor)
    expected = {k: sum(int(graph.tensor_bytes[t]) for t in v) for k, v in crossing.items()}
    edges = zip(grouping.edge_src.tolist(), grouping.edge_dst.tolist(), strict=True)
    assert dict(zip(edges, grouping.edge_bytes.tolist(), strict=True)) == expected


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(PlacerError, match="max_groups"):
        group_ops(random_problem(0, topology="k80:2"), 0)
