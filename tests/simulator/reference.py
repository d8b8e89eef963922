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
        self.stack: list[deque[Any]] = [deque() for _ in range(num_devices)]
        self.newly_ready: list[int] = []
        # Of executor threads: the op that runs and its sequence number, what is left of it, what is
        # owed to transfers, as of when, and when the transfers' thread is free.
        self.current: list[tuple[int, int] | None] = [None] * num_devices
        self.left = [0.0] * num_devices
        self.owed = [0.0] * num_devices
        self.since = [0.0] * num_devices
        self.transfers_end = [0.0] * num_devices
        self.due: dict[int, float] = {}
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
            self._ready(i)
        for d in range(len(self.queue)):
            self._start_tasks(d)
        while self.events:
            time, _, kind, what = heapq.heappop(self.events)
            on_thread = kind == "op" and self.inputs.executor_thread[self.device[what]]
            if on_thread and self.due.get(what) != time:
                continue  # it was put off
            self.now = time
            self._start_tasks(getattr(self, "_end_" + kind)(what))

    def _schedule(self, time: float, kind: str, what: Any) -> None:
        heapq.heappush(self.events, (time, self.sequence, kind, what))
        self.sequence += 1

    def _start_tasks(self, d: int) -> None:
        while self.running[d] < self.inputs.concurrency[d] and (self.queue[d] or self.stack[d]):
            self.running[d] += 1
            kind, what = (self.queue[d] or self.stack[d]).popleft()
            seconds = self._begin_op(what, d) if kind == "op" else what[-1]
            self.busy[d] += seconds
            if self.inputs.executor_thread[d]:
                self._advance(d)
                self.left[d] = seconds
                self.current[d] = (what, self.sequence)
                self.due[what] = self._end_of_op(d)
                self._schedule(self.due[what], kind, what)
            else:
                self._schedule(self.now + seconds, kind, what)

    def _advance(self, d: int) -> None:
        elapsed = self.now - self.since[d]
        if self.current[d] is not None:
            both = min(elapsed, 2 * self.owed[d])
            self.owed[d] -= both / 2
            self.left[d] -= both / 2 + (elapsed - both)
        else:
            self.owed[d] -= min(elapsed, self.owed[d])
        self.since[d] = self.now

    def _end_of_op(self, d: int) -> float:
        return self.since[d] + (self.left[d] + min(self.left[d], self.owed[d]))

    def _work_beside(self, d: int, request: float, seconds: float) -> tuple[float, float]:
        """Gives the transfers' thread of a device work; returns when that begins and ends."""
        self._advance(d)
        waiting = bool(self.queue[d] or self.stack[d])
        waiting = waiting or any(self.device[i] == d for i in self.newly_ready)
        busy = self.current[d] is not None or waiting
        begin = max(request, self.transfers_end[d])
        self.transfers_end[d] = begin + (2 * seconds if busy else seconds)
        self.owed[d] += seconds
        self.busy[d] += seconds
        if self.current[d] is not None:
            op, sequence = self.current[d]
            self.due[op] = self._end_of_op(d)
            heapq.heappush(self.events, (self.due[op], sequence, "op", op))
        return begin, self.transfers_end[d]

    def _ready(self, i: int, maker: int | None = None) -> None:
        d = self.device[i]
        if not self.inputs.executor_thread[d]:
            self.queue[d].append(("op", i))
        elif maker is None:
            self.stack[d].append(("op", i))
        elif self.inputs.inline_op[i]:
            self.queue[d].append(("op", i))
        else:
            self.newly_ready.append(i)

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
        if x.executor_thread[d]:
            self._advance(d)
            self.current[d] = None
            del self.due[i]
        for tensor in range(x.out_ptr[i], x.out_ptr[i + 1]):
            buffer = self.buffer_of[tensor, d]
            sent = set()
            for consumer in self.data_edges[tensor]:
                to = self.device[consumer]
                if to == d:
                    self.holders[buffer].add(("consumer", consumer, tensor))
                    self._deliver(consumer, i)
                elif to not in sent:
                    sent.add(to)
                    self.holders[buffer].add(("transfer", tensor, to))
                    self._request(i, tensor, d, to, int(x.tensor_bytes[tensor]))
        sent = set()
        for consumer in self.control_edges[i]:
            to = self.device[consumer]
            if to == d:
                self._deliver(consumer, i)
            elif to not in sent:
                sent.add(to)
                self._request(i, None, d, to, 0)
        for ready in self.newly_ready[:-1]:
            self.stack[d].appendleft(("op", ready))
        for ready in self.newly_ready[-1:]:
            if self.queue[d]:
                self.stack[d].appendleft(("op", ready))
            else:
                self.queue[d].append(("op", ready))
        self.newly_ready = []
        self.bytes[d] -= int(x.temporary_bytes[x.device_class[d], i])
        for tensor in range(x.out_ptr[i], x.out_ptr[i + 1]):
            if self.buffer_of[tensor, d] == ("own", tensor):
                self._let_go(("own", tensor), d, ("producer", i))
        for tensor in set(x.in_tensor[x.in_ptr[i] : x.in_ptr[i + 1]].tolist()):
            if x.executed[self.producer[tensor]]:
                self._let_go(self.buffer_of[tensor, d], d, ("consumer", i, tensor))
        return d

    def _deliver(self, consumer: int, maker: int | None = None) -> None:
        self.waiting[consumer] -= 1
        if self.waiting[consumer] == 0:
            self._ready(consumer, maker)

    def _request(self, op: int, tensor: int | None, s: int, d: int, size: int) -> None:
        x = self.inputs
        fixed, per_byte = x.send_cpu_seconds[s, d], x.send_cpu_seconds_per_byte[s, d]
        if (fixed or per_byte) and not x.executor_thread[s]:
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
        sequence = self.sequence
        self.sequence += 1
        begin = end = self.now
        sends = x.send_cpu_seconds[s, d], x.send_cpu_seconds_per_byte[s, d]
        if any(sends) and x.executor_thread[s]:
            begin, end = self._work_beside(s, self.now, sends[0] + size * sends[1])
        begin = max([begin] + [self.channel_free[c] for c in channels])
        for c in channels:
            self.channel_free[c] = begin + seconds
        end = max(end, begin + seconds)
        receives = x.recv_cpu_seconds[s, d], x.recv_cpu_seconds_per_byte[s, d]
        if any(receives) and x.executor_thread[d]:
            end = max(end, self._work_beside(d, begin, receives[0] + size * receives[1])[1])
        self.transfer_seconds[s] += seconds
        self.transfer_bytes[s] += size
        heapq.heappush(self.events, (end, sequence, "wire", (op, tensor, s, d, size)))

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
        if (fixed or per_byte) and not x.executor_thread[d]:
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
