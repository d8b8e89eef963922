"""placer profile GRAPH --devices SPEC --output profile.pb

Runs GRAPH on each kind of device, traces a few steps, and writes what every op took: an op profile
that --profile of other commands takes.
"""

from __future__ import annotations

from absl import flags

from placer.cli import common_flags
from placer.errors import PlacerError
from placer.files import check_writable


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    common_flags.define_graph_flags(flag_values, costs=False)
    flags.DEFINE_string("output", None, "op profile to write", flag_values=flag_values)
    flags.DEFINE_integer(
        "steps", 5, "steps to average over", lower_bound=1, flag_values=flag_values
    )


def run(arguments: list[str], flag_values: flags.FlagValues) -> int:
    """Runs the command; returns the exit code."""
    graph = common_flags.one_graph(arguments, "profile")
    if not flag_values.output:
        raise PlacerError("placer profile needs --output FILE")
    check_writable(flag_values.output)
    from placer.costs import save_profile
    from placer.pipeline import prepare
    from placer.runtime import open_runner
    from placer.runtime.profiling import profile

    prepared = prepare(
        graph,
        flag_values.fetch,
        flag_values.devices,
        clear_devices=flag_values.clear_devices,
    )
    with open_runner(prepared.devices, prepared.to_run) as runner:
        result = profile(runner, prepared.problem, flag_values.steps)
    save_profile(result, flag_values.output)
    for device in result.devices:
        total = sum(device.mean_seconds)
        print(f"{device.model}: {len(device.ops)} ops, {1e3 * total:.3f} ms of computation a step")
        slowest = sorted(zip(device.mean_seconds, device.ops, strict=True), reverse=True)[:5]
        for seconds, op in slowest:
            print(f"  {1e3 * seconds:9.3f} ms  {op}")
    print(f"wrote {flag_values.output}")
    return 0
