"""The runner's end of its process tree: starting, watching and ending child processes."""

from __future__ import annotations

import array
import contextlib
import dataclasses
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from placer.errors import PlacerError
from placer.runtime import wire
from placer.runtime.worker import loopback_library

_MESSAGE_BYTES = 1 << 16
_SUPERVISOR_GONE = "the process that measures is gone; open a new runner"
_START_SECONDS = 120.0
_KILLED_BY_KERNEL = "oom_kill"


@dataclasses.dataclass(eq=False)
class Child:
    """A worker or the driver.

    Attributes:
      label: what messages call it: "worker 1", "the driver".
      pid: process id.
      channel: the runner's end of a socket to it.
      exit_reason: how it ended, None while it runs.
      exit_signal: the signal that ended it, 0 if none did.
    """

    label: str
    pid: int
    channel: socket.socket
    exit_reason: str | None = None
    exit_signal: int = 0

    def state(self) -> str:
        """The kernel's one-letter process state ("T" is stopped), "X" if there is no process."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return "X"

    def cpu_seconds(self) -> float:
        """CPU time used so far."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def address_space_limit(self) -> int:
        """Its RLIMIT_AS in bytes, -1 without one."""
        import resource

        try:
            limit = resource.prlimit(self.pid, resource.RLIMIT_AS)[0]
        except OSError:
            return -1
        return -1 if limit == resource.RLIM_INFINITY else limit


class ProcessTree:
    """The supervisor and the children that it forked.

    Everything in it ends with `close`, and also when this process is killed.
    """

    def __init__(self, loopback: bool, use_gpus: bool):
        """Starts the supervisor.

        Args:
          loopback: servers that its children start listen on loopback only.
          use_gpus: its children may see GPUs.
        """
        self._children: list[Child] = []
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = dict(os.environ)
        # One thread, so that the supervisor can fork; ops get their threads from TensorFlow.
        for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            environment[name] = "1"
        environment["TF_CPP_MIN_LOG_LEVEL"] = "2"
        environment.pop("TF_CONFIG", None)
        root = str(Path(__file__).resolve().parents[2])
        environment["PYTHONPATH"] = os.pathsep.join(
            [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        if not use_gpus:
            environment["CUDA_VISIBLE_DEVICES"] = "-1"
        if loopback:
            preloaded = os.environ.get("LD_PRELOAD", "")
            environment["LD_PRELOAD"] = f"{loopback_library()} {preloaded}".strip()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "placer.runtime.supervisor"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                # Ctrl-C at the terminal is for the caller, who then closes the tree in order.
                start_new_session=True,
            )
        # Numbers of fork requests, and of those answered, their process ids.
        self._requests = 0
        self._forked: dict[int, int] = {}
        deadline = time.monotonic() + _START_SECONDS
        ready = False
        while not ready:
            message = self._receive(deadline - time.monotonic())
            if message is None:
                self.close()
                raise PlacerError(
                    "the process that measures did not start; try `python -c 'import tensorflow'`"
                )
            ready = "ready" in message

    @property
    def supervisor_pid(self) -> int:
        """Process id of the supervisor."""
        return self._process.pid

    @property
    def children(self) -> tuple[Child, ...]:
        """Children that were forked and not killed by `kill_all`."""
        return tuple(self._children)

    @property
    def control(self) -> socket.socket:
        """For select: readable when a child has ended."""
        return self._control

    def fork(self, label: str, role: str, config: dict[str, Any]) -> Child:
        """Forks a child and returns without waiting until it is ready.

        Args:
          label: what messages call it.
          role: "worker" or "driver".
          config: for `worker.serve`; {} for a driver.

        Raises:
          PlacerError: if the supervisor is gone.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            self._requests += 1
            request = self._requests
            command = json.dumps({"fork": role, "config": config, "request": request}).encode()
            descriptors = array.array("i", [theirs.fileno()])
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)]
            try:
                self._control.sendmsg([command], rights)
            except OSError:
                ours.close()
                raise PlacerError(_SUPERVISOR_GONE) from None
        deadline = time.monotonic() + _START_SECONDS
        # Answers to earlier requests are of children that nobody waited for (Ctrl-C); they end with
        # their channels.
        while request not in self._forked:
            if self._receive(deadline - time.monotonic()) is None:
                ours.close()
                raise PlacerError(_SUPERVISOR_GONE)
        child = Child(label, self._forked.pop(request), ours)
        self._forked.clear()
        self._children.append(child)
        return child

    def kill_all(self) -> None:
        """Kills every child and waits until they are gone."""
        for child in self._children:
            if child.exit_reason is None:
                with contextlib.suppress(OSError):
                    self._control.send(json.dumps({"kill": child.pid}).encode())
        deadline = time.monotonic() + _START_SECONDS
        while any(c.exit_reason is None for c in self._children):
            if self._receive(deadline - time.monotonic()) is None:
                break
        for child in self._children:
            child.channel.close()
        self._children.clear()

    def collect(self) -> None:
        """Takes in what the supervisor has reported."""
        while self._receive(0.0) is not None:
            pass

    def close(self) -> None:
        """Ends the tree; harmless when done twice."""
        self._control.close()
        for child in self._children:
            child.channel.close()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _receive(self, timeout: float) -> dict[str, Any] | None:
        """One message of the supervisor, None if none came in time or it is gone."""
        readable, _, _ = select.select([self._control], [], [], max(0.0, timeout))
        if not readable:
            return None
        try:
            data = self._control.recv(_MESSAGE_BYTES)
        except OSError:
            data = b""
        if not data:
            for child in self._children:
                child.exit_reason = child.exit_reason or f"{child.label} ended with its supervisor"
            return None
        message = json.loads(data)
        if "forked" in message:
            self._forked[message["request"]] = message["forked"]
        if "exited" in message:
            self._note_exit(message)
        return message

    def _note_exit(self, message: dict[str, Any]) -> None:
        for child in self._children:
            if child.pid != message["exited"]:
                continue
            status = message["status"]
            if os.WIFSIGNALED(status):
                number = os.WTERMSIG(status)
                child.exit_signal = number
                name = signal.Signals(number).name if number in set(signal.Signals) else ""
                reason = f"{child.label} was killed by signal {number} ({name})"
            else:
                reason = f"{child.label} ended with exit code {os.WEXITSTATUS(status)}"
            last = _last_line(message["stderr"])
            child.exit_reason = f"{reason}: {last}" if last else reason


def _last_line(text: str) -> str:
    """The line of a process's last words that says most, "" if it had none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [x for x in lines if "Check failed" in x or "bad_alloc" in x or "Error" in x]
    found = (telling or [x for x in lines if x.startswith("F")] or [""])[-1]
    return found[:300]


def wait_ready(children: list[Child], tree: ProcessTree) -> None:
    """Waits until each child has said that it is ready.

    Raises:
      PlacerError: naming the child that ended instead, or was not ready in time.
    """
    deadline = time.monotonic() + _START_SECONDS
    for child in children:
        while True:
            readable, _, _ = select.select([child.channel, tree.control], [], [], 0.5)
            tree.collect()
            if child.channel in readable:
                with contextlib.suppress(EOFError):
                    wire.receive(child.channel)
                    break
                time.sleep(0.05)
                tree.collect()
            if child.exit_reason is not None or time.monotonic() > deadline:
                raise PlacerError(child.exit_reason or f"{child.label} did not start in time")


def oom_kills() -> int:
    """How many processes the kernel's out-of-memory killer has killed so far, -1 if unknown."""
    try:
        for line in Path("/proc/vmstat").read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == _KILLED_BY_KERNEL:
                return int(value)
    except OSError:
        pass
    return -1
