"""Crossings after merges equal those counted anew from the partition, one edge at a time."""

from __future__ import annotations

import numpy as np
import pytest

from placer.grouping import coarsen
from placer.grouping.crossings import Crossings, sorted_distinct
from placer.problem import PlacementProblem
from tests.placers.problems import make_problem


def _problem(rng: np.random.Generator) -> PlacementProblem:
    edges = {(int(rng.integers(0, d)), d) for d in range(1, 200) for _ in range(3)}
    sizes = rng.integers(1, 1 << 30, 200).tolist()
    return make_problem(sorted(edges), [1e-4] * 200, num_bytes=sizes)


def _count_by_edge(problem: PlacementProblem, group_of: np.ndarray) -> dict[tuple[int, int], int]:
    graph = problem.graph
    crossing: dict[tuple[int, int], set[int]] = {}
    for tensor, reader in zip(graph.in_tensor.tolist(), graph.edge_dst.tolist(), strict=True):
        pair = (int(group_of[graph.tensor_op[tensor]]), int(group_of[reader]))
        if pair[0] != pair[1]:
            crossing.setdefault(pair, set()).add(tensor)
    return {p: sum(int(graph.tensor_bytes[t]) for t in ts) for p, ts in crossing.items()}


@pytest.mark.parametrize("seed", range(3))
def test_merging(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = _problem(rng)
    group_of = np.arange(200)
    crossings = Crossings(problem, group_of)
    while group_of.max() > 1:
        count = int(group_of.max()) + 1
        _, renumber = np.unique(
            np.where(rng.random(count) < 0.4, rng.integers(0, count, count), np.arange(count)),
            return_inverse=True,
        )
        crossings = crossings.merged(renumber)
        group_of = renumber[group_of]
        src, dst, num_bytes = (column.tolist() for column in crossings.edges())
        found = dict(zip(zip(src, dst, strict=True), num_bytes, strict=True))
        assert found == _count_by_edge(problem, group_of)
        assert len(found) == len(src)


def test_sorted_distinct() -> None:
    keys = np.random.default_rng(0).integers(0, 50, 200)
    assert sorted_distinct(keys).tolist() == sorted(set(keys.tolist()))
    assert sorted_distinct(keys[:0]).size == 0


@pytest.mark.parametrize("columns", [1, 8, 64, 65, 130])
def test_row_kinds_are_those_of_numpy(columns: int) -> None:
    rng = np.random.default_rng(columns)
    rows = rng.random((7, columns)) < 0.5
    rows = rows[rng.integers(0, 7, 50)]
    expected = np.unique(rows, axis=0, return_inverse=True)[1].ravel()
    assert coarsen._row_kinds(rows).tolist() == expected.tolist()
