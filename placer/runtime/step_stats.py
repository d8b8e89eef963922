"""Step stats as tables: when and where each op ran, what was transferred, who waited.

Times are seconds from the start of the step. Frames come from RunMetadata of a step that ran with
FULL_TRACE (tensorflow/core/framework/step_stats.proto); workers on one machine share its clock.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from placer.files import write_atomically
from placer.step_times import begin_nanoseconds, duration_nanoseconds

if TYPE_CHECKING:
    import pandas as pd
    from tensorflow.core.framework import graph_pb2, step_stats_pb2
    from tensorflow.core.protobuf import config_pb2

# Written by tensorflow/core/distributed_runtime/worker_cache_logger.cc.
_TRANSFER = re.compile(
    r"\[\d+B\] (?:\[\S+\] )?(?:edge_\d+_)?(?P<tensor>\S+) from (?P<source>\S+) to (?P<target>\S+)"
)
# The CPU's oneDNN kernels go by names of their own: _MklMatMul is MatMul.
_OP_TYPE = re.compile(r"= (?:_Mkl)?(\w+)\(")


class MisplacedOp(NamedTuple):
    """An op that ran on another device than its placement says."""

    op: str
    placed: str
    ran: str


def _op_stats(
    metadata: config_pb2.RunMetadata,
) -> Iterator[tuple[str, step_stats_pb2.NodeExecStats]]:
    for device in metadata.step_stats.dev_stats:
        # A GPU's streams repeat what its executor reports.
        if "/stream:" in device.device or "/memcpy" in device.device:
            continue
        for stats in device.node_stats:
            if stats.node_name not in ("RecvTensor", "_SOURCE", "_SINK"):
                yield device.device, stats


def _transfers(
    metadata: config_pb2.RunMetadata,
) -> Iterator[tuple[re.Match[str], step_stats_pb2.NodeExecStats]]:
    for device in metadata.step_stats.dev_stats:
        for stats in device.node_stats:
            if stats.node_name == "RecvTensor":
                match = _TRANSFER.match(stats.timeline_label)
                if match is not None:
                    yield match, stats


def _origin(metadata: config_pb2.RunMetadata) -> int:
    starts = [
        stats.all_start_nanos or 1000 * stats.all_start_micros
        for device in metadata.step_stats.dev_stats
        for stats in device.node_stats
    ]
    return min(starts, default=0)


def op_frame(metadata: config_pb2.RunMetadata) -> pd.DataFrame:
    """One row an op execution, in order of start.

    Returns:
      Columns op, op_type, device, start and duration (seconds), bytes (of the outputs),
      temporary_bytes, persistent_bytes.
    """
    import pandas as pd

    origin = _origin(metadata)
    rows = []
    for device, stats in _op_stats(metadata):
        kind = _OP_TYPE.search(stats.timeline_label)
        outputs = {
            o.slot: o.tensor_description.allocation_description.requested_bytes
            for o in stats.output
        }
        rows.append(
            (
                stats.node_name,
                kind[1] if kind else "",
                device,
                1e-9 * (begin_nanoseconds(stats) - origin),
                1e-9 * duration_nanoseconds(stats),
                sum(outputs.values()),
                stats.memory_stats.temp_memory_size,
                stats.memory_stats.persistent_memory_size,
            )
        )
    columns = [
        "op",
        "op_type",
        "device",
        "start",
        "duration",
        "bytes",
        "temporary_bytes",
        "persistent_bytes",
    ]
    return pd.DataFrame(rows, columns=columns).sort_values("start", ignore_index=True)


def transfer_frame(metadata: config_pb2.RunMetadata) -> pd.DataFrame:
    """One row a tensor that crossed between workers, in order of start.

    Returns:
      Columns tensor, source, target, start and duration (seconds, from when the sender has the
      tensor until the receiver has it), bytes. Devices of one process pass tensors without a
      record of it.
    """
    import pandas as pd

    origin = _origin(metadata)
    rows = []
    for match, stats in _transfers(metadata):
        size = sum(
            o.tensor_description.allocation_description.requested_bytes for o in stats.output
        )
        rows.append(
            (
                match["tensor"],
                match["source"],
                match["target"],
                1e-9 * (begin_nanoseconds(stats) - origin),
                1e-9 * duration_nanoseconds(stats),
                size,
            )
        )
    columns = ["tensor", "source", "target", "start", "duration", "bytes"]
    return pd.DataFrame(rows, columns=columns).sort_values("start", ignore_index=True)


def device_frame(metadata: config_pb2.RunMetadata) -> pd.DataFrame:
    """One row a device, indexed by its name.

    Returns:
      Columns ops, compute (seconds in which at least one op ran), idle (the rest of the step),
      send and receive (seconds in which a transfer was under way), sent_bytes, received_bytes.
    """
    import pandas as pd

    ops, transfers = op_frame(metadata), transfer_frame(metadata)
    ends = [(f["start"] + f["duration"]).max() for f in (ops, transfers) if len(f)]
    span = max(ends, default=0.0)
    names = sorted({*ops["device"], *transfers["source"], *transfers["target"]})
    rows = []
    for name in names:
        here = ops[ops["device"] == name]
        sent = transfers[transfers["source"] == name]
        received = transfers[transfers["target"] == name]
        compute = _covered(here["start"].to_numpy(), here["duration"].to_numpy())
        rows.append(
            (
                len(here),
                compute,
                span - compute,
                _covered(sent["start"].to_numpy(), sent["duration"].to_numpy()),
                _covered(received["start"].to_numpy(), received["duration"].to_numpy()),
                int(sent["bytes"].sum()),
                int(received["bytes"].sum()),
            )
        )
    columns = ["ops", "compute", "idle", "send", "receive", "sent_bytes", "received_bytes"]
    return pd.DataFrame(rows, columns=columns, index=pd.Index(names, name="device"))


def _covered(starts: np.ndarray, durations: np.ndarray) -> float:
    """Length of the union of intervals."""
    order = np.argsort(starts)
    total, end = 0.0, -np.inf
    for start, stop in zip(starts[order], (starts + durations)[order], strict=True):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return float(total)


def misplaced_ops(
    graph_def: graph_pb2.GraphDef,
    placement: np.ndarray,
    devices: Sequence[str],
    metadata: config_pb2.RunMetadata,
) -> tuple[MisplacedOp, ...]:
    """The ops that ran elsewhere than the placement says.

    TensorFlow overrules the device of an op that takes a resource which lives elsewhere, and says
    nothing; only step stats tell.

    Args:
      graph_def: the graph, N nodes.
      placement: int32[N] indices into `devices`.
      devices: what TensorFlow calls each device (`Runner.session_devices`).
      metadata: step stats of a step under that placement. Ops that did not run, and ops inside
        functions, are not judged.
    """
    placed = {n.name: devices[d] for n, d in zip(graph_def.node, placement, strict=True)}
    found = {
        MisplacedOp(stats.node_name, placed[stats.node_name], device)
        for device, stats in _op_stats(metadata)
        if stats.node_name in placed and placed[stats.node_name] != device
    }
    return tuple(sorted(found))


def chrome_trace(metadata: config_pb2.RunMetadata) -> dict[str, Any]:
    """The step as a trace that chrome://tracing and ui.perfetto.dev open.

    Each device is a process with a lane for ops and lanes for what it receives; overlapping events
    spread over more lanes. An arrow joins a transfer's ends.
    """
    ops, transfers = op_frame(metadata), transfer_frame(metadata)
    names = sorted({*ops["device"], *transfers["source"], *transfers["target"]})
    number = {name: i + 1 for i, name in enumerate(names)}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
        for name, pid in number.items()
    ]
    lanes = Lanes()
    for row in ops.itertuples():
        events.append(
            {
                "ph": "X",
                "cat": "op",
                "name": row.op_type or row.op,
                "pid": number[row.device],
                "tid": lanes.lane(row.device, 0, row.start, row.duration),
                "ts": 1e6 * row.start,
                "dur": 1e6 * row.duration,
                "args": {"op": row.op, "bytes": int(row.bytes)},
            }
        )
    for i, row in enumerate(transfers.itertuples()):
        lane = lanes.lane(row.target, 1000, row.start, row.duration)
        common = {"pid": number[row.target], "tid": lane, "ts": 1e6 * row.start}
        events.append(
            {
                "ph": "X",
                "cat": "transfer",
                "name": f"receive {row.tensor}",
                "dur": 1e6 * row.duration,
                "args": {"bytes": int(row.bytes), "from": row.source},
                **common,
            }
        )
        sender = {"pid": number[row.source], "tid": 0, "ts": 1e6 * row.start}
        arrow = {"cat": "transfer", "name": row.tensor, "id": i}
        events.append({"ph": "s", **arrow, **sender})
        events.append({"ph": "f", "bp": "e", **arrow, **common})
    return {"traceEvents": events, "displayTimeUnit": "ms"}


class Lanes:
    """Puts overlapping intervals on different lanes."""

    def __init__(self) -> None:
        self._ends: dict[tuple[str, int], list[float]] = {}

    def lane(self, device: str, first: int, start: float, duration: float) -> int:
        """The first free lane from `first` on."""
        ends = self._ends.setdefault((device, first), [])
        for i, end in enumerate(ends):
            if end <= start:
                ends[i] = start + duration
                return first + i
        ends.append(start + duration)
        return first + len(ends) - 1


def save_chrome_trace(metadata: config_pb2.RunMetadata, path: str | os.PathLike[str]) -> None:
    """Writes `chrome_trace` to a JSON file; PlacerError if that fails."""
    write_atomically(path, json.dumps(chrome_trace(metadata)).encode())


def op_seconds(
    steps: Sequence[config_pb2.RunMetadata], devices: Collection[str]
) -> Mapping[str, np.ndarray]:
    """Time of each op in each of S traced steps.

    Returns:
      Op name -> float64[S] seconds in its computation on `devices`, summed over executions.
    """
    found: dict[str, np.ndarray] = {}
    for i, metadata in enumerate(steps):
        for device, stats in _op_stats(metadata):
            if device in devices:
                times = found.setdefault(stats.node_name, np.zeros(len(steps)))
                times[i] += 1e-9 * duration_nanoseconds(stats)
    return found
