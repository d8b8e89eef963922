"""The runner: measures placements of one graph on real devices, and survives them."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import EncodeError

from placer.devices import Topology
from placer.errors import PlacerError
from placer.runtime import backends, wire
from placer.runtime.measurement import QUICK, Measurement, MeasurementProtocol
from placer.runtime.processes import Child, ProcessTree, oom_kills, wait_ready
from placer.runtime.program import Program, prepare

if TYPE_CHECKING:
    from placer.graph.source import GraphSource

Feeds = Mapping[str, np.ndarray] | Callable[[int], Mapping[str, np.ndarray]]

# A stopped process shows at once; a program that is traced or paused for a blink is not a fault.
_STOPPED_SECONDS = 0.5
_POLL_SECONDS = 0.1
# After a broken connection the reason, a process's exit, may take this long to be reported.
_EXIT_REPORT_SECONDS = 2.0
# Signals that a program brings upon itself.
_OWN_SIGNALS = {signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
_CONNECTION_ERRORS = {
    "UnavailableError",
    "AbortedError",
    "DeadlineExceededError",
    "CancelledError",
    # Asking for the processor time of a worker that is gone.
    "OSError",
    "ProcessLookupError",
}
_ERROR_PREFIX = re.compile(r"^(?:From /job:\S+:\s*|\(\d+\)\s*)+")
_MEMORY_ERRORS = {"ResourceExhaustedError", "MemoryError"}


@dataclasses.dataclass(frozen=True)
class RunnerSettings:
    """How a runner treats its workers.

    Attributes:
      emulate: run any topology in one process whose logical CPU devices stand for its devices:
        right numbers, meaningless times.
      values: initial values by variable's op name; before init op and the source's own values.
      feeds: tensor name -> value for every step, or a function that returns such a mapping for
        batch 0, 1, ...; what is not fed is synthesised.
      feed_batches: how many batches to ask a function for; steps take turns among them.
      build_timeout_seconds: for building a session, initialising, and a session's first step.
      step_timeout_seconds: for a step, at least.
      step_timeout_ratio: for a step, in multiples of the best step time so far.
      attempts: how often to run a placement whose workers failed without it being known why.
      disturbance_ratio: a device that computes this many times slower than it can makes a
        measurement suspect, and is measured again, `attempts` times at most; 0 never checks.
      worker_address_space_bytes: limit on each worker's address space, None for none.
      seed: of synthesised values.
    """

    emulate: bool = False
    values: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    feeds: Feeds | None = None
    feed_batches: int = 1
    build_timeout_seconds: float = 180.0
    step_timeout_seconds: float = 30.0
    step_timeout_ratio: float = 20.0
    attempts: int = 3
    disturbance_ratio: float = 1.5
    worker_address_space_bytes: int | None = None
    seed: int = 0


class _Fault(Exception):
    """Running failed.

    Attributes:
      reason: one line.
      attempts: how often the same may happen before the placement is to blame; 1: it is now.
      restart: workers must be replaced before the next run.
    """

    def __init__(self, reason: str, attempts: int, restart: bool = True):
        super().__init__(reason)
        self.reason = reason
        self.attempts = attempts
        self.restart = restart


def open_runner(
    spec: str | Topology, source: GraphSource, settings: RunnerSettings | None = None
) -> Runner:
    """A runner of `source` on the devices that `spec` names (see `backends.resolve`).

    Use it as a context manager; it starts processes.

    Raises:
      PlacerError: if the devices cannot be run on, or the graph cannot be made runnable.
    """
    settings = settings or RunnerSettings()
    topology, backend = backends.resolve(spec, settings.emulate)
    return Runner(topology, backend, source, settings)


class Runner:
    """Measures placements of one graph.

    Not thread-safe: one measurement at a time is the point. Sessions live in a process of their
    own, and their ops in that process or in workers, so nothing that a graph does can harm the
    caller. Children end with the runner, also when the caller is killed.

    Attributes:
      topology: the devices; placements are int32[N] indices into them.
      session_devices: what TensorFlow calls each of them (and step stats show).
      best_seconds: the least median step time so far, infinity before the first.
    """

    def __init__(
        self,
        topology: Topology,
        backend: backends.Backend,
        source: GraphSource,
        settings: RunnerSettings,
    ):
        self.topology = topology
        self.session_devices = backend.session_devices
        self.best_seconds = float("inf")
        self._backend = backend
        self._settings = settings
        self._batches = _batches(settings)
        self._set_source(source)
        self._canary: np.ndarray | None = None
        self._workers: list[Child] = []
        self._driver: Child | None = None
        # Whether a request was left (Ctrl-C) before its answers came: they are not the next one's.
        self._answers_due = False
        self._tree = ProcessTree(
            loopback=backend.kind == "workers", use_gpus=backend.kind == "local"
        )
        try:
            self._start()
        except BaseException:
            self._tree.close()
            raise

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends every process of the runner; harmless when done twice."""
        self._tree.close()

    def load(self, source: GraphSource) -> None:
        """Changes to another graph; processes stay, and so do their devices.

        Raises:
          PlacerError: if it cannot be made runnable, or no workers can be had.
        """
        self._set_source(source)
        self.best_seconds = float("inf")
        stale, self._answers_due = self._answers_due, True
        try:
            if stale:
                self._restart()
            else:
                self._load_program()
        except _Fault:
            self._restart()
        self._answers_due = False

    def _set_source(self, source: GraphSource) -> None:
        self._origin = source.origin
        self._program: Program = prepare(
            source,
            self._settings.values,
            self._batches[0] if self._batches else (),
            self._settings.seed,
        )

    @property
    def num_nodes(self) -> int:
        """N, the length of a placement."""
        return self._program.num_nodes

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the workers as they are now; a fault changes them."""
        return tuple(w.pid for w in self._workers)

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Process ids of everything this runner has started and not ended."""
        return (self._tree.supervisor_pid, *(c.pid for c in self._tree.children))

    @property
    def addresses(self) -> tuple[str, ...]:
        """host:port of each worker; () for a local runner."""
        return self._addresses

    def measure(
        self,
        placement: np.ndarray,
        protocol: MeasurementProtocol = QUICK,
        best_so_far: float | None = None,
        keep_step_stats: bool | int = False,
    ) -> Measurement:
        """Runs a placement.

        A failure is repeated on fresh workers unless it is plainly the placement's (an op that
        does not run); what is known to be a worker's fault (stopped, limited from outside) never
        counts against the placement.

        Args:
          placement: int32[N], device index of each node of the graph.
          protocol: how.
          best_so_far: step time in seconds that decides early stops, repeats and time-outs;
            by default this runner's own best.
          keep_step_stats: how many more steps to run with FULL_TRACE, to return their RunMetadata.

        Raises:
          PlacerError: if `placement` is not a placement of this graph, or no workers can be had.
        """
        placement = self._checked(placement)
        if self._answers_due:
            self._restart()
        self._answers_due = True
        best = best_so_far if best_so_far else self.best_seconds
        result = self._measure(placement, protocol, best, int(keep_step_stats))
        self._answers_due = False
        return result

    def _measure(
        self, placement: np.ndarray, protocol: MeasurementProtocol, best: float, traced: int
    ) -> Measurement:
        begin = time.perf_counter()
        faults: list[str] = []
        # Of faults, how often each may happen before it counts.
        attempts: list[int] = []
        suspects: list[Measurement] = []
        while True:
            try:
                result = self._attempt(placement, protocol, best, traced)
            except _Fault as fault:
                if fault.restart:
                    self._restart()
                faults.append(fault.reason)
                attempts.append(fault.attempts)
                # What may happen more often says less about the placement.
                times_seen = sum(count <= fault.attempts for count in attempts)
                if times_seen >= fault.attempts:
                    if suspects:
                        break
                    times = f" ({times_seen} times, on fresh workers)" if times_seen > 1 else ""
                    return Measurement(
                        failure=fault.reason + times,
                        faults=tuple(faults[:-1]),
                        overhead_seconds=time.perf_counter() - begin,
                    )
                continue
            try:
                slow = self._slow_device()
            except _Fault as fault:
                # The placement has run; this is of the devices.
                slow = fault.reason
                if len(suspects) + 1 >= self._settings.attempts:
                    self._restart()
            suspects.append(dataclasses.replace(result, disturbed=slow is not None))
            if slow is None or len(suspects) >= self._settings.attempts:
                break
            faults.append(slow)
            # The reason may be tied to the processes, or be past by then.
            self._restart()
        result = min(suspects, key=lambda m: (m.disturbed, m.seconds))
        self.best_seconds = min(self.best_seconds, result.seconds)
        return dataclasses.replace(
            result,
            faults=tuple(faults),
            overhead_seconds=time.perf_counter() - begin - result.total_seconds,
        )

    def _checked(self, placement: np.ndarray) -> np.ndarray:
        placement = np.asarray(placement)
        if placement.shape != (self.num_nodes,) or placement.dtype.kind not in "iu":
            raise PlacerError(
                f"a placement of {self._origin} has {self.num_nodes} device indices, not "
                f"{placement.dtype}{list(placement.shape)}"
            )
        if placement.min() < 0 or placement.max() >= self.topology.num_devices:
            raise PlacerError(
                f"a placement's device indices are 0 to {self.topology.num_devices - 1}, "
                f"not {placement.min()} to {placement.max()}"
            )
        return np.ascontiguousarray(placement, np.int32)

    def _start(self) -> None:
        self._addresses = self._backend.addresses
        if self._backend.kind == "workers":
            self._workers, self._addresses = backends.start_workers(
                self._tree, self.topology.num_devices, self._settings.worker_address_space_bytes
            )
        self._limits = [w.address_space_limit() for w in self._workers]
        self._oom_kills = oom_kills()
        self._driver = self._tree.fork("the session's process", "driver", {})
        wait_ready([self._driver], self._tree)
        try:
            self._load_program()
            if self._settings.disturbance_ratio:
                timeout = self._settings.build_timeout_seconds
                seconds = [self._run_canary(timeout) for _ in range(2)]
                fastest = np.min(seconds, axis=0)
                self._canary = (
                    fastest if self._canary is None else np.minimum(self._canary, fastest)
                )
        except _Fault as fault:
            raise PlacerError(f"devices {self.topology.name!r}: {fault.reason}") from None

    def _load_program(self) -> None:
        program = self._program
        targets = [f"grpc://{a}" for a in self._addresses] or [""]
        alone = self._backend.kind == "workers"
        header = {
            "do": "load",
            "target": targets[0],
            "canary_targets": targets if alone else targets[:1] * self.topology.num_devices,
            "logical_cpus": self._backend.logical_cpus,
            "cluster": list(self._backend.addresses),
            "devices": list(self.session_devices),
            "targets": list(program.targets),
            "initializers": [list(g) for g in program.initializers],
            "assigned": [list(a[:2]) for a in program.assigned],
            "feeds": list(program.feeds),
            "worker_pids": list(self.worker_pids),
        }
        self._send(
            header,
            _graph_bytes(program, self._origin),
            program.owner.tobytes(),
            *(_tensor_bytes(value, assign) for _, assign, value in program.assigned),
        )
        self._receive(self._settings.build_timeout_seconds, "loading the graph")

    def _restart(self) -> None:
        self._tree.kill_all()
        for attempt in range(self._settings.attempts):
            try:
                self._start()
            except PlacerError:
                if attempt == self._settings.attempts - 1:
                    raise
                self._tree.kill_all()
            else:
                return

    def _attempt(
        self, placement: np.ndarray, protocol: MeasurementProtocol, best: float, traced: int
    ) -> Measurement:
        build_timeout = self._settings.build_timeout_seconds
        known = np.isfinite(best)
        scaled = self._settings.step_timeout_ratio * best if known else build_timeout
        step_timeout = max(self._settings.step_timeout_seconds, scaled)
        for worker in self._workers:
            # What the placement before needed, this one may need elsewhere.
            with contextlib.suppress(OSError):
                wire.send(worker.channel, {"do": "release memory"})
        self._send(
            {
                "do": "measure",
                "protocol": dataclasses.asdict(protocol),
                "best": best if known else None,
                "traced_steps": traced,
            },
            placement.tobytes(),
            *(_tensor_bytes(batch[f], f) for batch in self._batches for f in self._program.feeds),
        )
        built = self._receive(build_timeout, "building the session")[0]["built"]
        initialised = self._receive(build_timeout, "initialising")[0]["initialised"]
        begin = time.perf_counter()
        message, parts = self._receive(max(build_timeout, step_timeout), "the first step")
        ran = 0.0
        while "done" not in message:
            ran = time.perf_counter() - begin
            message, parts = self._receive(step_timeout, "a step")
        from tensorflow.core.protobuf import config_pb2

        return Measurement(
            steps=tuple(message["done"]),
            warm_up=tuple(message["warm_up"]),
            built_seconds=built,
            initialised_seconds=initialised,
            ran_seconds=ran,
            stopped_early=message["stopped_early"],
            worker_cpu_seconds=tuple(message["cpu"]),
            traced_steps=tuple(config_pb2.RunMetadata.FromString(p) for p in parts),
        )

    def _send(self, header: dict[str, Any], *parts: bytes) -> None:
        assert self._driver is not None
        self._driver.channel.settimeout(self._settings.build_timeout_seconds)
        try:
            wire.send(self._driver.channel, header, *parts)
        except OSError:
            self._raise_broken("sending the placement")

    def _receive(self, timeout: float, stage: str) -> tuple[dict[str, Any], list[bytes]]:
        """Waits for the driver while watching every process; raises _Fault."""
        assert self._driver is not None
        channel = self._driver.channel
        deadline = time.monotonic() + timeout
        stopped: dict[int, tuple[float, float]] = {}
        while True:
            readable, _, _ = select.select([channel, self._tree.control], [], [], _POLL_SECONDS)
            self._tree.collect()
            if channel in readable:
                try:
                    header, parts = wire.receive(channel)
                except (EOFError, OSError):
                    self._raise_broken(stage)
                if "error" in header:
                    self._raise_error(header, stage)
                return header, parts
            self._raise_if_ended(stage)
            self._raise_if_stopped(stopped, stage)
            if time.monotonic() > deadline:
                raise _Fault(f"{stage} took longer than {timeout:.0f} s", attempts=2)

    def _raise_if_stopped(self, since: dict[int, tuple[float, float]], stage: str) -> None:
        """Raises _Fault if a process has stood still for a while.

        Args:
          since: process id -> when it was first seen stopped, and its CPU time then; kept up here.
          stage: what it should have been doing.
        """
        now = time.monotonic()
        for child in self._tree.children:
            cpu = child.cpu_seconds()
            # One that is stopped and continued in turns is slow, not stopped.
            if child.state() not in "Tt" or since.get(child.pid, (now, cpu))[1] != cpu:
                since.pop(child.pid, None)
            elif now - since.setdefault(child.pid, (now, cpu))[0] > _STOPPED_SECONDS:
                raise _Fault(
                    f"{child.label} was stopped (SIGSTOP) during {stage}",
                    attempts=2 * self._settings.attempts,
                )

    def _raise_if_ended(self, stage: str) -> None:
        ended = [c for c in self._tree.children if c.exit_reason is not None]
        if not ended:
            return
        # The driver ends with its workers' connection; the worker's end says more.
        child = next((c for c in ended if c is not self._driver), ended[0])
        reason = f"{child.exit_reason} during {stage}"
        attempts = self._settings.attempts
        if child.exit_signal in _OWN_SIGNALS or not child.exit_signal:
            attempts = min(attempts, 2)
        if child.exit_signal == signal.SIGKILL and oom_kills() > self._oom_kills >= 0:
            reason += " by the kernel, which was out of memory"
            attempts = min(attempts, 2)
        if self._limit_changed():
            attempts = 2 * self._settings.attempts
        raise _Fault(reason, attempts)

    def _raise_broken(self, stage: str) -> None:
        deadline = time.monotonic() + _EXIT_REPORT_SECONDS
        while time.monotonic() < deadline:
            self._tree.collect()
            self._raise_if_ended(stage)
            time.sleep(0.02)
        raise _Fault(f"the connection to the session was lost during {stage}", attempts=2)

    def _limit_changed(self) -> bool:
        """Whether somebody has limited a worker's memory since it started."""
        now = [w.address_space_limit() for w in self._workers]
        return any(a != b for a, b in zip(now, self._limits, strict=True) if a >= 0)

    def _raise_error(self, header: dict[str, Any], stage: str) -> None:
        kind, text = header["error"], header["message"]
        reason = f"{kind} during {stage}: {_telling_line(text) or kind}"
        if kind in _CONNECTION_ERRORS or (kind == "InternalError" and "RPC" in text):
            if self._workers:
                with contextlib.suppress(_Fault):
                    self._raise_broken(stage)
                self._tree.collect()
                self._raise_if_ended(stage)
            raise _Fault(reason, attempts=2)
        if kind in _MEMORY_ERRORS or "bad_alloc" in text:
            attempts = 1 if self._settings.worker_address_space_bytes else 2
            if self._limit_changed():
                attempts = 2 * self._settings.attempts
            raise _Fault(f"out of memory: {reason}", attempts)
        raise _Fault(reason, attempts=1, restart=False)

    def _run_canary(self, timeout: float) -> np.ndarray:
        self._send({"do": "canary", "runs": 3})
        return np.array(self._receive(timeout, "checking the devices")[0]["canary"])

    def _slow_device(self) -> str | None:
        """Names a device that computes much slower than it can, None if there is none."""
        ratio = self._settings.disturbance_ratio
        if not ratio or self._canary is None:
            return None
        seconds = self._run_canary(self._settings.step_timeout_seconds)
        slowdown = seconds / self._canary
        self._canary = np.minimum(self._canary, seconds)
        worst = int(np.argmax(slowdown))
        if slowdown[worst] <= ratio:
            return None
        label = self._workers[worst].label if self._workers else self.session_devices[worst]
        return f"{label} ran {slowdown[worst]:.1f} times slower than it can"


def _telling_line(text: str) -> str:
    """The first line of a TensorFlow error that says more than where it comes from."""
    for line in text.splitlines():
        line = line.strip()
        line = _ERROR_PREFIX.sub("", line)
        if line and not line.endswith("root error(s) found."):
            return line[:500]
    return ""


def _tensor_bytes(value: np.ndarray, name: str) -> bytes:
    import tensorflow as tf

    try:
        return tf.make_tensor_proto(value).SerializeToString()
    except ValueError as error:
        raise PlacerError(f"cannot send the value of {name!r} to a worker: {error}") from None


def _graph_bytes(program: Program, origin: str) -> bytes:
    try:
        return program.graph_def.SerializeToString()
    except (ValueError, EncodeError):
        raise PlacerError(
            f"{origin} is 2 GiB or more, which no session takes; keep large values in variables"
        ) from None


def _batches(settings: RunnerSettings) -> Sequence[Mapping[str, np.ndarray]]:
    """The batches to feed, under tensor names."""
    if settings.feeds is None:
        return []
    if callable(settings.feeds):
        batches = [settings.feeds(i) for i in range(settings.feed_batches)]
    else:
        batches = [settings.feeds]
    named = [
        {(k if ":" in k else f"{k}:0"): np.asarray(v) for k, v in batch.items()}
        for batch in batches
    ]
    if any(set(batch) != set(named[0]) for batch in named):
        raise PlacerError("the feed function feeds other tensors in one batch than in another")
    return named
