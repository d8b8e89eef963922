"""The state that list schedulers share: who is ready when, transfers, memory, pinned units."""

from __future__ import annotations

import numpy as np

from placer.graph.op_graph import OpGraph, topological_order
from placer.placers.coplacement import Units
from placer.problem import PlacementProblem


def executed_edges(graph: OpGraph) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct dependencies of executed ops: (src, dst, tensor), tensor -1 for control edges.

    int64[M] each, sorted by (dst, tensor, src); an op that reads a tensor twice has one.
    """
    src = np.concatenate([graph.edge_src, graph.control_src]).astype(np.int64)
    dst = np.concatenate([graph.edge_dst, graph.control_dst]).astype(np.int64)
    tensor = np.concatenate(
        [graph.in_tensor.astype(np.int64), np.full(len(graph.control_src), -1, np.int64)]
    )
    keep = graph.executed[src] & graph.executed[dst]
    rows = np.unique(np.stack([dst[keep], tensor[keep], src[keep]], axis=1), axis=0)
    return rows[:, 2], rows[:, 0], rows[:, 1]


def buffers(graph: OpGraph) -> np.ndarray:
    """int64[T]: for each tensor the one whose buffer it shares, itself if it has its own.

    An output that is an alias of an executed op's tensor shares that one's.
    """
    buffer = np.arange(len(graph.tensor_bytes))
    position = np.empty(graph.num_ops, np.int64)
    position[graph.topological_order()] = np.arange(graph.num_ops)
    aliases = np.flatnonzero(graph.tensor_alias >= 0)
    ops = graph.tensor_op[aliases]
    sources = graph.in_tensor[graph.in_ptr[ops] + graph.tensor_alias[aliases]]
    for i in np.argsort(position[ops], kind="stable").tolist():
        if graph.executed[graph.tensor_op[sources[i]]]:
            buffer[aliases[i]] = buffer[sources[i]]
    return buffer


def upward_rank(graph: OpGraph, seconds: np.ndarray, edge_seconds: np.ndarray) -> np.ndarray:
    """float64[N]: longest path from each op to the end, in seconds, the op included.

    Topcuoglu et al. 2002, equation 9: rank(i) = w(i) + max over successors j of c(i, j) + rank(j).

    Args:
      graph: N ops.
      seconds: float64[N].
      edge_seconds: float64[M] of the edges of `executed_edges`.
    """
    src, dst, _ = executed_edges(graph)
    order = topological_order(graph.num_ops, dst, src)
    by_src = np.argsort(src, kind="stable")
    pointer = np.searchsorted(src[by_src], np.arange(graph.num_ops + 1)).tolist()
    targets, costs = dst[by_src].tolist(), edge_seconds[by_src].tolist()
    rank = seconds.tolist()
    for i in order.tolist():
        tail = 0.0
        for e in range(pointer[i], pointer[i + 1]):
            r = costs[e] + rank[targets[e]]
            if r > tail:
                tail = r
        rank[i] += tail
    return np.array(rank)


def mean_link(problem: PlacementProblem, devices: list[int]) -> tuple[float, float]:
    """Mean (latency, seconds per byte) over ordered pairs of distinct `devices`; zeros for one."""
    if len(devices) < 2:
        return 0.0, 0.0
    links = problem.topology.links()
    pairs = [(i, j) for i in devices for j in devices if i != j]
    return (
        float(np.mean([links.latency[p] for p in pairs])),
        float(np.mean([links.seconds_per_byte[p] for p in pairs])),
    )


class ListSchedule:
    """A partial schedule that grows op by op.

    Source ops (no compute to speak of, and only such ops before them: variables and their reads,
    constants, placeholders) are not scheduled by themselves: they go to the device of the first
    op that reads them. Otherwise a list scheduler would scatter every variable over the devices
    at time 0, before it knows who needs it.

    The state is in plain lists and dicts, which Python's loops read faster than arrays.

    Attributes:
      device_of: device of each op, -1 while unscheduled.
      unit_device: device of each unit, -1 while no member is scheduled.
      finish: end time of each scheduled op, seconds.
      device_free: when each device has run all that is scheduled on it, seconds.
      used: bytes on each device: variables of pinned units, and outputs that someone still reads.
      limit: bytes that may be used.
    """

    def __init__(
        self,
        problem: PlacementProblem,
        units: Units,
        devices: list[int],
        memory_headroom: float = 0.0,
        contention: bool = True,
    ) -> None:
        """Starts an empty schedule.

        Args:
          problem: what to place.
          units: what stays together.
          devices: where ops go if they may; others go where they may.
          memory_headroom: part of each memory limit that is left free.
          contention: transfers queue on the channels of the topology; otherwise each takes its
            wire at once.
        """
        graph, topology = problem.graph, problem.topology
        n, num_devices = graph.num_ops, topology.num_devices
        self.num_devices = num_devices
        links = topology.links()
        self.latency = links.latency.tolist()
        self.per_byte = links.seconds_per_byte.tolist()
        self.channels: list[list[list[int]]] = [
            [[int(c) for c in pair if c >= 0] for pair in row] for row in links.channels
        ]
        self.contention = contention
        self.seconds: list[list[float]] = problem.device_seconds.tolist()
        self.unit_of: list[int] = units.unit_of.tolist()
        preferred = np.zeros(num_devices, bool)
        preferred[devices] = True
        usable = units.allowed & preferred
        usable = np.where(usable.any(axis=1, keepdims=True), usable, units.allowed)
        self.candidates: list[list[int]] = [np.flatnonzero(row).tolist() for row in usable]
        self.allowed: list[list[int]] = [np.flatnonzero(row).tolist() for row in units.allowed]

        src, dst, tensor = executed_edges(graph)
        source = self._source_ops(problem, src, dst)
        self.is_source: list[bool] = source.tolist()
        pointer = np.searchsorted(dst, np.arange(n + 1)).tolist()
        edges = list(zip(src.tolist(), tensor.tolist(), strict=True))
        # Each op's inputs as (producer, tensor), tensor -1 - producer for a control edge.
        self.inputs: list[list[tuple[int, int]]] = [
            [(s, t if t >= 0 else -1 - s) for s, t in edges[pointer[i] : pointer[i + 1]]]
            for i in range(n)
        ]
        work = ~source[src] & ~source[dst]
        pair = np.unique(src[work] * n + dst[work])
        by_src = np.searchsorted(pair, np.arange(n + 1) * n).tolist()
        targets = (pair % n).tolist()
        self.successors: list[list[int]] = [targets[by_src[i] : by_src[i + 1]] for i in range(n)]
        self.missing: list[int] = np.bincount(pair % n, minlength=n).tolist()
        self.ops: list[int] = np.flatnonzero(graph.executed & ~source).tolist()
        self.sources: list[int] = np.flatnonzero(graph.executed & source).tolist()

        self.tensor_bytes: list[int] = graph.tensor_bytes.tolist()
        # The tensor whose buffer each one shares, and which op makes that.
        buffer = buffers(graph)
        self.buffer: list[int] = buffer.tolist()
        self.tensor_op: list[int] = graph.tensor_op.tolist()
        own = buffer == np.arange(len(buffer))
        local = np.where(own, graph.tensor_local_bytes, 0)
        self.local_bytes: list[int] = local.tolist()
        self.out_ptr: list[int] = graph.out_ptr.tolist()
        self.output_bytes: list[int] = (
            np.bincount(graph.tensor_op, weights=local, minlength=n).astype(np.int64).tolist()
        )
        temporary = problem.costs.temporary_bytes[topology.device_model]
        self.temporary_bytes: list[list[int]] = temporary.tolist()
        self.unit_bytes: list[int] = units.persistent_bytes.tolist()
        # By buffer: ops that read it, as this tensor or another.
        self.readers: list[int] = np.bincount(
            buffer[tensor[tensor >= 0]], minlength=len(self.tensor_bytes)
        ).tolist()
        self.limit: list[float] = (topology.memory_bytes * (1.0 - memory_headroom)).tolist()

        self.device_of = [-1] * n
        self.unit_device = [-1] * units.num_units
        self.finish = [0.0] * n
        self.device_free = [0.0] * num_devices
        self.used = [0.0] * num_devices
        self.channel_free = [0.0] * links.num_channels
        # (tensor or -1 - op) * D + device: when a copy of it is there.
        self.arrival: dict[int, float] = {}
        # By buffer: devices with a copy, and its bytes, while somebody is still to read any.
        self.copies: dict[int, list[tuple[int, int]]] = {}
        # Units pinned since somebody looked.
        self.newly_pinned: list[int] = []

    @staticmethod
    def _source_ops(problem: PlacementProblem, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        """bool[N]: ops that wait for their first reader; see the class."""
        graph = problem.graph
        launch = max(m.launch_seconds for m in problem.costs.models)
        light = problem.costs.seconds.min(axis=0) <= max(launch, 1e-6)
        # An op that nobody reads must be scheduled, or nobody would.
        read = np.zeros(graph.num_ops, bool)
        read[src] = True
        source = light & read & graph.executed
        while True:
            tainted = np.zeros(graph.num_ops, bool)
            tainted[dst[~source[src]]] = True
            fewer = source & ~tainted
            if (fewer == source).all():
                return source
            source = fewer

    def data_ready(self, op: int, device: int) -> float:
        """When the inputs of `op` can be on `device`, seconds, as channels stand now."""
        ready = 0.0
        device_of, finish, arrival = self.device_of, self.finish, self.arrival
        for producer, tensor in self.inputs[op]:
            home = device_of[producer]
            if home < 0:
                # A source that nobody has read yet: its unit may be pinned already.
                home = self.unit_device[self.unit_of[producer]]
                if home < 0:
                    continue
            if home == device:
                t = finish[producer]
            else:
                known = arrival.get(tensor * self.num_devices + device)
                if known is not None:
                    t = known
                else:
                    t = finish[producer]
                    if self.contention:
                        for channel in self.channels[home][device]:
                            if self.channel_free[channel] > t:
                                t = self.channel_free[channel]
                    t += self.latency[home][device]
                    if tensor >= 0:
                        t += self.tensor_bytes[tensor] * self.per_byte[home][device]
            if t > ready:
                ready = t
        return ready

    def devices_for(self, op: int) -> list[int]:
        """Devices that `op` may be scheduled on: its unit's, once that is pinned."""
        unit = self.unit_of[op]
        pinned = self.unit_device[unit]
        return [pinned] if pinned >= 0 else self.candidates[unit]

    def bytes_needed(self, op: int, device: int) -> float:
        """Bytes that scheduling `op` on `device` takes: variables, outputs, temporaries, copies."""
        unit = self.unit_of[op]
        need = float(self.output_bytes[op] + self.temporary_bytes[device][op])
        if self.unit_device[unit] < 0:
            need += self.unit_bytes[unit]
        units, sources = {unit}, {op}
        for producer, tensor in self.inputs[op]:
            home = self.device_of[producer]
            if home < 0:
                need += self._source_bytes(producer, device, units, sources)
                producer_unit = self.unit_of[producer]
                home = self.unit_device[producer_unit]
                if home < 0 and device in self.allowed[producer_unit]:
                    continue
            if (
                home != device
                and tensor >= 0
                and tensor * self.num_devices + device not in self.arrival
            ):
                need += self.tensor_bytes[tensor]
        return need

    def _source_bytes(self, op: int, device: int, units: set[int], sources: set[int]) -> float:
        """Bytes that a source, and those before it, take of `device` if their reader goes there.

        `units` and `sources` are those that have been counted.
        """
        need = 0.0
        stack = [op]
        while stack:
            source = stack.pop()
            if source in sources or self.device_of[source] >= 0:
                continue
            sources.add(source)
            unit = self.unit_of[source]
            pinned = self.unit_device[unit]
            if pinned != device and (pinned >= 0 or device not in self.allowed[unit]):
                continue
            if pinned < 0 and unit not in units:
                units.add(unit)
                need += self.unit_bytes[unit]
            need += self.output_bytes[source]
            stack.extend(p for p, _ in self.inputs[source])
        return need

    def fits(self, op: int, device: int) -> bool:
        """Whether there is memory for `op` on `device`."""
        return self.used[device] + self.bytes_needed(op, device) <= self.limit[device]

    def roomiest(self, op: int) -> int:
        """The device with most memory left of those that `op` may use at all."""
        unit = self.unit_of[op]
        if self.unit_device[unit] >= 0:
            return self.unit_device[unit]
        return max(self.allowed[unit], key=lambda d: (self.limit[d] - self.used[d], -d))

    def commit(
        self, op: int, device: int, start: float | None = None, not_before: float = 0.0
    ) -> list[int]:
        """Schedules `op` on `device`, with the transfers that it needs.

        Args:
          op: an op whose predecessors are all scheduled.
          device: one of `devices_for(op)`, or of those allowed.
          start: when it starts; as soon as its inputs and the device are ready by default.
          not_before: then, the earliest that it may start.

        Returns:
          The ops that became ready.
        """
        self._pin(op, device)
        ready = 0.0
        for producer, tensor in self.inputs[op]:
            home = self.device_of[producer]
            if home < 0:
                home = self._place_source(producer, device)
            if home == device:
                t = self.finish[producer]
            else:
                t = self._transfer(producer, tensor, home, device)
            if t > ready:
                ready = t
        if start is None:
            start = max(ready, self.device_free[device], not_before)
        self.device_of[op] = device
        end = start + self.seconds[device][op]
        self.finish[op] = end
        if end > self.device_free[device]:
            self.device_free[device] = end
        self.used[device] += self.output_bytes[op]
        self._release_unread(op)
        self._release_inputs(op)
        released = []
        for successor in self.successors[op]:
            self.missing[successor] -= 1
            if self.missing[successor] == 0:
                released.append(successor)
        return released

    def _pin(self, op: int, device: int) -> None:
        unit = self.unit_of[op]
        if self.unit_device[unit] < 0:
            self.unit_device[unit] = device
            self.used[device] += self.unit_bytes[unit]
            self.newly_pinned.append(unit)

    def _place_source(self, op: int, device: int) -> int:
        """Places a source, and the sources before it, for its first reader; returns where."""
        unit = self.unit_of[op]
        home = self.unit_device[unit]
        if home < 0:
            home = device if device in self.allowed[unit] else self.candidates[unit][0]
            self._pin(op, home)
        placed, stack = [], [op]
        while stack:
            source = stack.pop()
            if self.device_of[source] >= 0:
                continue
            placed.append(source)
            self._pin(source, home)
            self.device_of[source] = self.unit_device[self.unit_of[source]]
            self.used[self.device_of[source]] += self.output_bytes[source]
            stack.extend(p for p, _ in self.inputs[source] if self._follows(p, home))
        for source in placed:
            self._release_unread(source)
        for source in placed:
            self._release_inputs(source)
        return self.device_of[op]

    def _follows(self, source: int, home: int) -> bool:
        """Whether an unplaced source can go to `home`."""
        if self.device_of[source] >= 0:
            return False
        unit = self.unit_of[source]
        return self.unit_device[unit] >= 0 or home in self.allowed[unit]

    def _transfer(self, producer: int, tensor: int, home: int, device: int) -> float:
        key = tensor * self.num_devices + device
        known = self.arrival.get(key)
        if known is not None:
            return known
        begin = self.finish[producer]
        channels = self.channels[home][device] if self.contention else ()
        for channel in channels:
            if self.channel_free[channel] > begin:
                begin = self.channel_free[channel]
        end = begin + self.latency[home][device]
        if tensor >= 0:
            num_bytes = self.tensor_bytes[tensor]
            end += num_bytes * self.per_byte[home][device]
            self.used[device] += num_bytes
            self.copies.setdefault(self.buffer[tensor], []).append((device, num_bytes))
        for channel in channels:
            self.channel_free[channel] = end
        self.arrival[key] = end
        return end

    def _release_inputs(self, op: int) -> None:
        for _, tensor in self.inputs[op]:
            if tensor < 0:
                continue
            buffer = self.buffer[tensor]
            self.readers[buffer] -= 1
            if self.readers[buffer] == 0:
                home = self.device_of[self.tensor_op[buffer]]
                if home >= 0:  # Else a source that is still to be placed.
                    self.used[home] -= self.local_bytes[buffer]
                for device, num_bytes in self.copies.pop(buffer, ()):
                    self.used[device] -= num_bytes

    def _release_unread(self, op: int) -> None:
        """Frees outputs that nobody is still to read; before the op's readers let go of any."""
        for tensor in range(self.out_ptr[op], self.out_ptr[op + 1]):
            if self.buffer[tensor] == tensor and self.readers[tensor] == 0:
                self.used[self.device_of[op]] -= self.local_bytes[tensor]

    def placement(self) -> np.ndarray:
        """int32[N]: the devices so far; -1 for ops of units that are not pinned.

        Variables that no scheduled op is bound to go where there is most room.
        """
        left = [u for u, device in enumerate(self.unit_device) if device < 0]
        for unit in sorted(left, key=lambda u: (-self.unit_bytes[u], u)):
            if self.unit_bytes[unit] > 0:
                room = {d: self.limit[d] - self.used[d] for d in self.candidates[unit]}
                self.unit_device[unit] = max(room, key=lambda d: (room[d], -d))
                self.used[self.unit_device[unit]] += self.unit_bytes[unit]
        device_of = np.array(self.unit_device, np.int32)[np.array(self.unit_of)]
        own = np.array(self.device_of, np.int32)
        return np.where(own >= 0, own, device_of).astype(np.int32)
