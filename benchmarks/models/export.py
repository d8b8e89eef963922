"""Writes training graphs to files."""

import dataclasses
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.models.registry import MODELS, Parameter, build
from benchmarks.models.statistics import GraphStatistics, graph_statistics
from placer.errors import PlacerError
from placer.files import check_writable, write_atomically


@dataclasses.dataclass(frozen=True)
class ExportedModel:
    """A graph that was written.

    Attributes:
      title: the model's name for tables.
      path: the file, a binary MetaGraphDef.
      statistics: its size.
      build_seconds: how long building it took.
    """

    title: str
    path: Path
    statistics: GraphStatistics
    build_seconds: float


def export_models(
    directory: str | os.PathLike[str],
    names: Sequence[str] = (),
    size: str = "paper",
    **overrides: Parameter,
) -> Iterator[ExportedModel]:
    """Builds models and writes each to `directory`/<name>-<size>.pb, atomically.

    Args:
      directory: made if it does not exist.
      names: keys of `MODELS`; all if empty.
      size: `paper`, `small` or `tiny`.
      **overrides: parameters for `build`.

    Yields:
      each model when it is written.

    Raises:
      PlacerError: unknown model or size, or a file that cannot be written; names, size and
        files are checked before anything is built.
    """
    names = list(names) or list(MODELS)
    for name in names:
        if name not in MODELS:
            raise PlacerError(f"no model {name!r}: choose one of {', '.join(sorted(MODELS))}")
        MODELS[name].resolve(size, overrides)
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        raise PlacerError(f"cannot make directory {directory}: {error.strerror}") from None
    paths = [Path(directory) / f"{name}-{size}.pb" for name in names]
    for path in paths:
        check_writable(path)
    for name, path in zip(names, paths, strict=True):
        start = time.perf_counter()
        meta_graph = build(name, size, **overrides)
        seconds = time.perf_counter() - start
        write_atomically(path, meta_graph.SerializeToString(deterministic=True))
        yield ExportedModel(MODELS[name].title, path, graph_statistics(meta_graph), seconds)
