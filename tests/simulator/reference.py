"""A slow simulator in plain Python, written from the rules in `placer.simulator`.

It shares nothing with the native one: one heap of events, dictionaries, no renumbering.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from typing import Any

import numpy as np


class Reference:
    """Runs one placement; the results are attributes."""

    def __init__(self, inputs: Any, placement: Any) -> None:
        self.inputs = inputs
        self.device = [int(d) for d in placement]
        num_devices = len(inputs.device_class)
        self.producer: dict[int, int] = {}
        self.data_edges: dict[int, list[int]] = defaultdict(list)
        self.control_edges: dict[int, list[int]] = defaultdict(list)
        self.waiting: dict[int, int] = {}
        self._read_graph()

        self.events: list[tuple[float, int, str, Any]] = []
        self.sequence = 0
        self.queue: list[deque[Any]] = [deque() for _ in range(num_devices)]
        self.running = [0] * num_devices
        self.channel_free: dict[int, float] = defaultdict(float)
        self.bytes = [0] * num_devices
        self.holders: dict[Any, set[Any]] = {}
        self.buffer_bytes: dict[Any, int] = {}
        self.buffer_of: dict[tuple[int, int], Any] = {}  # (tensor, device) -> buffer
        self.peak = [0] * num_devices
        self.peak_seconds = [0.0] * num_devices
        self.busy = [0.0] * num_devices
        self.transfer_seconds = [0.0] * num_devices
        self.transfer_bytes = [0] * num_devices
        self.op_start: dict[int, float] = {}
        self.op_end: dict[int, float] = {}
        self.now = 0.0
        self._run()
        self.step_seconds = self.now

    def _read_graph(self) -> None:
        x = self.inputs
        count = len(x.executed)
        for i in range(count):
            for tensor in range(x.out_ptr[i], x.out_ptr[i + 1]):
                self.producer[tensor] = i
        for i in range(count):
            if x.executed[i]:
                self.waiting[i] = 0
        for i in range(count):
            for e in range(x.in_ptr[i], x.in_ptr[i + 1]):
                tensor = int(x.in_tensor[e])
                if x.executed[i] and x.executed[self.producer[tensor]]:
                    self.data_edges[tensor].append(i)
                    self.waiting[i] += 1
        for src, dst in zip(x.control_src.tolist(), x.control_dst.tolist(), strict=True):
            if x.executed[src] and x.executed[dst]:
                self.control_edges[src].append(dst)
                self.waiting[dst] += 1

    def _run(self) -> None:
        x = self.inputs
        for i, d in enumerate(self.device):
            self.bytes[d] += int(x.persistent_bytes[i])
        self.peak = list(self.bytes)
        for i in [i for i, count in self.waiting.items() if count == 0]:
            self.queue[self.device[i]].append(("op", i))
        for d in range(len(self.queue)):
            self._start_tasks(d)
        while self.events:
            self.now, _, kind, what = heapq.heappop(self.events)
            self._start_tasks(getattr(self, "_end_" + kind)(what))

    def _schedule(self, time: float, kind: str, what: Any) -> None:
        heapq.heappush(self.events, (time, self.sequence, kind, what))
        self.sequence += 1

    def _start_tasks(self, d: int) -> None:
        while self.queue[d] and self.running[d] < self.inputs.concurrency[d]:
            self.running[d] += 1
            kind, what = self.queue[d].popleft()
            seconds = self._begin_op(what, d) if kind == "op" else what[-1]
            self.busy[d] += seconds
            self._schedule(self.now + seconds, kind, what)

    def _begin_op(self, i: int, d: int) -> float:
        x = self.inputs
        self.op_start[i] = self.now
        size = int(x.temporary_bytes[x.device_class[d], i])
        for tensor in range(x.out_ptr[i], x.out_ptr[i + 1]):
            alias = int(x.tensor_alias[tensor])
            if alias >= 0:
                source = int(x.in_tensor[x.in_ptr[i] + alias])
                if x.executed[self.producer[source]]:
                    self.buffer_of[tensor, d] = self.buffer_of[source, d]
                    continue
            buffer = ("own", tensor)
            self.buffer_of[tensor, d] = buffer
            self.buffer_bytes[buffer] = int(x.tensor_local_bytes[tensor])
            self.holders[buffer] = {("producer", i)}
            size += self.buffer_bytes[buffer]
        self._allocate(d, size)
        return float(x.op_seconds[x.device_class[d], i] + x.launch_seconds[d])

    def _allocate(self, d: int, size: int) -> None:
        self.bytes[d] += size
        if self.bytes[d] > self.peak[d]:
            self.peak[d] = self.bytes[d]
            self.peak_seconds[d] = self.now

    def _let_go(self, buffer: Any, d: int, holder: Any) -> None:
        self.holders[buffer].discard(holder)
        if not self.holders[buffer]:
            self.bytes[d] -= self.buffer_bytes.pop(buffer)
            del self.holders[buffer]

    def _end_op(self, i: int) -> int:
        x = self.inputs
        d = self.device[i]
        self.op_end[i] = self.now
        self.running[d] -= 1
        for tensor in range(x.out_ptr[i], x.out_ptr[i + 1]):
            buffer = self.buffer_of[tensor, d]
            sent = set()
            for consumer in self.data_edges[tensor]:
                to = self.device[consumer]
                if to == d:
                    self.holders[buffer].add(("consumer", consumer, tensor))
                    self._deliver(consumer)
                elif to not in sent:
                    sent.add(to)
                    self.holders[buffer].add(("transfer", tensor, to))
                    self._request(i, tensor, d, to, int(x.tensor_bytes[tensor]))
        sent = set()
        for consumer in self.control_edges[i]:
            to = self.device[consumer]
            if to == d:
                self._deliver(consumer)
            elif to not in sent:
                sent.add(to)
                self._request(i, None, d, to, 0)
        self.bytes[d] -= int(x.temporary_bytes[x.device_class[d], i])
        for tensor in range(x.out_ptr[i], x.out_ptr[i + 1]):
            if self.buffer_of[tensor, d] == ("own", tensor):
                self._let_go(("own", tensor), d, ("producer", i))
        for tensor in set(x.in_tensor[x.in_ptr[i] : x.in_ptr[i + 1]].tolist()):
            if x.executed[self.producer[tensor]]:
                self._let_go(self.buffer_of[tensor, d], d, ("consumer", i, tensor))
        return d

    def _deliver(self, consumer: int) -> None:
        self.waiting[consumer] -= 1
        if self.waiting[consumer] == 0:
            self.queue[self.device[consumer]].append(("op", consumer))

    def _request(self, op: int, tensor: int | None, s: int, d: int, size: int) -> None:
        x = self.inputs
        fixed, per_byte = x.send_cpu_seconds[s, d], x.send_cpu_seconds_per_byte[s, d]
        if fixed or per_byte:
            self.queue[s].append(("send", (op, tensor, s, d, size, fixed + size * per_byte)))
        else:
            self._start_wire(op, tensor, s, d, size)

    def _end_send(self, what: Any) -> int:
        self.running[what[2]] -= 1
        self._start_wire(*what[:5])
        return int(what[2])

    def _start_wire(self, op: int, tensor: int | None, s: int, d: int, size: int) -> None:
        x = self.inputs
        channels = [c for c in x.channels[s, d].tolist() if c >= 0]
        seconds = x.latency[s, d] + size * x.seconds_per_byte[s, d]
        end = max([self.now] + [self.channel_free[c] for c in channels]) + seconds
        for c in channels:
            self.channel_free[c] = end
        self.transfer_seconds[s] += seconds
        self.transfer_bytes[s] += size
        self._schedule(end, "wire", (op, tensor, s, d, size))

    def _end_wire(self, what: Any) -> int:
        op, tensor, s, d, size = what
        if tensor is not None:
            copy = ("copy", tensor, d)
            self.buffer_of[tensor, d] = copy
            self.buffer_bytes[copy] = size
            self.holders[copy] = {
                ("consumer", i, tensor) for i in self.data_edges[tensor] if self.device[i] == d
            }
            self._allocate(d, size)
            self._let_go(self.buffer_of[tensor, s], s, ("transfer", tensor, d))
        x = self.inputs
        fixed, per_byte = x.recv_cpu_seconds[s, d], x.recv_cpu_seconds_per_byte[s, d]
        if fixed or per_byte:
            self.queue[d].append(("recv", (op, tensor, d, fixed + size * per_byte)))
        else:
            self._arrive(op, tensor, d)
        return int(d)

    def _end_recv(self, what: Any) -> int:
        op, tensor, d, _ = what
        self.running[d] -= 1
        self._arrive(op, tensor, d)
        return int(d)

    def _arrive(self, op: int, tensor: int | None, d: int) -> None:
        for consumer in self.control_edges[op] if tensor is None else self.data_edges[tensor]:
            if self.device[consumer] == d:
                self._deliver(consumer)

    def totals(self) -> dict[str, np.ndarray]:
        """The figures that `Evaluation` holds for one placement."""
        return {
            "step_seconds": np.float64(self.step_seconds),
            "peak_bytes": np.array(self.peak),
            "busy_seconds": np.array(self.busy),
            "transfer_seconds": np.array(self.transfer_seconds),
            "transfer_bytes": np.array(self.transfer_bytes),
        }
