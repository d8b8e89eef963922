"""The command line of the experiments."""

from __future__ import annotations

import importlib
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from benchmarks.experiment import Experiment, Outcome
from benchmarks.results import describe_run, write_outcome
from placer.cli.main import import_tensorflow_quietly
from placer.errors import PlacerError

# Name -> summary; each is a module of this package that defines EXPERIMENT. Here, too, so that
# errors and the list of experiments need not wait for TensorFlow.
EXPERIMENTS = {
    "table": "the paper's table, with the paper's own speed-ups beside ours",
    "quality": "methods on six rows with equal time: step time, ÷ lower bound, anytime figure",
    "tight_memory": "searches where memory is 5 % more than the best known packing needs",
    "large_model": "a 50,000-op model: seconds until better than one GPU, and peak memory",
    "peers": "every placer with equal time, all models, 2, 4 and 8 GPUs",
    "learning": "search curves of the policies and other searches, several seeds with bands",
    "policy": "the learned policy against annealing, random search and the paper's policy",
    "policy_ablation": "what each part of the policy is worth, at equal numbers of placements",
    "explain": "one placement against Expert: pictures, time by device, critical path",
    "measured": "real steps on pinned workers with intervals, and a training run",
    "fidelity": "the calibrated simulator against measured steps on pinned workers",
    "speed": "placements a second, full runs and moves; time and memory from 10^4 to 10^6 ops",
    "scale": "time and memory of each stage, 10^3 to 10^6 ops, 2 to 64 devices",
    "faults": "a measuring run on two workers that are killed, stopped, starved or slowed",
    "overhead": "what measuring costs besides the steps",
    "plugin": "the Grappler plugin: steps against an annotated GraphDef, and its part of set-up",
    "agreement": "the simulator against Grappler's own, with free transfers",
}
OUTPUT = "benchmark-results"
USAGE_ERROR = 2


def load(name: str) -> Experiment:
    """The experiment called `name`; PlacerError, listing the names, if there is none."""
    if name not in EXPERIMENTS:
        raise PlacerError(f"no experiment {name!r}; there are {', '.join(EXPERIMENTS)} and smoke")
    import_tensorflow_quietly()
    return importlib.import_module(f"benchmarks.{name}").EXPERIMENT


def main(arguments: Sequence[str]) -> int:
    """Runs a command line without the program's name; returns the exit code."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0 if arguments else USAGE_ERROR
    try:
        if arguments[0] == "smoke":
            return _smoke(arguments[1:])
        experiment = load(arguments[0])
        flag_values = flags.FlagValues()
        experiment.define_flags(flag_values)
        flags.DEFINE_string("output", OUTPUT, "directory for results", flag_values=flag_values)
        flags.DEFINE_bool(
            "smoke",
            False,
            "a tiny version that exercises everything; other flags change it",
            flag_values=flag_values,
        )
        if any(a in ("-h", "--help") for a in arguments[1:]):
            print(_help(experiment, flag_values))
            return 0
        positional = flag_values(["benchmarks", *arguments[1:]])[1:]
        if positional:
            raise PlacerError(f"unexpected argument {positional[0]!r}; settings are flags")
        base = experiment.smoke if flag_values.smoke else experiment.settings()
        settings = experiment.settings_from(flag_values, base)
        outcome = run_experiment(experiment, settings, flag_values.output, arguments)
    except (PlacerError, flags.Error) as error:
        print("benchmarks: " + " ".join(str(error).split()), file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        print("benchmarks: interrupted", file=sys.stderr)
        return 130
    return 1 if outcome.failures else 0


def run_experiment(
    experiment: Experiment, settings: object, output: str | Path, arguments: Sequence[str]
) -> Outcome:
    """Runs, prints and stores one experiment; PlacerError if that fails."""
    from placer.report import print_frame

    command = ["python", "-m", "benchmarks", *arguments]
    expected = experiment.expected_seconds(settings)
    print(f"{experiment.name}: about {format_duration(expected)} on two cores", flush=True)
    described = describe_run()
    start = time.perf_counter()
    outcome = experiment.run(settings)
    seconds = time.perf_counter() - start
    for name, frame in outcome.tables.items():
        if not outcome.shown or name in outcome.shown:
            print_frame(outcome.shown.get(name, frame), f"{experiment.name}: {name}")
    for note in outcome.notes:
        print(note)
    for failure in outcome.failures:
        print(f"FAILED: {failure}", file=sys.stderr)
    files = write_outcome(output, experiment.name, command, settings, outcome, seconds, described)
    print(f"{format_duration(seconds)}; results in {files[0]} and {len(files) - 1} other files")
    return outcome


def format_duration(seconds: float) -> str:
    """A duration as a person says it."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"


def _smoke(arguments: Sequence[str]) -> int:
    """Runs the smoke version of the named experiments, of all if none is named."""
    names = list(arguments) or list(EXPERIMENTS)
    experiments = [load(name) for name in names]
    failed = 0
    with tempfile.TemporaryDirectory() as directory:
        for experiment in experiments:
            command = ["smoke", experiment.name]
            outcome = run_experiment(experiment, experiment.smoke, directory, command)
            failed += bool(outcome.failures)
    print(f"smoke: {len(experiments)} experiments ran, {failed} with failures")
    return 1 if failed else 0


def _overview() -> str:
    width = max(map(len, EXPERIMENTS))
    lines = [f"  {name:<{width}}  {summary}" for name, summary in EXPERIMENTS.items()]
    return "\n".join(
        [
            "usage: python -m benchmarks NAME [flags]",
            "",
            *lines,
            f"  {'smoke':<{width}}  a tiny version of each, or of those named after it",
            "",
            "python -m benchmarks NAME --help lists the flags; benchmarks/README.md explains.",
        ]
    )


def _help(experiment: Experiment, flag_values: flags.FlagValues) -> str:
    lines = [f"{experiment.name}: {experiment.summary}", "", "flags:"]
    for name in sorted(flag_values):
        flag = flag_values[name]
        default = "" if flag.default is None else f" (default: {flag.default_as_str})"
        lines.append(f"  --{flag.name}: {flag.help}{default}")
    return "\n".join(lines)
