"""Result files: what was found, by which command, commit and machine."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import io
import json
import math
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.experiment import Outcome
from placer.errors import PlacerError
from placer.files import write_atomically

_PACKAGES = ("placer", "tensorflow", "keras", "numpy", "pandas", "scotchpy64", "pymetis")


def describe_machine() -> dict[str, Any]:
    """What the timings depend on: processor, cores that may be used, memory, system."""
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (OSError, ValueError):
        memory = math.nan
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory_gib": round(memory, 1),
        "system": f"{platform.system()} {platform.release()}",
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def describe_versions() -> dict[str, str]:
    """Python and the packages that a result depends on."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def describe_commit() -> str:
    """Commit of the sources, "+changes" after it if tracked files differ; "" outside Git."""

    def git(*arguments: str) -> str:
        try:
            done = subprocess.run(
                ["git", *arguments],
                cwd=Path(__file__).parent,
                capture_output=True,
                text=True,
                timeout=20,
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    commit = git("rev-parse", "HEAD")
    changed = git("status", "--porcelain", "--untracked-files=no")
    return commit + ("+changes" if commit and changed else "")


def describe_run() -> dict[str, Any]:
    """Commit, machine and versions, to be asked for before an experiment changes the load."""
    return {
        "commit": describe_commit(),
        "machine": describe_machine(),
        "versions": describe_versions(),
    }


def write_outcome(
    directory: str | os.PathLike[str],
    name: str,
    command: Sequence[str],
    settings: Any,
    outcome: Outcome,
    seconds: float,
    run: dict[str, Any],
) -> list[Path]:
    """Writes <name>.json, a CSV a table, figures and other files, each atomically.

    Args:
      directory: where to; made if it does not exist.
      name: of the experiment.
      command: words of the command line.
      settings: frozen dataclass.
      outcome: what was found.
      seconds: how long it took.
      run: `describe_run` of when it began.

    Returns:
      the files, the JSON file first.

    Raises:
      PlacerError: if one cannot be written.
    """
    directory = Path(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlacerError(f"cannot make directory {directory}: {error.strerror}") from None
    record = {
        "experiment": name,
        "command": list(command),
        "settings": dataclasses.asdict(settings),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        **run,
        "notes": list(outcome.notes),
        "failures": list(outcome.failures),
    }
    tables = {key: _records(frame) for key, frame in outcome.tables.items()}
    files = {f"{name}.json": _json(record, tables).encode()}
    for i, (key, frame) in enumerate(outcome.tables.items()):
        stem = name if i == 0 else f"{name}-{key}"
        files[f"{stem}.csv"] = frame.to_csv(index=False).encode()
    for key, figure in outcome.figures.items():
        for kind in ("png", "svg"):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, bbox_inches="tight", dpi=120)
            files[f"{name}-{key}.{kind}"] = buffer.getvalue()
    files.update({f"{name}-{key}": data for key, data in outcome.files.items()})
    paths = []
    for file, data in files.items():
        write_atomically(directory / file, data)
        paths.append(directory / file)
    return paths


def _json(record: dict[str, Any], tables: dict[str, list[dict[str, Any]]]) -> str:
    """`record` with "tables" added, each row of which has one line."""

    def text(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, indent=indent, allow_nan=False, default=_plain)

    def rows(table: list[dict[str, Any]]) -> str:
        return "[\n   " + ",\n   ".join(map(text, table)) + "\n  ]" if table else "[]"

    tables_text = ",\n".join(f"  {text(key)}: {rows(table)}" for key, table in tables.items())
    return f'{text(record, 1)[:-2]},\n "tables": {{\n{tables_text}\n }}\n}}\n'


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [
        {str(key): _plain(value) for key, value in row.items()}
        for row in frame.to_dict(orient="records")
    ]


def _plain(value: Any) -> Any:
    """As JSON can hold it: infinities become "inf", what is missing becomes null."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, Path):
        return str(value)
    return value
