"""Writes the benchmark models to files: `python -m benchmarks.models --export DIR`."""

import sys
from collections.abc import Sequence

from absl import app, flags

from benchmarks.models.export import export_models
from benchmarks.models.registry import MODELS
from placer.errors import PlacerError

_EXPORT = flags.DEFINE_string("export", "", "Directory to write <model>-<size>.pb to.")
_MODEL = flags.DEFINE_multi_enum(
    "model", [], sorted(MODELS), "Model to write; may be repeated. All of them by default."
)
_SIZE = flags.DEFINE_enum("size", "paper", ["paper", "small", "tiny"], "Size of the models.")


def main(arguments: Sequence[str]) -> int:
    """Exports the models that the flags ask for and prints a table of them."""
    if len(arguments) > 1:
        print(f"unexpected argument {arguments[1]!r}: models go to --model", file=sys.stderr)
        return 2
    if not _EXPORT.value:
        print("--export is missing: give the directory to write to", file=sys.stderr)
        return 2
    header = ("model", "nodes", "executed", "variables", "MB", "build s")
    print("{:14s} {:>7s} {:>8s} {:>9s} {:>9s} {:>8s}  file".format(*header), flush=True)
    try:
        for model in export_models(_EXPORT.value, _MODEL.value, _SIZE.value):
            counts = model.statistics
            print(
                f"{model.title:14s} {counts.nodes:7d} {counts.executed_ops:8d} "
                f"{counts.variables:9d} {counts.variable_bytes / 1e6:9.1f} "
                f"{model.build_seconds:8.1f}  {model.path}",
                flush=True,
            )
    except PlacerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    app.run(main)
