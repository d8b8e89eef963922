"""HDP: a hierarchical policy that groups ops and places the groups, learnt by REINFORCE."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from placer.placers.coplacement import Units, data_edges, make_units
from placer.placers.group_moves import finite_cost, graded_cost, preferred
from placer.placers.progress import Progress
from placer.placers.spec import PlacerSpec, parameter
from placer.problem import PlacementProblem

if TYPE_CHECKING:
    from placer.search.state import Search

NAME = "hdp"


@dataclasses.dataclass(frozen=True)
class HdpParameters:
    """Parameters of HDP."""

    evaluations: int | None = parameter(
        None, "placements to evaluate; none: as the budget allows", least=1
    )
    groups: int = parameter(64, "groups that the grouper makes (the paper: 256)", least=1)
    batch: int = parameter(8, "placements sampled for each update", least=1)
    grouper_hidden: int = parameter(64, "hidden units of the grouper", least=1)
    placer_hidden: int = parameter(64, "LSTM units of the placer (the paper: 256)", least=1)
    learning_rate: float = parameter(0.01, "of Adam (the paper: 0.1)", least=0.0)
    clip_norm: float = parameter(1.0, "bound of the gradients' norm", least=0.0)
    tanh_constant: float = parameter(
        5.0, "bound of the placer's logits, for exploration", least=0.1
    )
    baseline_decay: float = parameter(
        0.9, "decay of the moving average of rewards", least=0.0, most=1.0
    )
    memory_penalty: float = parameter(
        20.0, "cost of memory over the limit: step time * penalty * part of the limit", least=0.0
    )
    use_cpu: bool = parameter(False, "place on the CPU too what a GPU may run")


def _run(search: Search, parameters: HdpParameters) -> None:
    """Mirhoseini et al., A Hierarchical Model for Device Placement, ICLR 2018, section 2.

    The grouper, a feed-forward network, draws a group for each unit (colocation group); the
    placer, a sequence-to-sequence LSTM with attention, reads the groups and draws their devices.
    Both are trained together: the reward is -sqrt(cost), the baseline its moving average, and the
    gradient of log p(groups) + log p(devices) is scaled by their difference. A unit that may not
    use its group's device goes to the first one it may use.
    """
    from placer.placers import hdp_model

    problem = search.problem
    units = make_units(problem, "colocation")
    allowed = preferred(problem, units.allowed) if not parameters.use_cpu else units.allowed
    executed = np.zeros(units.num_units, bool)
    executed[units.unit_of[problem.graph.executed]] = True
    # Only units with a choice and something to run are grouped.
    chosen = np.flatnonzero((allowed.sum(axis=1) > 1) & executed)
    fallback = allowed.argmax(axis=1).astype(np.int32)
    if not chosen.size:
        search.evaluate(fallback[units.unit_of], NAME)
        return
    features = unit_features(problem, units)[chosen]
    edges = unit_edges(problem, units, chosen)
    devices = np.flatnonzero(allowed[chosen].any(axis=0))
    model = hdp_model.Hdp(
        features,
        edges,
        num_groups=min(parameters.groups, len(chosen)),
        num_devices=len(devices),
        grouper_hidden=parameters.grouper_hidden,
        placer_hidden=parameters.placer_hidden,
        learning_rate=parameters.learning_rate,
        clip_norm=parameters.clip_norm,
        tanh_constant=parameters.tanh_constant,
        seed=search.seed,
    )
    memory = problem.topology.memory_bytes
    progress = Progress(search, parameters.evaluations)
    baseline: float | None = None
    while not progress.done():
        # The networks always see whole batches, or TensorFlow would trace them anew.
        sample = model.sample(parameters.batch)
        batch = progress.room(parameters.batch)
        group_devices = devices[sample.devices].astype(np.int32)
        wished = np.take_along_axis(group_devices, sample.groups, axis=1)[:batch]
        legal = allowed[chosen[None, :], wished]
        rows = np.tile(fallback, (batch, 1))
        rows[:, chosen] = np.where(legal, wished, fallback[chosen])
        evaluation = search.evaluate(rows[:, units.unit_of], NAME)
        if batch < parameters.batch:
            return
        cost = finite_cost(graded_cost(evaluation, memory, parameters.memory_penalty))
        if not np.isfinite(cost).all():
            continue
        reward = -np.sqrt(cost)
        if baseline is None:
            baseline = float(reward.mean())
        model.update(sample, reward - baseline)
        decay = parameters.baseline_decay
        baseline = decay * baseline + (1 - decay) * float(reward.mean())


def unit_features(problem: PlacementProblem, units: Units) -> np.ndarray:
    """float32[U, F]: what the grouper reads of each unit.

    Counts of op types, output sizes, compute time and position in the graph (standing for the
    paper's embedding of op types, output shapes and adjacent op types).
    """
    graph = problem.graph
    unit, u = units.unit_of, units.num_units
    used = np.unique(graph.op_type[graph.executed], return_inverse=True)
    types = np.zeros((u, len(used[0])))
    np.add.at(types, (unit[graph.executed], used[1]), 1.0)
    # Types of the ops that a unit feeds and reads.
    src, dst = data_edges(problem)
    number = np.full(len(graph.op_types), 0)
    number[used[0]] = np.arange(len(used[0]))
    feeds, reads = np.zeros_like(types), np.zeros_like(types)
    np.add.at(feeds, (unit[src], number[graph.op_type[dst]]), 1.0)
    np.add.at(reads, (unit[dst], number[graph.op_type[src]]), 1.0)
    output = np.bincount(graph.tensor_op, weights=graph.tensor_bytes, minlength=graph.num_ops)
    seconds = problem.device_seconds.min(axis=0) * graph.executed
    order = graph.topological_order()
    position = np.empty(graph.num_ops)
    position[order] = np.arange(graph.num_ops) / graph.num_ops
    size = np.maximum(np.bincount(unit, minlength=u), 1)
    scalars = [
        np.log1p(np.bincount(unit, weights=output, minlength=u)) / 20.0,
        np.log1p(np.bincount(unit, weights=seconds, minlength=u) * 1e6) / 10.0,
        np.bincount(unit, weights=position, minlength=u) / size,
        np.log1p(units.persistent_bytes) / 20.0,
    ]
    parts = [np.log1p(types), np.log1p(feeds), np.log1p(reads), np.stack(scalars, axis=1)]
    return np.concatenate(parts, axis=1).astype(np.float32)


def unit_edges(
    problem: PlacementProblem, units: Units, chosen: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """int64[M], int64[M]: distinct edges between the units `chosen`, numbered as there."""
    number = np.full(units.num_units, -1, np.int64)
    number[chosen] = np.arange(len(chosen))
    src, dst = data_edges(problem)
    a, b = number[units.unit_of[src]], number[units.unit_of[dst]]
    key = np.unique((a * len(chosen) + b)[(a >= 0) & (b >= 0) & (a != b)])
    return key // len(chosen), key % len(chosen)


SPEC = PlacerSpec(
    NAME,
    "a grouper and a seq2seq placer, trained together by REINFORCE",
    "Mirhoseini, Goldie et al., A Hierarchical Model for Device Placement, ICLR 2018",
    HdpParameters,
    _run,
)
