"""Measured costs: op profiles made from step stats, their files, and costs that use them."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator, Sequence

import numpy as np
from tensorflow.core.framework import step_stats_pb2
from tensorflow.core.protobuf import config_pb2

from placer.costs.functions import BRANCHES, CALLS, WHILES
from placer.costs.op_costs import CostOrigin, OpCosts
from placer.costs.trip_counts import FROM_CALLER, FROM_PROFILE, runs_in_frames
from placer.devices import Device, Topology
from placer.errors import PlacerError
from placer.files import read_proto, write_atomically
from placer.graph.colocation import frame_paths
from placer.graph.kernels import op_def
from placer.graph.op_graph import OpGraph
from placer.graph.source import GraphSource
from placer.protos import profile_pb2
from placer.step_times import begin_nanoseconds, duration_nanoseconds

_CALLING = CALLS | WHILES | BRANCHES
# Fields of a device's profile that have a value for each op.
_PER_OP = (
    "mean_seconds",
    "stddev_seconds",
    "runs_per_step",
    "output_bytes",
    "temporary_bytes",
)
_STREAMS = "/stream:"
_ALL_STREAMS = "/stream:all"
# Ops that Grappler costs at a nanosecond a run say nothing about how far its costs are off.
_TELLING_SECONDS = 1e-7


@dataclasses.dataclass
class _Totals:
    """What one op did in one step on one device model."""

    seconds: float = 0.0
    runs: int = 0
    output_bytes: int = 0
    temporary_bytes: int = 0


def profile_from_steps(
    graph: OpGraph, topology: Topology, steps: Sequence[config_pb2.RunMetadata]
) -> profile_pb2.GraphProfile:
    """Means per op and device model of several traced steps (RunOptions FULL_TRACE).

    An op's time in a step is that of all its executions, on whichever devices of the model they
    were. On a device with executor threads (`placer.devices.Device`), ops that ran at the same time
    took turns on one core, and each counts with its part of the time, less what the device's
    contention adds to it while its neighbours ran ops. Ops that TensorFlow makes
    out of a function call or functional loop ("call/op") count as that call. On a GPU the kernels'
    times on its streams are taken where the trace has them: the host merely launches them.

    Args:
      graph: the graph that ran.
      topology: the devices that it ran on.
      steps: step stats of at least one step, without the first one, which also compiles.

    Raises:
      PlacerError: if the step stats hold none of the graph's ops.
    """
    index = {name: i for i, name in enumerate(graph.names)}
    # Ops of no known type call functions by their names.
    calls = {
        name
        for name, op_type in zip(graph.names, graph.op_type, strict=True)
        if graph.op_types[op_type] in _CALLING or op_def(graph.op_types[op_type]) is None
    }
    devices = {d.name: d for d in topology.devices}
    contention = topology.contention
    totals: list[dict[tuple[str, int], _Totals]] = [
        _step(m, index, calls, devices, contention) for m in steps
    ]
    profile = profile_pb2.GraphProfile(graph_fingerprint=graph.fingerprint)
    ran_in = [{op for _, op in step} for step in totals]
    for model in dict.fromkeys(m.name for m in topology.models):
        ops = sorted({op for step in totals for name, op in step if name == model})
        if not ops:
            continue
        part = profile.devices.add(model=model, steps=len(steps))
        for op in ops:
            # Steps in which it did not run count with 0, unless it ran on another model in them.
            seen = [
                step.get((model, op), _Totals())
                for step, ran in zip(totals, ran_in, strict=True)
                if (model, op) in step or op not in ran
            ]
            seconds = np.array([s.seconds for s in seen])
            part.ops.append(graph.names[op])
            part.mean_seconds.append(float(seconds.mean()))
            part.stddev_seconds.append(float(seconds.std()))
            part.runs_per_step.append(float(np.mean([s.runs for s in seen])))
            part.output_bytes.append(max(s.output_bytes for s in seen))
            part.temporary_bytes.append(max(s.temporary_bytes for s in seen))
    if not profile.devices:
        raise PlacerError(
            "the step stats hold none of the graph's ops on the topology's devices "
            f"({topology.device_names[0]}...); trace the steps with FULL_TRACE on that topology"
        )
    return profile


@dataclasses.dataclass(frozen=True)
class _Ran:
    """The graph's ops that one device, or the streams of a GPU, ran in a step."""

    device: Device
    stream: bool
    stats: Sequence[step_stats_pb2.NodeExecStats]
    ops: Sequence[int]
    begins: np.ndarray  # int64[M], nanoseconds
    durations: np.ndarray  # int64[M], nanoseconds

    def spans(self, first: int) -> tuple[np.ndarray, np.ndarray]:
        """Begins, in seconds since `first` nanoseconds, and durations, in seconds."""
        return 1e-9 * (self.begins - first), 1e-9 * self.durations


def _step(
    metadata: config_pb2.RunMetadata,
    index: dict[str, int],
    calls: set[str],
    devices: dict[str, Device],
    contention: np.ndarray,
) -> dict[tuple[str, int], _Totals]:
    """What each op did in one step, by device model and op number."""
    totals: dict[tuple[str, int], _Totals] = {}
    kernels: dict[tuple[str, int], float] = {}
    numbers = {name: i for i, name in enumerate(devices)}
    step = list(_ran_in(metadata, index, calls, devices))
    executors = {numbers[ran.device.name]: ran for ran in step if ran.device.executor_threads}
    # Relative to the first, for nanoseconds since 1970 do not fit a float64.
    first = min((int(ran.begins.min()) for ran in executors.values()), default=0)
    for ran in step:
        model, stream = ran.device.model.name, ran.stream
        durations = 1e-9 * ran.durations
        if ran.device.executor_threads:
            slowing = contention[numbers[ran.device.name]]
            neighbours = [
                (slowing[other], *executors[other].spans(first))
                for other in executors
                if slowing[other] > 0
            ]
            durations = core_seconds(*ran.spans(first), neighbours)
        for stats, op, duration in zip(ran.stats, ran.ops, durations.tolist(), strict=True):
            if stream:
                kernels[model, op] = kernels.get((model, op), 0.0) + duration
                continue
            total = totals.setdefault((model, op), _Totals())
            total.seconds += duration
            total.runs += 1
            outputs = sum(
                o.tensor_description.allocation_description.allocated_bytes for o in stats.output
            )
            total.output_bytes = max(total.output_bytes, outputs)
            total.temporary_bytes = max(total.temporary_bytes, stats.memory_stats.temp_memory_size)
    for key, duration in kernels.items():
        totals.setdefault(key, _Totals(runs=1)).seconds = duration
    return totals


def _ran_in(
    metadata: config_pb2.RunMetadata,
    index: dict[str, int],
    calls: set[str],
    devices: dict[str, Device],
) -> Iterator[_Ran]:
    ran: dict[tuple[str, bool], list[tuple[step_stats_pb2.NodeExecStats, int]]] = {}
    for device in metadata.step_stats.dev_stats:
        name, stream, _ = device.device.partition(_STREAMS)
        if name not in devices or (stream and not device.device.endswith(_ALL_STREAMS)):
            continue
        for stats in device.node_stats:
            op = _op_of(stats.node_name, index, calls)
            if op is not None:
                ran.setdefault((name, bool(stream)), []).append((stats, op))
    for (name, is_stream), found in ran.items():
        yield _Ran(
            devices[name],
            is_stream,
            [stats for stats, _ in found],
            [op for _, op in found],
            np.array([begin_nanoseconds(stats) for stats, _ in found], np.int64),
            np.array([duration_nanoseconds(stats) for stats, _ in found], np.int64),
        )


def _op_of(node_name: str, index: dict[str, int], calls: set[str]) -> int | None:
    """The graph's op that a name in step stats stands for, or None.

    Names that extend a call's are of ops in its function. Names that extend another op's are of
    what TensorFlow added, such as the Identity behind a control edge between devices.
    """
    name = node_name.partition(":")[0]
    if name in index:
        return index[name]
    while name := name.rpartition("/")[0]:
        if name in calls:
            return index[name]
    return None


def core_seconds(
    starts: np.ndarray,
    durations: np.ndarray,
    neighbours: Sequence[tuple[float, np.ndarray, np.ndarray]] = (),
) -> np.ndarray:
    """What computations on one core would have taken it alone.

    Those under way take turns on the core, and cores that work at the same time slow it.

    Args:
      starts: float64[M], when each began, in seconds.
      durations: float64[M], how long each took on the clock.
      neighbours: for each other core, by what fraction it slows this one while it works, and the
        starts and durations of its computations.

    Returns:
      float64[M]: the integral of 1 / (computations under way * (1 + contention of the neighbours
      at work)) over each. Without neighbours their sum is the time in which any was under way.
    """
    ends = starts + durations
    edges = [starts, ends]
    for _, begins, lengths in neighbours:
        edges += [begins, begins + lengths]
    times = np.unique(np.concatenate(edges))
    factor = np.maximum(_under_way(times, starts, ends), 1).astype(np.float64)
    slowed = np.ones_like(factor)
    for contention, begins, lengths in neighbours:
        slowed += contention * (_under_way(times, begins, begins + lengths) > 0)
    parts = np.concatenate([[0.0], np.cumsum(np.diff(times) / (factor * slowed))])
    return parts[np.searchsorted(times, ends)] - parts[np.searchsorted(times, starts)]


def _under_way(times: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """int64[T - 1]: how many are under way between each two of T times that hold all ends."""
    changes = np.zeros(len(times), np.int64)
    np.add.at(changes, np.searchsorted(times, starts), 1)
    np.add.at(changes, np.searchsorted(times, ends), -1)
    return np.cumsum(changes)[:-1]


def corrected(
    profile: profile_pb2.GraphProfile, traced: profile_pb2.GraphProfile
) -> profile_pb2.GraphProfile:
    """A profile with its op times corrected by what a placement's steps showed.

    On one model, the times that both have are scaled in `traced` to the same sum, and averaged. The
    sum stays what it was: that all ops take longer where devices share a memory, or serve transfers
    while they compute, is for the simulator to say and not for the ops.

    Args:
      profile: of the graph, a device at a time.
      traced: `profile_from_steps` of a placement of the same graph.

    Returns:
      The corrected profile; what only one of the two has is taken as it is.
    """
    result = profile_pb2.GraphProfile(graph_fingerprint=profile.graph_fingerprint)
    by_model = {part.model: part for part in traced.devices}
    for part in profile.devices:
        added = result.devices.add()
        added.CopyFrom(part)
        update = by_model.pop(part.model, None)
        if update is None:
            continue
        row = {op: i for i, op in enumerate(part.ops)}
        both = [(row[op], i) for i, op in enumerate(update.ops) if op in row]
        known = sum(part.mean_seconds[i] for i, _ in both)
        found = sum(update.mean_seconds[j] for _, j in both)
        scale = known / found if found > 0 else 1.0
        for i, j in both:
            added.mean_seconds[i] = (part.mean_seconds[i] + scale * update.mean_seconds[j]) / 2
        for j, op in enumerate(update.ops):
            if op in row:
                continue
            added.ops.append(op)
            for field in _PER_OP:
                getattr(added, field).append(getattr(update, field)[j])
    for part in by_model.values():
        result.devices.add().CopyFrom(part)
    return result


def save_profile(profile: profile_pb2.GraphProfile, path: str | os.PathLike[str]) -> None:
    """Writes a binary placer.GraphProfile, atomically; PlacerError if that fails."""
    write_atomically(path, profile.SerializeToString(deterministic=True))


def load_profile(path: str | os.PathLike[str]) -> profile_pb2.GraphProfile:
    """Reads what `save_profile` wrote.

    Raises:
      PlacerError: if the file cannot be read, is not a profile, or holds arrays of different
        lengths or numbers that cannot be times.
    """
    profile = read_proto(
        path, profile_pb2.GraphProfile, "op profile", lambda p: bool(p.graph_fingerprint)
    )
    if not profile.graph_fingerprint or not profile.devices:
        raise PlacerError(f"{path} is not an op profile: it has no fingerprint or no devices")
    for device in profile.devices:
        count = len(device.ops)
        for field in ("mean_seconds", "stddev_seconds", "runs_per_step"):
            values = getattr(device, field)
            if len(values) != count:
                raise PlacerError(
                    f"{path}: {field} of {device.model!r} has {len(values)} values for {count} ops"
                )
            if not all(math.isfinite(v) and v >= 0 for v in values):
                raise PlacerError(f"{path}: {field} of {device.model!r} has a bad value")
        for field in ("output_bytes", "temporary_bytes"):
            if len(getattr(device, field)) not in (0, count):
                raise PlacerError(
                    f"{path}: {field} of {device.model!r} has not a value for each of {count} ops"
                )
    return profile


def profiled_costs(
    profile: profile_pb2.GraphProfile,
    source: GraphSource,
    graph: OpGraph,
    topology: Topology,
    fallback: OpCosts,
) -> OpCosts:
    """Costs from a profile where it has them, else analytical ones scaled to it.

    An op that a model's profile lacks costs its analytical seconds times the ratio of profiled to
    analytical seconds, summed over the profiled ops of its type, or where there are none the
    median ratio over all profiled ops. Models that the profile lacks keep their analytical costs.
    Trip counts of v1 loops come from the profile, unless the caller gave them.

    Args:
      profile: of this very graph.
      source: the graph that `graph` was built from.
      graph: N ops.
      topology: K device models.
      fallback: analytical costs of the same ops on the same models.

    Raises:
      PlacerError: if the profile is of another graph, or of none of the topology's models.
    """
    if profile.graph_fingerprint != graph.fingerprint:
        raise PlacerError(
            f"the op profile is of another graph (fingerprint {profile.graph_fingerprint!r}) than "
            f"{source.origin} ({graph.fingerprint!r}); profile this graph"
        )
    parts = {p.model: p for p in profile.devices}
    names = [m.name for m in topology.models]
    if not set(parts) & set(names):
        raise PlacerError(
            f"the op profile is of {', '.join(sorted(parts))}, but the topology has "
            f"{', '.join(names)}; profile one of these"
        )
    index = {name: i for i, name in enumerate(graph.names)}
    analytical, launches, loops = _with_profiled_trips(profile, source, graph, topology, fallback)
    seconds = analytical + launches
    temporary = fallback.temporary_bytes.copy()
    origin = fallback.origin.copy()
    for k, model in enumerate(topology.models):
        part = parts.get(model.name)
        if part is None:
            continue
        kept = [(i, index[op]) for i, op in enumerate(part.ops) if op in index]
        rows = np.array([i for i, op in kept if graph.executed[op]], np.int64)
        ops = np.array([op for _, op in kept if graph.executed[op]], np.int64)
        if not ops.size:
            continue
        measured = np.array(part.mean_seconds)[rows]
        runs = np.array(part.runs_per_step)[rows]
        seconds[k] = analytical[k] * _scale(graph, ops, measured, analytical[k]) + launches[k]
        # As in analytical costs: launches beyond the first are part of an op's seconds.
        seconds[k, ops] = measured + np.maximum(runs - 1, 0) * model.launch_seconds
        origin[k, ops] = CostOrigin.PROFILED
        if part.temporary_bytes:
            temporary[k, ops] = np.array(part.temporary_bytes, np.int64)[rows]
    return OpCosts(fallback.models, seconds, temporary, origin, loops)


def _scale(
    graph: OpGraph, ops: np.ndarray, measured: np.ndarray, analytical: np.ndarray
) -> np.ndarray:
    """float64[N]: profiled over analytical seconds by op type, else the median of all ops."""
    telling = analytical[ops] > _TELLING_SECONDS
    ratios = measured[telling] / analytical[ops][telling]
    scale = np.full(len(graph.op_types), float(np.median(ratios)) if ratios.size else 1.0)
    kinds = graph.op_type[ops]
    count = len(graph.op_types)
    profiled = np.bincount(kinds[telling], measured[telling], minlength=count)
    expected = np.bincount(kinds[telling], analytical[ops][telling], minlength=count)
    found = expected > 0
    scale[found] = profiled[found] / expected[found]
    return scale[graph.op_type]


def _with_profiled_trips(
    profile: profile_pb2.GraphProfile,
    source: GraphSource,
    graph: OpGraph,
    topology: Topology,
    fallback: OpCosts,
) -> tuple[np.ndarray, np.ndarray, dict[str, tuple[float, str]]]:
    """Analytical costs with v1 loops running as often as profiled.

    Returns:
      seconds[K, N] without launches, seconds[K, N] of the launches beyond each op's first, and
      trip counts with their source.
    """
    loops = dict(fallback.trip_count_source)
    paths = frame_paths(
        source.graph_def,
        graph.topological_order(),
        np.concatenate([graph.edge_src, graph.control_src]),
        np.concatenate([graph.edge_dst, graph.control_dst]),
    )
    if paths is None:
        return fallback.seconds, np.zeros_like(fallback.seconds), loops
    runs: dict[str, float] = {}
    for part in profile.devices:
        for op, count in zip(part.ops, part.runs_per_step, strict=True):
            runs[op] = max(runs.get(op, 0.0), count)
    entries: dict[str, float] = {}
    tests: dict[str, float] = {}
    for node, path in zip(source.graph_def.node, paths, strict=True):
        if path and node.op == "Enter":
            entries[path[-1]] = max(entries.get(path[-1], 0.0), runs.get(node.name, 0.0))
        elif path and node.op == "LoopCond":
            tests[path[-1]] = max(tests.get(path[-1], 0.0), runs.get(node.name, 0.0))
    before = {frame: count for frame, (count, _) in loops.items()}
    for frame, tested in tests.items():
        if tested and entries.get(frame) and loops.get(frame, (0.0, ""))[1] != FROM_CALLER:
            # The condition is tested once more than the body runs.
            loops[frame] = (max(tested / entries[frame] - 1, 0.0), FROM_PROFILE)
    launch = np.array([m.launch_seconds for m in topology.models])[:, None]
    nodes = source.graph_def.node
    runs_before = runs_in_frames(nodes, paths, before)
    runs_after = runs_in_frames(nodes, paths, {f: count for f, (count, _) in loops.items()})
    idle = ~graph.executed
    again = np.maximum(runs_before - 1, 0) * ~idle
    compute = np.maximum(fallback.seconds - again * launch, 0.0)
    compute = compute * runs_after / np.where(runs_before > 0, runs_before, 1.0)
    return compute, np.maximum(runs_after - 1, 0) * ~idle * launch, loops
