"""A worker: a TensorFlow gRPC server pinned to its cores."""

from __future__ import annotations

import contextlib
import importlib.machinery
import os
import re
import resource
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from placer.devices.here import worker_threads
from placer.errors import PlacerError
from placer.runtime import heap, wire


def loopback_library() -> Path:
    """The library which, preloaded, has servers listen on loopback instead of everywhere.

    Raises:
      PlacerError: if the installation has not built it.
    """
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_loopback{suffix}")
        if path.exists():
            if re.search(r"[\s:]", str(path)):
                raise PlacerError(
                    f"{path} cannot be preloaded, for the dynamic loader takes no path with spaces "
                    "or colons; install Placer elsewhere"
                )
            return path
    raise PlacerError(
        "placer.runtime._loopback is not built, and without it TensorFlow's workers would listen "
        "on every interface; install Placer with pip (it needs a C compiler)"
    )


def preload_loopback() -> None:
    """Starts this program anew with `loopback_library` preloaded, unless it is already."""
    library = str(loopback_library())
    preloaded = os.environ.get("LD_PRELOAD", "")
    if library in preloaded.split():
        check_loopback()
        return
    os.environ["LD_PRELOAD"] = f"{library} {preloaded}".strip()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def check_loopback() -> None:
    """Raises PlacerError if `loopback_library` is not loaded: servers would listen everywhere."""
    library = os.path.realpath(loopback_library())
    if library not in Path("/proc/self/maps").read_text():
        raise PlacerError(f"the dynamic loader has not preloaded {library}; set no LD_PRELOAD")


def start_server(cluster: dict[str, Sequence[str]], job: str, task: int, cores: int) -> Any:
    """Starts a tf.distribute.Server for as many cores.

    From here on the process keeps the memory that it frees (see placer.runtime.heap).

    It runs ops with one thread more than that. Requests for tensors queue up for the same threads
    behind all ops that are ready (GrpcWorkerServiceThread::Schedule in
    tensorflow/core/distributed_runtime/rpc/grpc_worker_service.cc), and a pool of one thread, which
    takes its own newest work first, answers them only when it has nothing left to run: the other
    worker waits for a tensor that has long been there. The thread more answers them at once.

    Args:
      cluster: job name -> host:port of each task.
      job: this server's job.
      task: this server's task, which names the port to listen on.
      cores: that the calling process is pinned to.

    Raises:
      PlacerError: if the port is taken or the cluster has no such task.
    """
    import tensorflow as tf

    heap.keep_freed_pages()
    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=cores,
        inter_op_parallelism_threads=worker_threads(cores),
        device_count={"CPU": 1, "GPU": 0},
    )
    # Step times would include another process's work on the same cores if workers spun.
    config.experimental.disable_thread_spinning = True
    try:
        return tf.distribute.Server(
            tf.train.ClusterSpec({name: list(tasks) for name, tasks in cluster.items()}),
            job_name=job,
            task_index=task,
            config=config,
        )
    except (tf.errors.OpError, ValueError) as error:
        where = cluster[job][task] if job in cluster and task < len(cluster[job]) else "?"
        raise PlacerError(
            f"cannot start worker {task} at {where}: {str(error).splitlines()[0]}"
        ) from None


def serve(config: dict[str, Any], channel: socket.socket) -> None:
    """Runs a worker in a forked child until the runner closes `channel`.

    Args:
      config: "addresses" of all workers, "task", "cores" to be pinned to, and
        "address_space_bytes", a limit or None.
      channel: where to say {"ready": task}; each message that comes has the worker give back the
        memory that it keeps.
    """
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, config["cores"])
    if config["address_space_bytes"]:
        limit = config["address_space_bytes"]
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    check_loopback()
    server = start_server(
        {"worker": config["addresses"]}, "worker", config["task"], len(config["cores"])
    )
    wire.send(channel, {"ready": config["task"]})
    try:
        while True:
            wire.receive(channel)  # raises EOFError when the runner closes it
            heap.release_freed_pages()
    finally:
        del server
