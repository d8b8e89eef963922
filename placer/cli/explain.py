"""placer explain GRAPH [PLACED] --devices SPEC --output DIR

Explains a placement: PLACED, a copy of GRAPH with devices or a placement file, or GRAPH as it
came. Prints what each device does and the critical path, and writes to DIR:

  placement.png, .svg  which device runs which layer
  timeline.png, .svg   what every device does when, with the critical path
  timeline.json        the same in detail, for chrome://tracing or ui.perfetto.dev
  layers.csv, devices.csv, critical_path.csv
"""

from __future__ import annotations

from pathlib import Path

from absl import flags

from placer.cli import common_flags
from placer.cli.progress import format_seconds
from placer.errors import PlacerError
from placer.files import check_directory, write_atomically

_CRITICAL_PATH_LINES = 12


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    common_flags.define_graph_flags(flag_values)
    flags.DEFINE_string(
        "output", None, "directory for the files, made if need be", flag_values=flag_values
    )
    flags.DEFINE_bool(
        "pictures", True, "draw the pictures (needs matplotlib)", flag_values=flag_values
    )
    flags.DEFINE_integer(
        "layers", 24, "rows of the picture at most", 2, 200, flag_values=flag_values
    )


def run(arguments: list[str], flag_values: flags.FlagValues) -> int:
    """Runs the command; returns the exit code."""
    from placer import report
    from placer.evaluate import read_placement
    from placer.pipeline import prepare
    from placer.simulator.build import build_simulator

    if not 1 <= len(arguments) <= 2:
        raise PlacerError("placer explain takes a GRAPH and at most one PLACED file")
    if flag_values.output is None:
        raise PlacerError("give --output DIR for the pictures and tables")
    if flag_values.pictures:
        report.require_matplotlib()
    directory = Path(flag_values.output)
    check_directory(directory)
    prepared = prepare(
        arguments[0],
        flag_values.fetch,
        flag_values.devices,
        clear_devices=flag_values.clear_devices,
        profile=flag_values.profile,
        trip_counts=common_flags.trip_counts(flag_values),
    )
    problem = prepared.problem
    if len(arguments) == 2:
        placement = read_placement(arguments[1], problem)
    elif prepared.came is not None:
        placement = prepared.came
    else:
        raise PlacerError(
            f"{arguments[0]} names devices that {problem.topology.name} lacks; give a PLACED file"
        )
    trace = build_simulator(problem).simulate(placement)
    layers = report.find_layers(problem, flag_values.layers)
    devices = report.device_frame(trace, problem.topology)
    path = report.critical_path_frame(trace, problem, layers)
    name = f"{Path(arguments[-1]).name} on {problem.topology.name}"
    title = f"{name}: {format_seconds(trace.step_seconds)} a step"
    report.print_frame(devices, title)
    summary = report.critical_path_summary(path)
    report.print_frame(summary, "critical path", _CRITICAL_PATH_LINES)
    print(report.describe_critical_path(path))
    for problem_device in trace.out_of_memory(3):
        name = problem.topology.device_names[problem_device.device]
        print(
            f"out of memory: {name} needs {problem_device.peak_bytes / 2**30:.2f} GiB, has "
            f"{problem_device.limit_bytes / 2**30:.2f}"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlacerError(f"cannot make directory {directory}: {error.strerror}") from None
    frames = {
        "devices": devices,
        "critical_path": path,
        "layers": report.layer_frame(problem, placement, layers),
    }
    for name, frame in frames.items():
        write_atomically(directory / f"{name}.csv", frame.to_csv(index=False).encode())
    report.save_simulated_trace(trace, problem, layers, directory / "timeline.json")
    if flag_values.pictures:
        figures = {
            "placement": report.placement_picture(problem, placement, layers, trace, title),
            "timeline": report.timeline_picture(trace, problem, layers, title),
        }
        for name, figure in figures.items():
            for kind in ("png", "svg"):
                report.save_figure(figure, directory / f"{name}.{kind}")
    print(f"written to {directory}")
    return 0
