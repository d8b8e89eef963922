"""placer evaluate: figures of placements that exist already."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from placer.devices import Topology
from placer.errors import PlacerError
from placer.graph import GraphSource, read
from placer.optimizer import make_row
from placer.pipeline import Prepared, prepare
from placer.placement import Placement
from placer.problem import PlacementProblem
from placer.result import Row
from placer.rewards import open_reward
from placer.simulator.build import build_simulator


def evaluate(
    graph: Any,
    placed: Sequence[str | os.PathLike[str] | Placement],
    *,
    fetches: Sequence[str] | None = None,
    devices: str | Topology = "local",
    measure: bool = False,
    clear_devices: bool = False,
    profile: str | None = None,
    trip_counts: Mapping[str, float] | None = None,
) -> tuple[Prepared, list[Row]]:
    """Simulates, and with `measure` runs, a graph as it came and under other placements.

    Args:
      graph: see placer.graph.read.
      placed: files of the same graph with devices, placement files, or Placements.
      fetches, devices, clear_devices, profile, trip_counts: as placer.optimize takes them.
      measure: run each on the devices.

    Returns:
      What was read, and a row for the graph as it came and for each of `placed`.

    Raises:
      PlacerError: if a file is not a placement of this graph on these devices.
    """
    prepared = prepare(
        graph,
        fetches,
        devices,
        clear_devices=clear_devices,
        profile=profile,
        trip_counts=trip_counts,
    )
    problem = prepared.problem
    named: list[tuple[str, np.ndarray]] = []
    if prepared.came is not None:
        named.append(("as it came", prepared.came))
    for item in placed:
        name = "placement" if isinstance(item, Placement) else Path(item).name
        named.append((name, read_placement(item, problem)))
    simulator = build_simulator(problem)
    with open_reward("measure" if measure else "simulate", prepared, simulator) as judge:
        rows = []
        for name, placement in named:
            judge.evaluator.evaluate(placement[None])
            rows.append(make_row(name, placement, simulator, problem, judge.measurement(placement)))
    return prepared, rows


def read_placement(
    item: str | os.PathLike[str] | Placement, problem: PlacementProblem
) -> np.ndarray:
    """int32[N]: the placement that a file holds, checked against a problem.

    Args:
      item: a graph file with devices, a placement file, or a Placement.
      problem: the graph and topology it should be of. Ops without a device go where
        PlacementProblem.repair puts them.

    Raises:
      PlacerError: if it is of another graph, names devices that the topology lacks, or is illegal.
    """
    where = "placement" if isinstance(item, Placement) else str(item)
    if isinstance(item, Placement):
        device_of: Mapping[str, str] = item
    else:
        device_of = _devices_in_file(item)
    graph = problem.graph
    missing = [name for name in graph.names if name not in device_of]
    if missing:
        raise PlacerError(
            f"{where} is of another graph: it has no op {missing[0]!r} "
            f"({len(missing)} of {graph.num_ops} are missing)"
        )
    numbers: dict[str, int] = {"": -1}
    placement = np.empty(graph.num_ops, np.int32)
    for op, name in enumerate(graph.names):
        device = device_of[name]
        if device not in numbers:
            matching = problem.topology.matching(device)
            if not matching.any():
                raise PlacerError(
                    f"{where}: op {name!r} is on {device!r}, which {problem.topology.name} lacks"
                )
            numbers[device] = int(matching.argmax())
        placement[op] = numbers[device]
    if (placement < 0).any():
        repaired = problem.repair(placement)
        placement = np.where(placement < 0, repaired, placement).astype(np.int32)
    try:
        problem.check(placement)
    except PlacerError as error:
        raise PlacerError(f"{where}: {error}") from None
    return placement


def _devices_in_file(path: str | os.PathLike[str]) -> Mapping[str, str]:
    graph_error: PlacerError
    try:
        source: GraphSource = read(path)
        return {node.name: node.device for node in source.graph_def.node}
    except PlacerError as error:
        graph_error = error
    try:
        return Placement.load(path)
    except PlacerError:
        raise PlacerError(
            f"{path} is neither a placed graph nor a placement file ({graph_error})"
        ) from None
