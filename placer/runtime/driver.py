"""The driver: the process that holds the TensorFlow session and runs the steps.

It outlives placements, and so keeps what they share: the graph, without devices, and the values
of variables. A placement arrives as an array of device indices.

Messages it takes (see wire):
  {"do": "load", ...}     the program; parts: GraphDef, owner int32[M], then TensorProtos of values
  {"do": "measure", ...}  one placement; parts: int32[N], then TensorProtos of feeds
  {"do": "canary"}        time a small computation on every device
It answers "load" and "canary" with one message and "measure" with one a stage, so that whoever
waits can tell a hang from a long run: {"built": s}, {"initialised": s}, {"step": s}..., and last
{"done": ...} with the RunMetadata of each traced step. {"error": ...} may come at any time.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from placer.runtime import wire
from placer.runtime.measurement import MeasurementProtocol, standard_error

if TYPE_CHECKING:
    import tensorflow as tf

# The canary multiplies matrices of this size this often: some 6 ms on one core.
CANARY_SIZE = 128
CANARY_LENGTH = 200


def session_config(logical_cpus: int = 0, cluster: Sequence[str] = ()) -> Any:
    """The ConfigProto of every measuring session.

    Grappler and the graph optimizer are off, so that the ops that run, and the step stats that
    name them, are those that were placed. Soft placement is off. Variables belong to the session
    and go with it.

    Args:
      logical_cpus: with a session in this process, how many CPU devices it has.
      cluster: addresses of /job:worker, for workers that do not know each other yet.
    """
    import tensorflow as tf

    config = tf.compat.v1.ConfigProto(
        allow_soft_placement=False, isolate_session_state=True, log_device_placement=False
    )
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = -1  # L0
    if logical_cpus:
        config.device_count["CPU"] = logical_cpus
    config.gpu_options.allow_growth = True
    if cluster:
        job = config.cluster_def.job.add(name="worker")
        for task, address in enumerate(cluster):
            job.tasks[task] = address
    return config


class Driver:
    """Runs one program's placements, one at a time."""

    def __init__(self, channel: socket.socket):
        self._channel = channel
        self._config: dict[str, Any] = {}
        self._owner = np.zeros(0, np.int32)
        self._graph_def: Any = None
        self._ops: list[tf.Operation] = []
        self._nothing: tf.Operation | None = None
        self._values: list[Any] = []
        self._canary: list[Callable[[], Any]] = []
        self._canary_sessions: list[tf.compat.v1.Session] = []

    def serve(self) -> None:
        """Answers messages until the channel closes."""
        import tensorflow as tf

        actions = {"load": self._load, "measure": self._measure, "canary": self._run_canary}
        while True:
            header, parts = wire.receive(self._channel)
            try:
                actions[header["do"]](header, parts)
            except tf.errors.OpError as error:
                self._fail(type(error).__name__, error.message or "", header)
            except (ValueError, TypeError, KeyError, RuntimeError, MemoryError, OSError) as error:
                self._fail(type(error).__name__, str(error), header)

    def _tell(self, message: dict[str, Any], *parts: bytes) -> None:
        wire.send(self._channel, message, *parts)

    def _fail(self, kind: str, text: str, header: dict[str, Any]) -> None:
        self._tell({"error": kind, "message": text[:20000], "do": header["do"]})

    def _load(self, header: dict[str, Any], parts: list[bytes]) -> None:
        import tensorflow as tf

        self._config = header
        self._graph_def = tf.compat.v1.GraphDef.FromString(parts[0])
        self._ops = []
        self._owner = np.frombuffer(parts[1], np.int32)
        self._values = [_array(p) for p in parts[2:]]
        self._tell({"loaded": len(self._graph_def.node)})

    def _new_session(self, graph: tf.Graph, target: str) -> tf.compat.v1.Session:
        import tensorflow as tf

        config = session_config(self._config["logical_cpus"], self._config["cluster"])
        return tf.compat.v1.Session(target, graph=graph, config=config)

    def _build(self, placement: np.ndarray) -> tf.compat.v1.Session:
        """A session that has taken the graph on these devices; the graph is imported once."""
        import tensorflow as tf

        names = self._config["devices"]
        if not self._ops:
            graph = tf.Graph()
            with graph.as_default():
                tf.import_graph_def(self._graph_def, name="")
                with tf.device(names[0]):
                    self._nothing = tf.no_op()
            self._ops = [graph.get_operation_by_name(n.name) for n in self._graph_def.node]
        # Set one by one: an import would move an op to what it is colocated with, rather than fail.
        for op, device in zip(self._ops, placement[self._owner].tolist(), strict=True):
            if op.device != names[device]:
                op._set_device(names[device])
        session = self._new_session(self._ops[0].graph, self._config["target"])
        try:
            # TensorFlow sends and places the graph when something is run first.
            session.run(self._nothing)
        except BaseException:
            with contextlib.suppress(tf.errors.OpError):
                session.close()
            raise
        return session

    def _initialize(self, session: tf.compat.v1.Session) -> None:
        for group in self._config["initializers"]:
            session.run([session.graph.get_operation_by_name(n) for n in group])
        # One at a time: the request that carries a value must not outgrow a message.
        for (feed, assign), value in zip(self._config["assigned"], self._values, strict=True):
            session.run(session.graph.get_operation_by_name(assign), {feed: value})

    def _measure(self, header: dict[str, Any], parts: list[bytes]) -> None:
        import tensorflow as tf

        protocol = MeasurementProtocol(**header["protocol"])
        placement = np.frombuffer(parts[0], np.int32)
        feeds = [_array(p) for p in parts[1:]]
        start = time.perf_counter()
        session = self._build(placement)
        try:
            self._tell({"built": time.perf_counter() - start})
            start = time.perf_counter()
            self._initialize(session)
            self._tell({"initialised": time.perf_counter() - start})
            step = self._step(session, feeds)
            warm_up = [self._timed(step) for _ in range(protocol.warm_up)]
            before = self._worker_cpu()
            steps, stopped = self._steps(step, protocol, header["best"])
            used = [(b - a) / len(steps) for a, b in zip(before, self._worker_cpu(), strict=True)]
            done = {"done": steps, "warm_up": warm_up, "stopped_early": stopped, "cpu": used}
            traced = []
            for i in range(header["traced_steps"]):
                traced.append(self._traced(session, feeds))
                self._tell({"traced": i})
            self._tell(done, *traced)
        finally:
            with contextlib.suppress(tf.errors.OpError):
                session.close()

    def _step(
        self,
        session: tf.compat.v1.Session,
        feeds: Sequence[np.ndarray],
        options: Any = None,
        metadata: Any = None,
    ) -> Callable[[], Any]:
        targets = [session.graph.get_operation_by_name(n) for n in self._config["targets"]]
        names = self._config["feeds"]
        if not names and options is None:
            return session.make_callable(targets)
        # `feeds` holds whole batches, one after another; steps take turns.
        batches: Iterator[dict[str, np.ndarray]] = _cycle(
            [
                dict(zip(names, feeds[i : i + len(names)], strict=True))
                for i in range(0, len(feeds), max(1, len(names)))
            ]
            or [{}]
        )
        return lambda: session.run(targets, next(batches), options, metadata)

    def _worker_cpu(self) -> list[float]:
        """CPU seconds that each worker has used so far; [] if workers run elsewhere."""
        return [time.clock_gettime(_process_clock(pid)) for pid in self._config["worker_pids"]]

    def _traced(self, session: tf.compat.v1.Session, feeds: Sequence[np.ndarray]) -> bytes:
        import tensorflow as tf

        metadata = tf.compat.v1.RunMetadata()
        options = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
        self._step(session, feeds, options, metadata)()
        return metadata.SerializeToString()

    def _timed(self, step: Callable[[], Any]) -> float:
        start = time.perf_counter()
        step()
        seconds = time.perf_counter() - start
        self._tell({"step": seconds})
        return seconds

    def _steps(
        self, step: Callable[[], Any], protocol: MeasurementProtocol, best: float | None
    ) -> tuple[list[float], bool]:
        steps: list[float] = []
        for repeat in range(protocol.repeats + 1):
            for _ in range(protocol.steps):
                steps.append(self._timed(step))
                limit = protocol.stop_ratio * (best or 0.0)
                if limit and len(steps) >= min(2, protocol.steps) and min(steps) > limit:
                    return steps, True
            if repeat == protocol.repeats or not best or len(steps) < 2:
                break
            if abs(float(np.median(steps)) - best) > 2 * standard_error(steps):
                break
        return steps, False

    def _run_canary(self, header: dict[str, Any], parts: list[bytes]) -> None:
        del parts
        if not self._canary:
            self._make_canary()
        seconds = []
        for run in self._canary:
            times = []
            for _ in range(header["runs"]):
                start = time.perf_counter()
                run()
                times.append(time.perf_counter() - start)
            seconds.append(sum(times) / len(times))
        self._tell({"canary": seconds})

    def _make_canary(self) -> None:
        """Makes a computation for every device, with a master of its own where it can have one.

        With one master for all, a slow master would make every device look slow.
        """
        import tensorflow as tf

        for name, target in zip(
            self._config["devices"], self._config["canary_targets"], strict=True
        ):
            with tf.Graph().as_default() as graph, tf.device(name):
                product = fixed = tf.fill([CANARY_SIZE, CANARY_SIZE], 1.0 / CANARY_SIZE)
                for _ in range(CANARY_LENGTH):
                    product = tf.matmul(product, fixed)
            session = self._new_session(graph, target)
            self._canary_sessions.append(session)
            self._canary.append(session.make_callable(product.op))
        for run in self._canary:
            run()


def _process_clock(pid: int) -> int:
    """Linux's id of another process's CPU clock, as clock_getcpuclockid(3) makes it."""
    return (~pid << 3) | 2


def _cycle(batches: Sequence[dict[str, np.ndarray]]) -> Iterator[dict[str, np.ndarray]]:
    while True:
        yield from batches


def _array(data: bytes) -> np.ndarray:
    import tensorflow as tf
    from tensorflow.core.framework import tensor_pb2

    return tf.make_ndarray(tensor_pb2.TensorProto.FromString(data))


def serve(channel: socket.socket) -> None:
    """Runs a driver in a forked child until the runner closes `channel`."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    wire.send(channel, {"ready": "driver"})
    Driver(channel).serve()
