"""A slow simulator in plain Python, written from the rules in `placer.simulator`.

It shares nothing with the native one: one heap of events, dictionaries, no renumbering.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from typing import Any

import numpy as np


class Executor:
    """Threads on one core, `executor_threads` for ops and one for transfers."""

    def __init__(self, threads: int) -> None:
        self.inline: list[deque[int]] = [deque() for _ in range(threads)]
        self.stack: list[deque[int]] = [deque() for _ in range(threads)]
        # Per thread, the op that runs: [what is left of it in seconds, sequence number, op].
        self.running: list[list[Any] | None] = [None] * threads
        self.transfers: deque[list[Any]] = deque()  # likewise; the first is under way
        self.since = 0.0  # when `left` was up to date
        self.slowdown = 1.0
        self.made: list[int] = []  # by the op that ends, for the pool
        self.event: tuple[float, int, Any] | None = None  # what ends next: time, sequence, thread

    def under_way(self) -> list[tuple[Any, list[Any]]]:
        found = [(i, job) for i, job in enumerate(self.running) if job is not None]
        return found + ([("transfer", self.transfers[0])] if self.transfers else [])

    def advance(self, now: float) -> None:
        done = (now - self.since) / self.slowdown
        for _, job in self.under_way():
            job[0] -= done
        self.since = now

    def take(self, thread: int) -> int | None:
        for queue in (self.inline[thread], self.stack[thread]):
            if queue:
                return queue.popleft()
        for stack in self.stack:
            if stack:
                return stack.pop()
        return None


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
        self.executors = {
            d: Executor(int(count)) for d, count in enumerate(inputs.executor_threads) if count
        }
        self.changed: set[int] = set()
        self.working: set[int] = set()
        self.parts: dict[Any, int] = {}  # of a transfer that executors work on: not ended yet
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
        self._share_cores()
        while True:
            due = [(e.event[:2], d) for d, e in self.executors.items() if e.event is not None]
            if self.events:
                due.append((self.events[0][:2], -1))
            if not due:
                break
            (self.now, _), d = min(due)
            if d < 0:
                _, _, kind, what = heapq.heappop(self.events)
                device = getattr(self, "_end_" + kind)(what)
                if device is not None:
                    self._start_tasks(device)
            else:
                self._end_on_executor(d)
            self._share_cores()

    def _end_on_executor(self, d: int) -> None:
        executor = self.executors[d]
        thread = executor.event[2]
        self._change(d)
        if thread == "transfer":
            _, _, what = executor.transfers.popleft()
            device = self._end_wire(what)
            if device is not None:
                self._start_tasks(device)
            return
        _, _, op = executor.running[thread]
        executor.running[thread] = None
        self._end_op(op)
        for made in executor.made[:-1]:
            executor.stack[thread].appendleft(made)
        for made in executor.made[-1:]:
            if executor.inline[thread]:
                executor.stack[thread].appendleft(made)
            else:
                executor.inline[thread].append(made)
        executor.made = []
        self._start_tasks(d)

    def _change(self, d: int) -> None:
        if d not in self.changed:
            executor = self.executors[d]
            if executor.under_way():
                self.busy[d] += self.now - executor.since
            executor.advance(self.now)
            self.changed.add(d)

    def _share_cores(self) -> None:
        now_working = {d for d, e in self.executors.items() if e.under_way()}
        contention = self.inputs.contention
        pairs = [(a, b) for a in self.executors for b in self.executors if a != b]
        if now_working != self.working and any(contention[a, b] > 0 for a, b in pairs):
            for d in now_working:
                self._change(d)
        self.working = now_working
        for d in self.changed:
            executor = self.executors[d]
            slower = 1.0
            for other in sorted(now_working - {d}):
                slower += contention[d, other]
            jobs = executor.under_way()
            executor.slowdown = slower * max(1, len(jobs))
            executor.event = None
            if jobs:
                left, sequence, thread = min((job[0], job[1], thread) for thread, job in jobs)
                end = executor.since + max(left, 0.0) * executor.slowdown
                executor.event = (end, sequence, thread)
        self.changed = set()

    def _schedule(self, time: float, kind: str, what: Any) -> None:
        heapq.heappush(self.events, (time, self.sequence, kind, what))
        self.sequence += 1

    def _start_tasks(self, d: int) -> None:
        if d in self.executors:
            self._start_on_executor(d)
            return
        while self.running[d] < self.inputs.concurrency[d] and self.queue[d]:
            self.running[d] += 1
            kind, what = self.queue[d].popleft()
            seconds = self._begin_op(what, d) if kind == "op" else what[-1]
            self.busy[d] += seconds
            self._schedule(self.now + seconds, kind, what)

    def _start_on_executor(self, d: int) -> None:
        executor = self.executors[d]
        for thread, job in enumerate(executor.running):
            op = executor.take(thread) if job is None else None
            if op is not None:
                self._change(d)
                seconds = self._begin_op(op, d)
                executor.running[thread] = [seconds, self.sequence, op]
                self.sequence += 1

    def _work_on_transfer(self, d: int, seconds: float, what: Any) -> None:
        self._change(d)
        self.executors[d].transfers.append([seconds, self.sequence, what])
        self.sequence += 1
        self.parts[what] += 1

    def _ready(self, i: int, maker: int | None = None) -> None:
        d = self.device[i]
        executor = self.executors.get(d)
        if executor is None:
            self.queue[d].append(("op", i))
        elif maker is None:
            min(executor.stack, key=len).append(i)
        elif self.inputs.inline_op[i]:
            executor.inline[executor.event[2]].append(i)
        else:
            executor.made.append(i)

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
        if d not in self.executors:
            self.running[d] -= 1
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
        if (fixed or per_byte) and s not in self.executors:
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
        what = (op, tensor, s, d, size)
        self.parts[what] = 1
        begin = max([self.now] + [self.channel_free[c] for c in channels])
        for c in channels:
            self.channel_free[c] = begin + seconds
        sends = x.send_cpu_seconds[s, d], x.send_cpu_seconds_per_byte[s, d]
        if any(sends) and s in self.executors:
            self._work_on_transfer(s, sends[0] + size * sends[1], what)
        receives = x.recv_cpu_seconds[s, d], x.recv_cpu_seconds_per_byte[s, d]
        if any(receives) and d in self.executors:
            self._work_on_transfer(d, receives[0] + size * receives[1], what)
        self.transfer_seconds[s] += seconds
        self.transfer_bytes[s] += size
        heapq.heappush(self.events, (begin + seconds, sequence, "wire", what))

    def _end_wire(self, what: Any) -> int | None:
        op, tensor, s, d, size = what
        self.parts[what] -= 1
        if self.parts[what]:
            return None
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
        if (fixed or per_byte) and d not in self.executors:
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
