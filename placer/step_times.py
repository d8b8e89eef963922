"""When an op of step stats computed (tensorflow/core/framework/step_stats.proto).

Steps traced by older TensorFlows have microseconds only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorflow.core.framework import step_stats_pb2


def begin_nanoseconds(stats: step_stats_pb2.NodeExecStats) -> int:
    """Start of the op's computation, in nanoseconds of the machine's clock."""
    if stats.all_start_nanos:
        return stats.all_start_nanos + stats.op_start_rel_nanos
    return 1000 * (stats.all_start_micros + stats.op_start_rel_micros)


def duration_nanoseconds(stats: step_stats_pb2.NodeExecStats) -> int:
    """Time in the op's computation, in nanoseconds."""
    if stats.op_end_rel_nanos:
        return max(0, stats.op_end_rel_nanos - stats.op_start_rel_nanos)
    return 1000 * max(0, stats.op_end_rel_micros - stats.op_start_rel_micros)
