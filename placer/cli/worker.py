"""placer worker --port PORT

Serves this machine's CPU as one device of --devices grpc://HOST:PORT,... until it is stopped.
Whoever reaches the port can run any op, so it listens on loopback unless --any_interface is given.
"""

from __future__ import annotations

import os
import signal
import sys

from absl import flags

from placer.errors import PlacerError


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    flags.DEFINE_integer(
        "port",
        None,
        "TCP port to listen on",
        lower_bound=1,
        upper_bound=65535,
        flag_values=flag_values,
    )
    flags.DEFINE_multi_integer(
        "core",
        [],
        "CPU core to be pinned to; repeat for several (default: one core, the port's number "
        "modulo the cores there are)",
        lower_bound=0,
        flag_values=flag_values,
    )
    flags.DEFINE_bool(
        "any_interface",
        False,
        "listen on every interface; whoever can reach the port can run code",
        flag_values=flag_values,
    )


def run(arguments: list[str], flag_values: flags.FlagValues) -> int:
    """Runs the command until a signal ends it."""
    if arguments:
        raise PlacerError(f"placer worker takes no arguments; given: {arguments[0]!r}")
    if flag_values.port is None:
        raise PlacerError("placer worker needs --port PORT")
    from placer.runtime.worker import preload_loopback, start_server

    if not flag_values.any_interface:
        preload_loopback()
    here = sorted(os.sched_getaffinity(0))
    cores = flag_values.core or [here[flag_values.port % len(here)]]
    lacking = [core for core in cores if core not in here]
    if lacking:
        raise PlacerError(f"--core {lacking[0]}: this process may use {', '.join(map(str, here))}")
    os.sched_setaffinity(0, cores)
    address = f"127.0.0.1:{flag_values.port}"
    # The session names the cluster and this worker's task in it; TensorFlow refuses a cluster
    # that uses the job's name from before.
    server = start_server({"unassigned": [address]}, "unassigned", 0, len(cores))
    where = "every interface" if flag_values.any_interface else "loopback only"
    print(
        f"worker on port {flag_values.port}, {where}, pinned to core "
        f"{', '.join(map(str, cores))}; Ctrl-C ends it",
        flush=True,
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        while True:
            signal.pause()
    finally:
        # TensorFlow cannot stop a server; the process's end does.
        del server
        sys.stdout.flush()
        os._exit(0)
