"""placer calibrate --devices SPEC --output here.pbtxt

Measures what launching an op costs on each kind of device, and what each link costs: latency,
bandwidth, and processor time at either end. Writes a topology that --devices takes, and prints
how well the link model fits.
"""

from __future__ import annotations

from absl import flags

from placer.devices import SPEC_HELP, save_topology
from placer.errors import PlacerError
from placer.files import check_writable


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    flags.DEFINE_string("devices", "local", SPEC_HELP, flag_values=flag_values)
    flags.DEFINE_string("output", None, "topology file to write", flag_values=flag_values)
    flags.DEFINE_multi_integer(
        "size",
        [],
        "bytes of a transfer to measure; repeat for several (default: 4 B to 64 MiB)",
        flag_values=flag_values,
    )


def run(arguments: list[str], flag_values: flags.FlagValues) -> int:
    """Runs the command; returns the exit code."""
    if arguments:
        raise PlacerError(f"placer calibrate takes no arguments; given: {arguments[0]!r}")
    if not flag_values.output:
        raise PlacerError("placer calibrate needs --output FILE.pbtxt")
    check_writable(flag_values.output)
    from placer.runtime import RunnerSettings, open_runner
    from placer.runtime.calibration import SIZES, calibrate

    # Figures are the least of many; repeating what was disturbed would only take longer.
    settings = RunnerSettings(disturbance_ratio=0.0)
    result = calibrate(
        lambda source: open_runner(flag_values.devices, source, settings),
        sizes=flag_values.size or SIZES,
        report=print,
    )
    print(f"{'':10}{'bytes':>12}{'measured us':>14}{'fitted us':>12}")
    for sample in result.samples:
        print(
            f"{sample.what:10}{sample.bytes:12d}{1e6 * sample.seconds:14.1f}"
            f"{1e6 * sample.fitted:12.1f}   {sample.source} -> {sample.target}"
        )
    for what, error in result.errors.items():
        print(f"median error of the fit, {what}: {100 * error:.1f} %")
    save_topology(result.topology, flag_values.output)
    print(f"wrote {flag_values.output}")
    return 0
