"""placer optimize GRAPH --devices SPEC --output FILE

Finds a placement of GRAPH (a GraphDef or MetaGraphDef, binary or text) on the devices and writes
the graph with its devices to FILE. Ctrl-C ends the search and writes the best placement so far.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from absl import flags

from placer import interrupts
from placer.cli import common_flags
from placer.cli.progress import Progress, format_seconds
from placer.cli.tables import print_rows
from placer.errors import PlacerError
from placer.files import check_directory, check_distinct, check_writable, write_atomically

if TYPE_CHECKING:
    import pandas as pd


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    common_flags.define_graph_flags(flag_values)
    flags.DEFINE_string("output", None, "file for the placed graph", flag_values=flag_values)
    flags.DEFINE_string(
        "placement", None, "file for the placement alone (.pb or .pbtxt)", flag_values=flag_values
    )
    flags.DEFINE_string(
        "history",
        None,
        "file for the history: a table (.csv) or a picture (.png, .svg, .pdf)",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "tensorboard",
        None,
        "directory for the history as TensorBoard events",
        flag_values=flag_values,
    )
    flags.DEFINE_float(
        "budget", 60.0, "seconds that the search may take", lower_bound=0, flag_values=flag_values
    )
    flags.DEFINE_integer(
        "evaluations",
        None,
        "placements to evaluate at most; those that the result is compared with always are",
        1,
        flag_values=flag_values,
    )
    flags.DEFINE_integer("seed", 0, "of all random choices", flag_values=flag_values)
    flags.DEFINE_string(
        "method", "auto", "auto, policy, or a placer of `placer methods`", flag_values=flag_values
    )
    flags.DEFINE_multi_string(
        "method_option", [], "NAME=VALUE of the method", flag_values=flag_values
    )
    flags.DEFINE_string(
        "preset",
        None,
        "with --method policy: modern or icml2017 (the paper's); short for "
        "--method_option preset=NAME",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "reward",
        "simulate",
        "simulate; measure: run every placement on the devices; both: search in the simulator, "
        "run what is promising, keep the best run",
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "max_groups",
        256,
        "op groups that policies read, about: ops that may use other devices than most make more",
        1,
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "checkpoint_dir", None, "where the policy keeps checkpoints", flag_values=flag_values
    )
    flags.DEFINE_boolean(
        "schedule",
        False,
        "add control edges between ops of one device where they make the simulated step faster",
        flag_values=flag_values,
    )


def run(arguments: list[str], flag_values: flags.FlagValues) -> int:
    """Runs the command; returns the exit code."""
    from placer import report
    from placer.optimizer import optimize

    graph = common_flags.one_graph(arguments, "optimize")
    if flag_values.output is None and flag_values.placement is None:
        raise PlacerError("give --output FILE for the placed graph")
    written = (flag_values.output, flag_values.placement, flag_values.history)
    files = [path for path in written if path is not None]
    for path in files:
        check_writable(path)
    check_distinct(files)
    for directory in (flag_values.tensorboard, flag_values.checkpoint_dir):
        if directory is not None:
            check_directory(directory)
    if flag_values.history is not None and not flag_values.history.endswith(".csv"):
        report.check_picture(flag_values.history)
    options = list(flag_values.method_option)
    if flag_values.preset is not None:
        options.insert(0, f"preset={flag_values.preset}")
    try:
        with Progress() as progress:
            result = optimize(
                graph,
                flag_values.fetch,
                flag_values.devices,
                flag_values.budget,
                flag_values.seed,
                method=flag_values.method,
                reward=flag_values.reward,
                method_options=options,
                max_groups=flag_values.max_groups,
                evaluations=flag_values.evaluations,
                clear_devices=flag_values.clear_devices,
                profile=flag_values.profile,
                trip_counts=common_flags.trip_counts(flag_values),
                checkpoint_dir=flag_values.checkpoint_dir,
                schedule=flag_values.schedule,
                on_progress=progress,
            )
    except KeyboardInterrupt:
        raise KeyboardInterrupt("nothing was found yet, nothing is written") from None
    if result.failure:
        print(f"placer: the search ended early: {result.failure}", file=sys.stderr)
    with interrupts.ignored():
        if flag_values.output is not None:
            result.save(flag_values.output)
        if flag_values.placement is not None:
            result.placement.save(flag_values.placement)
        if flag_values.history is not None:
            _write_history(result.history, flag_values.history)
        if flag_values.tensorboard is not None:
            report.write_tensorboard(result.history, flag_values.tensorboard)
    print_rows(result.rows, result.problem.topology, f"{graph} on {flag_values.devices}")
    print(result.cost_summary())
    measured = result.measured_seconds
    seconds = result.step_seconds if measured is None else measured
    if flag_values.schedule:
        print(f"{len(result.placement.control_edges)} control edges added")
    print(
        f"{'interrupted after' if result.interrupted else 'searched'} {result.seconds:.1f} s, "
        f"{result.evaluations} placements; step time {format_seconds(seconds)}"
        + (f", written to {flag_values.output}" if flag_values.output else "")
    )
    return 0


def _write_history(history: pd.DataFrame, path: str) -> None:
    from placer import report

    if path.endswith(".csv"):
        write_atomically(path, history.to_csv(index=False).encode())
    else:
        report.save_figure(report.history_picture(history), path)
