"""placer evaluate: figures of placements that exist already."""

from __future__ import annotations

import dataclasses
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


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluated:
    """Figures of placements.

    Attributes:
      prepared: the graph that was read.
      rows: one for the graph as it came, if it names devices that are there, and for each
        placement.
      interrupted: Ctrl-C ended the runs; there are rows of those that were run.
      failure: what else ended them, such as workers that went away; "" if nothing did.
    """

    prepared: Prepared
    rows: tuple[Row, ...]
    interrupted: bool = False
    failure: str = ""


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
) -> Evaluated:
    """Simulates, and with `measure` runs, a graph as it came and under other placements.

    Args:
      graph: see placer.graph.read.
      placed: files of the same graph with devices, placement files, or Placements.
      fetches, devices, clear_devices, profile, trip_counts: as placer.optimize takes them.
      measure: run each on the devices.

    Raises:
      PlacerError: if a file is not a placement of this graph on these devices, or nothing runs.
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
    files = [Path(item).name for item in placed if not isinstance(item, Placement)]
    for item in placed:
        if isinstance(item, Placement):
            name = "placement"
        else:
            # Files of one name are told apart by their paths.
            name = Path(item).name
            name = name if files.count(name) == 1 else str(item)
        named.append((name, read_placement(item, problem)))
    simulator = build_simulator(problem)
    rows: list[Row] = []
    interrupted, failure = False, ""
    reward = "measure" if measure else "simulate"
    with open_reward(reward, prepared, simulator) as judge:
        try:
            for name, placement in named:
                judge.evaluator.evaluate(placement[None])
                measured = judge.measurement(placement)
                rows.append(make_row(name, placement, simulator, problem, measured))
        except KeyboardInterrupt:
            if not rows:
                raise
            interrupted = True
        except PlacerError as error:
            if not rows:
                raise
            failure = str(error)
    return Evaluated(prepared, tuple(rows), interrupted, failure)


def read_placement(
    item: str | os.PathLike[str] | Placement, problem: PlacementProblem
) -> np.ndarray:
    """int32[N]: the placement that a file holds, checked against a problem.

    Args:
      item: a graph file with devices, a placement file, or a Placement.
      problem: the graph and topology it should be of. Ops without a device go where
        PlacementProblem.repair puts them.

    Raises:
      PlacerError: if it lacks ops of the graph, names devices that the topology lacks, or is
        illegal.
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
            try:
                matching = problem.topology.matching(device)
            except PlacerError as error:
                raise PlacerError(f"{where}: op {name!r}: {error}") from None
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
