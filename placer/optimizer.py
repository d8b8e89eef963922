"""placer.optimize: the stages, from a graph to its best placement."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from placer import interrupts
from placer.devices import Topology
from placer.errors import InfeasibleError, PlacerError
from placer.graph import clear_function_devices, write_devices
from placer.grouping import atoms, group_ops
from placer.methods import get_method
from placer.pipeline import Prepared, prepare
from placer.placement import Figures, Placement
from placer.problem import PlacementProblem
from placer.result import Result, Row
from placer.rewards import REWARDS, Judge, open_reward
from placer.runtime import Measurement
from placer.schedule import add_control_inputs, find_schedule
from placer.search import SEEDS, Budget, Search
from placer.simulator import Simulator
from placer.simulator.build import build_simulator

# Share of the budget that looking for control edges may take, and edge sets tried for so many
# placements evaluated where evaluations are the limit.
_SCHEDULE_SHARE = 0.15
_EVALUATIONS_A_TRIAL = 20


def optimize(
    graph_def: Any,
    fetches: Sequence[str] | None = None,
    devices: str | Topology = "local",
    budget: float = 60.0,
    seed: int = 0,
    *,
    method: str = "auto",
    reward: str = "simulate",
    method_options: Mapping[str, Any] | Sequence[str] = (),
    max_groups: int = 256,
    evaluations: int | None = None,
    clear_devices: bool = False,
    profile: str | None = None,
    trip_counts: Mapping[str, float] | None = None,
    checkpoint_dir: str | None = None,
    schedule: bool = False,
    on_progress: Callable[[Search], None] | None = None,
) -> Result:
    """Finds a placement of a graph and writes it into the graph.

    Args:
      graph_def: a GraphDef, whose node.device fields are rewritten in place, a MetaGraphDef, a
        tf.Graph, a tf.function or ConcreteFunction, or a file of a GraphDef or MetaGraphDef.
      fetches: ops or tensors that one step computes; by default the train_op collection, the
        signatures' outputs, or the ops that nothing reads.
      devices: a spec such as "k80:4", "workers:2" or "local", a topology file, or a Topology.
      budget: seconds that the search may take. Whatever ends it (the budget, Ctrl-C, nothing left
        to try), the best placement found is returned. Ctrl-C before the graph is read and costed
        is a KeyboardInterrupt, as there is nothing to return.
      seed: of all random choices. With `evaluations` and no other limit reached, one seed gives
        one placement on one machine.
      method: "auto", "policy", or the name of a placer (`placer methods`).
      reward: "simulate" (the simulator's step time), "measure" (every placement is run on the
        devices) or "both" (search in the simulator, run what is promising, keep the best run).
      method_options: parameters of the method, {name: value} or "name=value".
      max_groups: number of op groups that policies read.
      evaluations: placements to evaluate at most.
      clear_devices: forget the devices that the graph came with, rather than keep them.
      profile: file of measured op costs (`placer profile`).
      trip_counts: while loop name -> iterations, where they cannot be read off the graph.
      checkpoint_dir: where the policy keeps checkpoints and resumes from.
      schedule: also add control edges between ops of one device where they make the simulated step
        faster (placer.schedule); part of the budget goes to finding them.
      on_progress: called after every batch of evaluations.

    Returns:
      The Result; never worse than the graph as it came, on the first GPU or on the first CPU alone,
      where those fit.

    Raises:
      PlacerError: one line, for bad input, and for what ends the search before it has found
        anything better than those; after that it is in Result.failure.
      InfeasibleError: if no placement fits in memory or satisfies the constraints.
    """
    if reward not in REWARDS:
        raise PlacerError(f"unknown reward {reward!r}; give one of {', '.join(REWARDS)}")
    if not budget >= 0:
        raise PlacerError(f"budget is {budget}; give seconds, 0 or more")
    if not 0 <= seed < SEEDS:
        raise PlacerError(f"seed is {seed}; give a whole number from 0 to {SEEDS - 1}")
    if evaluations is not None and not evaluations >= 1:
        raise PlacerError(f"evaluations is {evaluations}; give a number of 1 or more")
    if schedule and reward != "simulate":
        raise PlacerError(f"schedule works with reward simulate only, not with {reward}")
    if checkpoint_dir is not None and reward == "both":
        raise PlacerError("checkpoints are of one search; reward both makes several")
    run = get_method(method, method_options, checkpoint_dir)
    prepared = prepare(
        graph_def,
        fetches,
        devices,
        clear_devices=clear_devices,
        profile=profile,
        trip_counts=trip_counts,
    )
    problem = prepared.problem
    interrupted, failed = False, None
    try:
        grouping = group_ops(problem, max_groups)
        simulator = build_simulator(problem)
    except KeyboardInterrupt:
        # There is no search then. What needs none, the placements that a result is compared with,
        # can be simulated all the same.
        grouping, reward, interrupted = atoms(problem), "simulate", True
        simulator = build_simulator(problem)
    limit = Budget(
        budget * (1 - _SCHEDULE_SHARE * schedule),
        float("inf") if evaluations is None else evaluations,
    )
    with contextlib.ExitStack() as outer, contextlib.ExitStack() as stack:
        try:
            judge = stack.enter_context(open_reward(reward, prepared, simulator))
        except KeyboardInterrupt:
            # No workers, no runs: the simulator judges then.
            judge, reward, interrupted = Judge(simulator, simulator), "simulate", True
        search = Search(problem, grouping, judge.evaluator, limit, seed, on_progress)
        judge.begin(search)
        starts: dict[str, np.ndarray] = {}
        reference_seconds = 0.0
        try:
            starts = reference_placements(prepared)
            for name, start in starts.items():
                search.evaluate(start, name)
            reference_seconds = search.best_seconds
            if not interrupted:
                judge.run(search, run)
        except KeyboardInterrupt:
            interrupted = True
        except PlacerError as error:
            failed = error
        except (MemoryError, tf.errors.OpError) as error:
            what = " ".join(str(error).split()) or "out of memory"
            failed = PlacerError(f"{method} failed: {type(error).__name__}: {what}")
        # Until the workers are closed, which a second Ctrl-C must not turn into a loss.
        outer.enter_context(interrupts.ignored())
        judge.keep_best(search)
        if failed is not None and search.best_seconds >= reference_seconds:
            raise failed
        best = search.best
        rows = _rows(judge, prepared, starts, best)
    if best is None and interrupted:
        raise KeyboardInterrupt
    if best is None or rows[-1].infeasible:
        _report_infeasible(problem, best, rows)
    assert best is not None
    source = prepared.source
    edges = np.zeros((0, 2), np.int32)
    if schedule and not interrupted and failed is None:
        seconds, trials = budget * _SCHEDULE_SHARE, float("inf")
        if evaluations is not None:
            # The number of trials counts, so that one seed gives one result.
            seconds = budget - search.elapsed
            trials = max(evaluations // _EVALUATIONS_A_TRIAL, 10)
        found = find_schedule(problem, simulator, best, seconds, trials)
        interrupted = found.interrupted
        if len(found.before):
            edges = np.stack([found.before, found.after], axis=1)
            rows.append(make_row("placer, scheduled", best, found.simulator, problem))
            add_control_inputs(source.graph_def, found)
            # Bytes that differ from the file's in devices only are no longer what is wanted.
            source = dataclasses.replace(source, data=None)
    placement = _placement(problem, best, rows[-1], method, seed, budget, reward)
    placement = dataclasses.replace(placement, control_edges=edges)
    if clear_devices and clear_function_devices(source.graph_def):
        source = dataclasses.replace(source, data=None)
    write_devices(source.graph_def, [placement.devices[d] for d in best])
    return Result(
        placement=placement,
        source=source,
        problem=judge.problem or problem,
        rows=tuple(rows),
        history=search.history(),
        evaluations=search.evaluations,
        seconds=search.elapsed,
        interrupted=interrupted,
        failure="" if failed is None else str(failed),
    )


def reference_placements(prepared: Prepared) -> dict[str, np.ndarray]:
    """What a result is compared with: the graph as it came, and each kind of device alone.

    Returns:
      Name -> int32[N]: "as it came", "one GPU" and "one CPU", or "one device" where all devices
      are CPUs.
    """
    problem = prepared.problem
    devices = problem.topology.devices
    references = {}
    if prepared.came is not None:
        references["as it came"] = prepared.came
    gpus = [i for i, d in enumerate(devices) if d.model.type != "CPU"]
    cpus = [i for i, d in enumerate(devices) if d.model.type == "CPU"]
    if gpus:
        references["one GPU"] = problem.single_device(gpus[0])
    if cpus:
        references["one CPU" if gpus else "one device"] = problem.single_device(cpus[0])
    return references


def _rows(
    judge: Judge,
    prepared: Prepared,
    starts: Mapping[str, np.ndarray],
    best: np.ndarray | None,
) -> list[Row]:
    named = dict(starts)
    if best is not None:
        named["placer"] = best
    return [
        make_row(name, placement, judge.simulator, prepared.problem, judge.measurement(placement))
        for name, placement in named.items()
    ]


def make_row(
    name: str,
    placement: np.ndarray,
    simulator: Simulator,
    problem: PlacementProblem,
    measurement: Measurement | None = None,
) -> Row:
    """Simulates one placement, int32[N], to a Row; `measurement` may be None."""
    evaluation = simulator.evaluate(placement[None])
    peak = evaluation.peak_bytes[0]
    infeasible = ""
    over = np.flatnonzero(peak > problem.topology.memory_bytes)
    if over.size:
        device = problem.topology.devices[int(over[0])]
        infeasible = (
            f"out of memory: {device.name} needs {peak[over[0]] / 2**30:.2f} GiB, "
            f"has {device.memory_bytes / 2**30:.2f}"
        )
    if measurement is not None:
        # Where it ran, what the simulator thinks of its memory does not matter.
        infeasible = measurement.failure or ""
    return Row(
        name=name,
        step_seconds=float(evaluation.step_seconds[0]),
        measured_seconds=(
            measurement.seconds if measurement is not None and measurement.ok else None
        ),
        peak_bytes=tuple(peak.tolist()),
        busy_seconds=tuple(evaluation.busy_seconds[0].tolist()),
        transfer_bytes=tuple(evaluation.transfer_bytes[0].tolist()),
        infeasible=infeasible,
    )


def _report_infeasible(
    problem: PlacementProblem, best: np.ndarray | None, rows: Sequence[Row]
) -> None:
    if best is None:
        raise InfeasibleError("the search ended before it evaluated a placement; raise --budget")
    total = int(problem.graph.persistent_bytes.sum())
    capacity = int(problem.topology.memory_bytes.sum())
    if total > capacity:
        raise InfeasibleError(
            f"no placement fits: variables alone take {total / 2**30:.2f} GiB and the devices of "
            f"{problem.topology.name} have {capacity / 2**30:.2f} GiB together"
        )
    lacking = [
        f"{device.name} needs {peak / 2**30:.3f} GiB, has {device.memory_bytes / 2**30:.3f}, "
        f"lacks {(peak - device.memory_bytes) / 2**30:.3f}"
        for device, peak in zip(problem.topology.devices, rows[-1].peak_bytes, strict=True)
        if peak > device.memory_bytes
    ]
    why = "; ".join(lacking) or rows[-1].infeasible
    raise InfeasibleError(f"no placement found that fits; in the nearest {why}")


def _placement(
    problem: PlacementProblem,
    best: np.ndarray,
    row: Row,
    method: str,
    seed: int,
    budget: float,
    reward: str,
) -> Placement:
    graph, topology = problem.graph, problem.topology
    names = topology.device_names
    return Placement(
        ops=graph.names,
        op_types=tuple(graph.op_types[t] for t in graph.op_type),
        devices=names,
        device_of_op=np.array(best, np.int32),
        graph_fingerprint=graph.fingerprint,
        figures=Figures(
            predicted_step_seconds=row.step_seconds,
            measured_step_seconds=row.measured_seconds,
            peak_bytes=dict(zip(names, row.peak_bytes, strict=True)),
        ),
        provenance={
            "method": method,
            "seed": str(seed),
            "budget_seconds": f"{budget:g}",
            "reward": reward,
            "topology": topology.name,
            "placer": importlib.metadata.version("placer"),
        },
    )
