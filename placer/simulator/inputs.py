"""The arrays that a simulator is built from."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["SimulatorInputs", "as_array", "default_threads"]

_DTYPES: dict[str, type] = {
    "executed": np.bool_,
    "op_seconds": np.float64,
    "launch_seconds": np.float64,
    "persistent_bytes": np.int64,
    "temporary_bytes": np.int64,
    "out_ptr": np.int64,
    "tensor_bytes": np.int64,
    "tensor_local_bytes": np.int64,
    "tensor_alias": np.int32,
    "in_ptr": np.int64,
    "in_tensor": np.int32,
    "control_src": np.int32,
    "control_dst": np.int32,
    "device_class": np.int32,
    "memory_limit": np.int64,
    "concurrency": np.int32,
    "executor_threads": np.int32,
    "contention": np.float64,
    "inline_op": np.bool_,
    "latency": np.float64,
    "seconds_per_byte": np.float64,
    "channels": np.int32,
    "send_cpu_seconds": np.float64,
    "send_cpu_seconds_per_byte": np.float64,
    "recv_cpu_seconds": np.float64,
    "recv_cpu_seconds_per_byte": np.float64,
}


def default_threads() -> int:
    """As many threads as the process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


def as_array(name: str, value: Any, dtype: type) -> npt.NDArray[Any]:
    """`value` as a C-contiguous array of `dtype`, copied only if need be.

    Raises:
      ValueError: if it is not an array of numbers, if floats would have to become integers, or if
        an integer does not fit the dtype.
    """
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} is not an array: {error}") from None
    if array.dtype == dtype:
        return np.ascontiguousarray(array) if array.ndim else array
    kind = np.dtype(dtype).kind
    accepted = {"b": "b", "i": "iu", "f": "iuf"}[kind]
    if array.dtype.kind not in accepted and array.size:
        raise ValueError(f"{name} has dtype {array.dtype}: must be {np.dtype(dtype)}")
    if kind == "i" and array.size:
        limits = np.iinfo(dtype)
        low, high = int(array.min()), int(array.max())
        if low < limits.min or high > limits.max:
            raise ValueError(f"{name} holds {low} to {high}: does not fit {np.dtype(dtype)}")
    return np.ascontiguousarray(array.astype(dtype)) if array.ndim else array.astype(dtype)


@dataclasses.dataclass(frozen=True, eq=False)
class SimulatorInputs:
    """One graph with its costs on one set of devices.

    N ops, T tensors, E data edges, C control edges, D devices, K device classes. The arrays are
    converted to the dtypes given here (never from floats to integers); shapes and values are
    checked by `Simulator`.

    Attributes:
      executed: bool[N]. Ops that are not executed take no time and their edges are ignored, but
        their persistent bytes count.
      op_seconds: float64[K, N], compute time on each device class, seconds.
      launch_seconds: float64[D], added to the time of every executed op on this device.
      persistent_bytes: int64[N], bytes that stay on the op's device for ever (variables).
      temporary_bytes: int64[K, N], bytes in use while the op runs.
      out_ptr: int64[N + 1]. Tensors out_ptr[i] to out_ptr[i + 1] - 1 are the outputs of op i.
      tensor_bytes: int64[T], bytes that a transfer moves and that a received copy occupies.
      tensor_local_bytes: int64[T], bytes that the output occupies on the device that produces it
        (0 where it shares a variable's buffer). Ignored for aliases.
      tensor_alias: int32[T], position among its op's data inputs of the one whose buffer the
        output shares, or -1.
      in_ptr: int64[N + 1]. Edges in_ptr[i] to in_ptr[i + 1] - 1 are the data inputs of op i.
      in_tensor: int32[E], the tensor each data edge carries.
      control_src, control_dst: int32[C], ops: `dst` waits until `src` has ended.
      device_class: int32[D], row of op_seconds and temporary_bytes.
      memory_limit: int64[D], bytes.
      concurrency: int32[D], tasks a device runs at once, at least 1.
      executor_threads: int32[D], how many threads of TensorFlow's executor run the ops of this
        device, on one core that they share with transfers; concurrency must be 1 then. 0: ops wait
        in one queue.
      contention: float64[D, D], how much slower (0.1: by a tenth) what runs on executor d (row) is
        while executor e (column) works too. The diagonal is ignored, as are other devices.
      inline_op: bool[N], ops that an executor's thread runs itself, one after another, rather than
        hands to the thread pool.
      latency, seconds_per_byte: float64[D, D], time on the wire from device s (row) to d (column):
        latency[s, d] + bytes * seconds_per_byte[s, d]. Diagonals of all link arrays are ignored.
      channels: int32[D, D, 2], ids of up to two channels that a transfer occupies, -1 for none. A
        link without channels carries any number of transfers at once.
      send_cpu_seconds, send_cpu_seconds_per_byte, recv_cpu_seconds, recv_cpu_seconds_per_byte:
        float64[D, D], time that a transfer takes of the sending and of the receiving device.
    """

    executed: npt.NDArray[np.bool_]
    op_seconds: npt.NDArray[np.float64]
    launch_seconds: npt.NDArray[np.float64]
    persistent_bytes: npt.NDArray[np.int64]
    temporary_bytes: npt.NDArray[np.int64]
    out_ptr: npt.NDArray[np.int64]
    tensor_bytes: npt.NDArray[np.int64]
    tensor_local_bytes: npt.NDArray[np.int64]
    tensor_alias: npt.NDArray[np.int32]
    in_ptr: npt.NDArray[np.int64]
    in_tensor: npt.NDArray[np.int32]
    control_src: npt.NDArray[np.int32]
    control_dst: npt.NDArray[np.int32]
    device_class: npt.NDArray[np.int32]
    memory_limit: npt.NDArray[np.int64]
    concurrency: npt.NDArray[np.int32]
    executor_threads: npt.NDArray[np.int32]
    contention: npt.NDArray[np.float64]
    inline_op: npt.NDArray[np.bool_]
    latency: npt.NDArray[np.float64]
    seconds_per_byte: npt.NDArray[np.float64]
    channels: npt.NDArray[np.int32]
    send_cpu_seconds: npt.NDArray[np.float64]
    send_cpu_seconds_per_byte: npt.NDArray[np.float64]
    recv_cpu_seconds: npt.NDArray[np.float64]
    recv_cpu_seconds_per_byte: npt.NDArray[np.float64]

    def __post_init__(self) -> None:
        for name, dtype in _DTYPES.items():
            object.__setattr__(self, name, as_array(name, getattr(self, name), dtype))

    @property
    def num_ops(self) -> int:
        """N."""
        return int(self.executed.shape[0])

    @property
    def num_devices(self) -> int:
        """D."""
        return int(self.device_class.shape[0])
