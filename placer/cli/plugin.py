"""placer plugin install | remove | status

Installs the Grappler plugin where TensorFlow loads it by itself, removes it, or says where it is.
An installed plugin does nothing until a program activates a placement.
"""

from __future__ import annotations

from absl import flags

from placer.errors import PlacerError


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines the command's flags: none."""


def run(arguments: list[str], flag_values: flags.FlagValues) -> int:
    """Runs the command; returns the exit code."""
    if len(arguments) != 1 or arguments[0] not in ("install", "remove", "status"):
        given = " ".join(arguments) or "nothing"
        raise PlacerError(f"placer plugin takes install, remove or status; given: {given}")
    from placer.plugin import install, remove, status

    if arguments[0] == "install":
        print(f"installed {install()}")
    elif arguments[0] == "remove":
        print("removed" if remove() else "it was not installed")
    else:
        print(status())
    return 0
