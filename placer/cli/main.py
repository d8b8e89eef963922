"""Dispatches `placer COMMAND ...` to the command's module."""

from __future__ import annotations

import importlib
import importlib.metadata
import io
import os
import signal
import sys
from collections.abc import Sequence
from types import ModuleType

from absl import flags

from placer.errors import PlacerError

# Command -> what it does. Each is a module of placer.cli with a usage docstring,
# define_flags(flag_values) and run(arguments, flag_values) -> exit code.
COMMANDS = {
    "optimize": "find a placement of a graph and write the graph with its devices",
    "evaluate": "step time and memory of placed graphs, one row a file",
    "explain": "pictures, timeline and critical path of a placement",
    "compare": "measure two placements against each other",
    "devices": "the hardware catalogue and what is here",
    "methods": "the placers and their options",
    "calibrate": "measure launch overhead, links and contention of devices, write a topology",
    "profile": "measure op times of a graph, write an op profile",
    "worker": "serve as a worker for grpc:// devices",
    "plugin": "install, remove or show the Grappler plugin",
}

USAGE_ERROR = 2
INTERRUPTED = 130


def main(arguments: Sequence[str]) -> int:
    """Runs a command line without the program's name; returns the exit code.

    Whatever the person got wrong ends in one line on standard error and exit code 2.
    """
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        if len(arguments) > 1 and arguments[0] == "help":
            arguments = [arguments[1], "--help"]
        else:
            print(_overview())
            return 0 if arguments else USAGE_ERROR
    name, rest = arguments[0], list(arguments[1:])
    if name == "--version":
        print(f"placer {importlib.metadata.version('placer')}")
        return 0
    if name not in COMMANDS:
        return _fail(f"unknown command {name!r}; commands are {', '.join(COMMANDS)}")
    try:
        import_tensorflow_quietly()
        command = importlib.import_module(f"placer.cli.{name}")
        flag_values = flags.FlagValues()
        command.define_flags(flag_values)
        if any(a in ("-h", "--help") for a in rest):
            print(_help(command, flag_values))
            return 0
        positional = flag_values(["placer", *rest])[1:]
        return command.run(positional, flag_values)
    except PlacerError as error:
        return _fail(str(error))
    except flags.Error as error:
        return _fail(f"{error} (placer {name} --help lists the flags)")
    except KeyboardInterrupt as error:
        print("placer: interrupted" + "".join(f": {a}" for a in error.args), file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone; there is no one left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def run() -> None:
    """Entry point of the console script."""
    # A polite kill is treated as Ctrl-C: the best placement so far is written.
    signal.signal(signal.SIGTERM, _interrupt)
    # File names need not be text.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(main(sys.argv[1:]))


def import_tensorflow_quietly() -> None:
    """Imports TensorFlow without the banner that its libraries write to standard error."""
    if "tensorflow" in sys.modules:
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        importlib.import_module("tensorflow")
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def _fail(text: str) -> int:
    print("placer: " + " ".join(text.split()), file=sys.stderr)
    return USAGE_ERROR


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items()]
    return "\n".join(
        ["usage: placer COMMAND ...", "", *lines, "", "placer COMMAND --help says more."]
    )


def _help(command: ModuleType, flag_values: flags.FlagValues) -> str:
    lines = [(command.__doc__ or "").strip(), "", "flags:"]
    for name in sorted(flag_values):
        flag = flag_values[name]
        default = "" if flag.default is None else f" (default: {flag.default_as_str})"
        lines.append(f"  --{flag.name}: {flag.help}{default}")
    return "\n".join(lines)
