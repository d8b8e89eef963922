"""fidelity: the calibrated simulator's step times against measured ones, placement by placement."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from benchmarks.cases import training_graph
from benchmarks.experiment import Experiment, Outcome, setting
from benchmarks.plots import COLOURS
from placer.costs import profiled_costs
from placer.devices import Topology, load_topology, topology_to_proto
from placer.errors import PlacerError
from placer.graph import GraphSource
from placer.grouping import Grouping, group_ops
from placer.methods import get_method
from placer.pipeline import prepare
from placer.problem import PlacementProblem
from placer.runtime import MeasurementProtocol, Runner, RunnerSettings, open_runner
from placer.runtime.calibration import SIZES, calibrate
from placer.runtime.profiling import profile
from placer.search import Budget, Search
from placer.simulator import Simulator
from placer.simulator.build import build_simulator

# Parts of the groups that random placements move off one device.
_MIXING = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the experiment."""

    models: tuple[str, ...] = setting(("rnnlm", "nmt", "inception_v3"), "models")
    size: str = setting("small", "size of the models: paper, small or tiny")
    devices: str = setting("workers:2", "workers:N, or a calibrated topology file of such workers")
    placements: int = setting(20, "placements a model")
    optimised: int = setting(6, "how many of them are optimised, with growing budgets")
    budget: float = setting(8.0, "seconds of the longest optimisation")
    steps: int = setting(10, "timed steps a placement")
    sizes: tuple[int, ...] = setting(SIZES, "bytes of the transfers that links are calibrated with")
    seed: int = setting(0, "seed")


@dataclasses.dataclass(frozen=True)
class Agreement:
    """How well predictions of one model's step times agree with measurements.

    Attributes:
      model: name.
      placements: how many ran.
      rank_correlation: Spearman's.
      median_error: median of |predicted / measured - 1|.
      worst_error: its maximum.
    """

    model: str
    placements: int
    rank_correlation: float
    median_error: float
    worst_error: float


def run(settings: Settings) -> Outcome:
    """Calibrates if need be, then profiles, predicts and measures each model."""
    topology, notes = calibrated(settings.devices, settings.sizes)
    frames, agreements = [], []
    for model in settings.models:
        prepared = prepare(training_graph(model, settings.size), None, topology)
        with open_runner(topology, prepared.source) as runner:
            problem = profiled_problem(prepared.problem, prepared.source, runner)
            simulator = build_simulator(problem)
            placements = sample_placements(problem, simulator, settings)
            frame = predict_and_measure(runner, simulator, placements, settings.steps)
        frame.insert(0, "model", model)
        frames.append(frame)
        agreements.append(agreement(model, frame))
    table = pd.concat(frames, ignore_index=True)
    summary = pd.DataFrame([dataclasses.asdict(a) for a in agreements])
    return Outcome(
        tables={"summary": summary, "placements": table},
        notes=notes,
        figures={"scatter": _scatter(table)},
        files={"topology.pbtxt": _topology_text(topology)},
    )


def calibrated(devices: str, sizes: Sequence[int] = SIZES) -> tuple[Topology, list[str]]:
    """A topology with measured costs: of a file as it is, else calibrated now; and what to say."""
    if devices.endswith(".pbtxt"):
        return load_topology(devices), [f"topology {devices} as it is"]
    settings = RunnerSettings(disturbance_ratio=0.0)
    notes: list[str] = []
    found = calibrate(
        lambda source: open_runner(devices, source, settings), sizes, report=notes.append
    )
    notes += [f"median error of the fit, {k}: {100 * e:.1f} %" for k, e in found.errors.items()]
    return found.topology, notes


def profiled_problem(
    problem: PlacementProblem, source: GraphSource, runner: Runner
) -> PlacementProblem:
    """The problem with op costs measured by `runner`."""
    found = profile(runner, problem)
    costs = profiled_costs(found, source, problem.graph, problem.topology, problem.costs)
    return dataclasses.replace(problem, costs=costs)


def sample_placements(
    problem: PlacementProblem, simulator: Simulator, settings: Settings
) -> dict[str, np.ndarray]:
    """Single devices, optimised placements, contiguous cuts and random mixtures, by name.

    Random ones move each op group off one device with some probability; cuts move all groups
    from one on, in topological order.
    """
    generator = np.random.default_rng(settings.seed)
    count = problem.topology.num_devices
    grouping = group_ops(problem, 256)
    found = {f"device {d}": problem.single_device(d) for d in range(count)}
    for i in range(settings.optimised):
        budget = settings.budget * (i + 1) / settings.optimised
        found[f"optimised {budget:.2g} s"] = _optimised(
            problem, grouping, simulator, budget, settings.seed + i
        )
    k = 0
    while len(found) < settings.placements:
        home = int(generator.integers(count))
        if k % 4 == 3:
            cut = int(grouping.num_groups * generator.uniform(0.2, 0.8))
            of_group = np.where(np.arange(grouping.num_groups) < cut, home, (home + 1) % count)
            name = f"cut {k}"
        else:
            part = _MIXING[k % len(_MIXING)]
            away = generator.random(grouping.num_groups) < part
            of_group = np.where(away, (home + 1) % count, home)
            name = f"random {part:g} {k}"
        found[name] = problem.repair(of_group[grouping.group_of].astype(np.int32))
        k += 1
    return found


def _optimised(
    problem: PlacementProblem,
    grouping: Grouping,
    simulator: Simulator,
    budget: float,
    seed: int,
) -> np.ndarray:
    search = Search(problem, grouping, simulator, Budget(budget), seed)
    get_method("annealing", [])(search)
    if search.best is None:
        raise PlacerError(f"annealing proposed nothing in {budget} s; give a larger --budget")
    return search.best


def predict_and_measure(
    runner: Runner, simulator: Simulator, placements: dict[str, np.ndarray], steps: int
) -> pd.DataFrame:
    """One row a placement.

    Returns:
      Columns placement, predicted_seconds, measured_seconds (the median), spread_seconds, error
      (predicted / measured - 1), disturbed, failure.
    """
    protocol = MeasurementProtocol(warm_up=2, steps=steps, stop_ratio=0.0, repeats=0)
    rows = []
    for name, placement in placements.items():
        predicted = float(simulator.evaluate(placement[None]).step_seconds[0])
        measured = runner.measure(placement, protocol)
        rows.append(
            {
                "placement": name,
                "predicted_seconds": predicted,
                "measured_seconds": measured.seconds,
                "spread_seconds": measured.spread_seconds,
                "error": predicted / measured.seconds - 1,
                "disturbed": measured.disturbed,
                "failure": measured.failure or "",
            }
        )
    return pd.DataFrame(rows)


def agreement(model: str, frame: pd.DataFrame) -> Agreement:
    """Summary of what `predict_and_measure` returned; placements that failed do not count."""
    ran = frame[frame["failure"] == ""]
    ranks = ran[["predicted_seconds", "measured_seconds"]].rank()
    correlation = float(ranks.corr().iloc[0, 1])
    errors = ran["error"].abs()
    return Agreement(model, len(ran), correlation, float(errors.median()), float(errors.max()))


def _topology_text(topology: Topology) -> bytes:
    from google.protobuf import text_format

    return text_format.MessageToString(topology_to_proto(topology)).encode()


def _scatter(table: pd.DataFrame) -> Figure:
    figure = Figure(figsize=(5, 4.6), layout="constrained")
    ax = figure.subplots()
    ran = table[table["failure"] == ""]
    for i, (model, part) in enumerate(ran.groupby("model", sort=False)):
        ax.plot(
            part.measured_seconds,
            part.predicted_seconds,
            "o",
            ms=4,
            color=COLOURS[i],
            label=str(model),
        )
    ends = [ran.measured_seconds.min(), ran.measured_seconds.max()]
    ax.plot(ends, ends, color="black", lw=0.8)
    ax.set_xlabel("measured step time, s")
    ax.set_ylabel("predicted, s")
    ax.legend(frameon=False)
    ax.grid(alpha=0.25)
    return figure


EXPERIMENT = Experiment(
    name="fidelity",
    summary="the calibrated simulator against measured steps on pinned workers",
    settings=Settings,
    smoke=Settings(
        models=("nmt",),
        size="tiny",
        placements=4,
        optimised=1,
        budget=0.5,
        steps=2,
        sizes=(4, 1 << 16),
    ),
    expected_seconds=lambda s: (
        15 * len(s.sizes)
        + len(s.models)
        * (
            (5 if s.size == "tiny" else 60)
            + s.placements * (3 + 0.8 * s.steps)
            + s.optimised * s.budget / 2
        )
    ),
    run=run,
)
