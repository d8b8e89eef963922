"""TensorFlow's device names, full and partial."""

from __future__ import annotations

import re
from collections.abc import Sequence

from placer.errors import PlacerError

# A device's name in full.
DEVICE_NAME = re.compile(
    r"/job:(?P<job>[a-zA-Z][a-zA-Z0-9_]*)/replica:(?P<replica>\d+)/task:(?P<task>\d+)"
    r"/device:(?P<type>[A-Za-z_]+):(?P<index>\d+)"
)
_SPEC_PART = re.compile(
    r"/(?:(job):([a-zA-Z][a-zA-Z0-9_]*|\*)|(replica|task):(\d+|\*)"
    r"|device:([A-Za-z_]+|\*)(?::(\d+|\*))?|((?i:cpu|gpu)|\*)(?::(\d+|\*))?)"
)


def short_device_names(names: Sequence[str]) -> tuple[str, ...]:
    """GPU:0 for each full name, with the task's number in front (1/GPU:0) if there are several.

    Jobs and replicas are named where there are several of them: ps:0/CPU:0, 1.0/GPU:0.
    """
    matches = [DEVICE_NAME.fullmatch(name) for name in names]
    parts = [match.groupdict() for match in matches if match is not None]
    if len(parts) < len(names):
        return tuple(names)
    several = {key: len({p[key] for p in parts}) > 1 for key in ("job", "replica", "task")}
    short = []
    for p in parts:
        task = f"{p['replica']}.{p['task']}" if several["replica"] else p["task"]
        task = f"{p['job']}:{task}" if several["job"] else task
        device = f"{p['type']}:{p['index']}"
        short.append(f"{task}/{device}" if any(several.values()) else device)
    return tuple(short)


def parse_device_spec(spec: str) -> dict[str, str]:
    """Parses a full or partial TensorFlow device name to its fixed fields.

    Args:
      spec: such as "/job:ps/task:0", "/GPU:*", "/device:CPU:0", "/" or "".

    Returns:
      The fields given without a wildcard: any of job, replica, task, type, index.

    Raises:
      PlacerError: if it is not a device name in TensorFlow's syntax
        (tensorflow/core/util/device_name_utils.cc).
    """
    fields: dict[str, str] = {}
    position = 0
    # A slash alone is any device, but no part of a name.
    while position < len(spec) and spec != "/":
        match = _SPEC_PART.match(spec, position)
        if match is None:
            raise PlacerError(
                f"device {spec!r} is not a TensorFlow device name; "
                'write it like "/job:worker/task:0/device:GPU:1"'
            )
        position = match.end()
        job, job_name, number, value, kind, index, short, short_index = match.groups()
        if job:
            if job_name != "*":
                fields["job"] = job_name
        elif number:
            if value != "*":
                fields[number] = str(int(value))
        else:
            kind, index = (kind, index) if kind else (short, short_index)
            if kind != "*":
                fields["type"] = kind.upper()
            if index not in (None, "*"):
                fields["index"] = str(int(index))
    return fields
