"""The process that forks workers and drivers, and takes them along when it dies.

The runner starts one supervisor (`python -m placer.runtime.supervisor`) and holds a socket to
it. The supervisor imports TensorFlow once, without starting its runtime, and forks on demand, so
a replacement for a dead worker is up in milliseconds. When the socket closes, because the runner
closed it or was killed, the supervisor kills its children and ends. When the supervisor itself is
killed, the kernel kills the children (PR_SET_PDEATHSIG), stopped ones included.

Messages it takes, with one file descriptor (a socket to the runner) for the child:
  {"fork": "worker" | "driver", "config": {...}, "request": n} -> {"forked": pid, "request": n}
  {"kill": pid}
and what it sends on its own: {"exited": pid, "status": wait status, "stderr": last lines}.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
import traceback
from typing import Any

_PR_SET_PDEATHSIG = 1
_STDERR_BYTES = 4000
# Room for one command; commands are small.
_COMMAND_BYTES = 1 << 16


def die_with_parent(parent: int) -> None:
    """Has the kernel kill this process when `parent`, its parent process, ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _child(role: str, config: dict[str, Any], channel: socket.socket) -> None:
    if role == "worker":
        from placer.runtime import worker

        worker.serve(config, channel)
    else:
        from placer.runtime import driver

        driver.serve(channel)


class Supervisor:
    """Forks and reaps children; one thread, so forking is safe."""

    def __init__(self, control: socket.socket):
        self._control = control
        self._parent = os.getppid()
        self._stderr: dict[int, int] = {}

    def run(self) -> None:
        """Serves until the runner is gone."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        os.set_blocking(wake_read, False)
        signal.set_wakeup_fd(wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._end())
        self._tell({"ready": os.getpid()})
        control = self._control.fileno()
        while True:
            readable, _, _ = select.select([control, wake_read], [], [], 1.0)
            if wake_read in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_read, 4096)
            self._reap()
            # A runner that forked without exec may have left a copy of its end of the socket.
            if os.getppid() != self._parent:
                self._end()
            if control in readable:
                self._command()

    def _command(self) -> None:
        try:
            data, ancillary, _, _ = self._control.recvmsg(
                _COMMAND_BYTES, socket.CMSG_SPACE(array.array("i", [0]).itemsize)
            )
        except ConnectionError:
            data, ancillary = b"", []
        if not data:
            self._end()
        descriptors = array.array("i")
        for _, _, payload in ancillary:
            descriptors.frombytes(payload)
        command = json.loads(data)
        if "kill" in command:
            if command["kill"] in self._stderr:
                os.kill(command["kill"], signal.SIGKILL)
            return
        channel = socket.socket(fileno=descriptors[0])
        pid = self._fork(command["fork"], command["config"], channel)
        self._tell({"forked": pid, "request": command["request"]})
        channel.close()

    def _fork(self, role: str, config: dict[str, Any], channel: socket.socket) -> int:
        messages = os.memfd_create("stderr")
        supervisor = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                die_with_parent(supervisor)
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                self._control.close()
                os.dup2(messages, 2)
                _child(role, config, channel)
                status = 0
            except EOFError:
                status = 0
            except BaseException:
                traceback.print_exc()
                status = 1
            sys.stderr.flush()
            os._exit(status)
        self._stderr[pid] = messages
        return pid

    def _reap(self) -> None:
        while self._stderr:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            messages = self._stderr.pop(pid)
            size = os.fstat(messages).st_size
            start = max(0, size - _STDERR_BYTES)
            text = os.pread(messages, _STDERR_BYTES, start).decode(errors="replace")
            os.close(messages)
            self._tell({"exited": pid, "status": status, "stderr": text})

    def _tell(self, message: dict[str, Any]) -> None:
        # The control socket keeps message boundaries (SOCK_SEQPACKET).
        try:
            self._control.send(json.dumps(message).encode())
        except OSError:
            self._end()

    def _end(self) -> None:
        for pid in self._stderr:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self._stderr:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        os._exit(0)


def main() -> None:
    """Serves the runner at the other end of standard input."""
    control = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    # Imported here, before any fork, and without touching a device: forked children share it.
    _import_tensorflow()
    Supervisor(control).run()


def _import_tensorflow() -> None:
    import tensorflow  # noqa: F401

    from placer.runtime import driver, worker  # noqa: F401


if __name__ == "__main__":
    main()
