"""Cases: a model on devices, read, costed and grouped once a process."""

from __future__ import annotations

import dataclasses
import functools
import re
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from placer.errors import PlacerError
from placer.grouping import Grouping, group_ops
from placer.methods import get_method
from placer.pipeline import Prepared, prepare
from placer.problem import PlacementProblem
from placer.search import Budget, Search
from placer.simulator import Simulator
from placer.simulator.build import build_simulator

if TYPE_CHECKING:
    import tensorflow as tf

MAX_GROUPS = 256
# The six rows that the search is judged by.
SIX_ROWS = ("rnnlm:2", "rnnlm:4", "nmt:2", "nmt:4", "inception_v3:2", "inception_v3:4")


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A training graph on a topology, ready to be searched.

    Attributes:
      name: the row it was asked for as, such as "nmt:4".
      model: key of benchmarks.models.MODELS.
      size: of the model.
      devices: the topology's name.
      prepared: the graph, read and costed.
      grouping: its op groups.
      simulator: of its step time.
      lower_bound: seconds that no placement's simulated step can go below, proved.
      gpu_bound: see `gpu_bound_seconds`.
      seconds: time that reading, costing and grouping took; building the model is not part of it.
    """

    name: str
    model: str
    size: str
    devices: str
    prepared: Prepared
    grouping: Grouping
    simulator: Simulator
    lower_bound: float
    gpu_bound: float
    seconds: float

    @property
    def problem(self) -> PlacementProblem:
        """Arrays of the graph on the topology."""
        return self.prepared.problem


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """What one method found in one case.

    Attributes:
      method: as it was asked for.
      placement: int32[N], or None if the method proposed nothing.
      step_seconds: simulated; inf if the placement does not fit.
      peak_bytes: int64[D].
      search: with its history; None where the method could not run.
      failure: "" or why there is no feasible placement.
    """

    method: str
    placement: np.ndarray | None
    step_seconds: float
    peak_bytes: np.ndarray
    search: Search | None
    failure: str = ""


def gpu_bound_seconds(problem: PlacementProblem, critical_path_seconds: float) -> float:
    """Seconds: the critical path, or all work shared evenly by the accelerators if that is longer.

    What a placement that leaves the CPU alone cannot go below, and the usual yardstick.
    """
    accelerators = list(problem.topology.accelerators)
    seconds = np.where(problem.allowed.T, problem.device_seconds, np.inf)
    best = seconds[accelerators].min(axis=0)
    best = np.where(np.isfinite(best), best, 0.0) * problem.graph.executed
    return max(critical_path_seconds, float(best.sum()) / len(accelerators))


@functools.cache
def training_graph(model: str, size: str) -> tf.compat.v1.MetaGraphDef:
    """The model's training graph, built once."""
    from benchmarks.models import build

    return build(model, size)


def parse_row(row: str) -> tuple[str, str, str]:
    """(model, size, devices) of a row: "nmt:4" is the paper's NMT on k80:4.

    "nmt-small:2" names a size, "nmt@v100:8x2" any devices.

    Raises:
      PlacerError: if it is none of these.
    """
    found = re.fullmatch(r"(\w+?)(?:-(paper|small|tiny))?(?::(\d+)|@(.+))", row)
    if found is None:
        raise PlacerError(f"row {row!r}: write it like nmt:4 (on k80:4), nmt-small:2 or nmt@v100:8")
    model, size, gpus, devices = found.groups()
    return model, size or "paper", devices or f"k80:{gpus}"


@functools.cache
def load_case(row: str, max_groups: int = MAX_GROUPS) -> Case:
    """Builds, reads, costs and groups a row's graph; PlacerError for an unknown row."""
    model, size, devices = parse_row(row)
    graph = training_graph(model, size)
    start = time.perf_counter()
    return make_case(row, prepare(graph, None, devices), max_groups, start)


def make_case(
    row: str, prepared: Prepared, max_groups: int = MAX_GROUPS, start: float | None = None
) -> Case:
    """A case of a graph that is prepared already.

    Args:
      row: names model and size; the devices are those of `prepared`.
      prepared: the row's graph, read and costed.
      max_groups: op groups at most.
      start: time.perf_counter when reading began.
    """
    start = time.perf_counter() if start is None else start
    model, size, _ = parse_row(row)
    problem = prepared.problem
    grouping = group_ops(problem, max_groups)
    simulator = build_simulator(problem)
    bound = simulator.lower_bound(problem.allowed, problem.graph.colocation)
    return Case(
        row,
        model,
        size,
        problem.topology.name,
        prepared,
        grouping,
        simulator,
        bound.step_seconds,
        gpu_bound_seconds(problem, bound.critical_path_seconds),
        time.perf_counter() - start,
    )


def parse_method(text: str) -> tuple[str, list[str]]:
    """(name, options) of "annealing[chains=4,use_cpu=true]"; PlacerError for bad syntax."""
    found = re.fullmatch(r"(\w+)(?:\[(.*)\])?", text)
    if found is None:
        raise PlacerError(f"method {text!r}: write it as name or name[option=value,...]")
    options = [o.strip() for o in (found[2] or "").split(",") if o.strip()]
    return found[1], options


def search_case(case: Case, method: str, budget: Budget, seed: int) -> Found:
    """Runs one method, with nothing before it, and evaluates what it found.

    A method that cannot run here (its library is missing, or it refuses the graph) is a failure
    of that method alone; an unknown name or option raises PlacerError.
    """
    name, options = parse_method(method)
    run = get_method(name, options)
    search = Search(case.problem, case.grouping, case.simulator, budget, seed)
    try:
        run(search)
    except (PlacerError, ImportError) as error:
        if search.best is None:
            return nothing_found(case, method, str(error))
    if search.best is None:
        return nothing_found(case, method, "it proposed nothing within the budget")
    return evaluate_case(case, method, search.best, search)


def evaluate_case(
    case: Case, method: str, placement: np.ndarray, search: Search | None = None
) -> Found:
    """The figures of a placement, int32[N]."""
    evaluation = case.simulator.evaluate(placement[None])
    fits = bool(evaluation.feasible[0])
    return Found(
        method,
        placement,
        float(evaluation.step_seconds[0]) if fits else float("inf"),
        evaluation.peak_bytes[0],
        search,
        "" if fits else "out of memory",
    )


def nothing_found(case: Case, method: str, failure: str) -> Found:
    """What a method that failed found."""
    devices = case.problem.topology.num_devices
    return Found(method, None, float("inf"), np.zeros(devices, np.int64), None, failure)


def seconds_to_within(search: Search, part: float = 0.05) -> float:
    """Seconds until the best step time was within `part` of the final one; inf if none fits."""
    limit = search.best_seconds * (1 + part)
    return next((i.seconds for i in search.improvements if i.step_seconds <= limit), float("inf"))


def best_at(search: Search, seconds: float) -> float:
    """Best step time after so many seconds of the search; inf if there was none."""
    times: list[Any] = [i.step_seconds for i in search.improvements if i.seconds <= seconds]
    return min(times, default=float("inf"))
