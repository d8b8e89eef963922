"""placer compare GRAPH A B --devices SPEC

Measures two placements of GRAPH in turns (A B, B A, ...) and prints their step times and the
confidence interval of the ratio. A and B are copies of the graph with devices, or placement files.
"""

from __future__ import annotations

from absl import flags

from placer.cli import common_flags
from placer.errors import PlacerError


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    common_flags.define_graph_flags(flag_values, costs=False)
    flags.DEFINE_integer("rounds", 4, "sessions of each", lower_bound=2, flag_values=flag_values)
    flags.DEFINE_integer(
        "steps", 10, "timed steps a session", lower_bound=1, flag_values=flag_values
    )
    flags.DEFINE_float(
        "confidence",
        0.95,
        "of the interval",
        lower_bound=0.5,
        upper_bound=0.9999,
        flag_values=flag_values,
    )


def run(arguments: list[str], flag_values: flags.FlagValues) -> int:
    """Runs the command; returns the exit code."""
    if len(arguments) != 3:
        raise PlacerError(f"placer compare takes GRAPH A B; given {len(arguments)} arguments")
    from placer.evaluate import read_placement
    from placer.pipeline import prepare
    from placer.runtime import open_runner
    from placer.runtime.comparison import compare

    prepared = prepare(
        arguments[0],
        flag_values.fetch,
        flag_values.devices,
        clear_devices=flag_values.clear_devices,
    )
    a, b = (read_placement(path, prepared.problem) for path in arguments[1:])
    with open_runner(prepared.devices, prepared.to_run) as runner:
        result = compare(
            runner,
            a,
            b,
            rounds=flag_values.rounds,
            steps=flag_values.steps,
            confidence=flag_values.confidence,
        )
    for name, path, seconds in (
        ("A", arguments[1], result.a_seconds),
        ("B", arguments[2], result.b_seconds),
    ):
        print(f"{name}  {1e3 * seconds:10.3f} ms a step  {path}")
    print(
        f"A / B  {result.ratio:.4f}, {100 * result.confidence:g} % interval "
        f"{result.low:.4f} to {result.high:.4f}"
    )
    print(result.verdict)
    for measurement in (*result.a, *result.b):
        for fault in measurement.faults:
            print(f"repeated: {fault}")
    return 0
