"""measured: real steps on pinned workers, and a training run under two placements.

Links are calibrated and op costs profiled first; every placement is measured in turns with the
others, so that drift of the machine hits all.
"""

from __future__ import annotations

import dataclasses
import re
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from benchmarks.cases import Case, make_case, search_case, training_graph
from benchmarks.experiment import Experiment, Outcome, setting
from benchmarks.fidelity import calibrated
from benchmarks.plots import COLOURS
from placer.costs import save_profile
from placer.devices import Topology, parse
from placer.errors import PlacerError
from placer.graph import GraphSource
from placer.optimizer import optimize
from placer.pipeline import prepare
from placer.runtime import MeasurementProtocol, open_runner
from placer.runtime.backends import start_workers
from placer.runtime.comparison import ratio_interval
from placer.runtime.driver import session_config
from placer.runtime.processes import ProcessTree
from placer.runtime.profiling import profile
from placer.search import Budget

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONFIDENCE = 0.95
OURS = "placer"


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the experiment."""

    models: tuple[str, ...] = setting(("rnnlm", "nmt", "inception_v3"), "models")
    size: str = setting("small", "size of the models: paper, small or tiny")
    devices: str = setting("workers:2", "workers:N, or a topology file of such workers")
    method: str = setting("auto", "our method")
    reward: str = setting("both", "reward of our search: simulate, measure or both")
    budget: float = setting(120.0, "seconds of our search")
    rounds: int = setting(5, "sessions of each placement, at least 2")
    steps: int = setting(10, "timed steps a session")
    calibrate: bool = setting(True, "calibrate links, unless --devices is a file, and profile ops")
    train: str = setting("nmt", "model of the training run; none for no run")
    train_steps: int = setting(60, "steps of the training run")
    seed: int = setting(0, "seed")


def run(settings: Settings) -> Outcome:
    """Finds, measures and trains."""
    topology = parse(settings.devices)
    notes: list[str] = []
    if settings.calibrate:
        topology, notes = calibrated(settings.devices)
    frames, curves = [], []
    for model in settings.models:
        case, placements = find_placements(model, topology, settings)
        frame = measure_in_turns(case, placements, settings.rounds, settings.steps)
        frames.append(frame)
        if model == settings.train:
            single = frame[frame.placement.str.startswith("worker")].measured_seconds.idxmin()
            for name in (str(frame.placement[single]), OURS):
                curve = training_curve(case, placements[name], settings.train_steps)
                curves.append(curve.assign(placement=name))
    table = pd.concat(frames, ignore_index=True)
    tables = {"steps": table}
    figures: dict[str, Figure] = {"steps": _bars(table)}
    notes += [
        f"medians with {CONFIDENCE:.0%} bootstrap intervals over sessions and steps; speed-ups are "
        "over the best single worker"
    ]
    if curves:
        tables["training"] = pd.concat(curves, ignore_index=True)
        figures["training"] = _training(tables["training"])
        notes.append(_training_note(tables["training"]))
    return Outcome(tables=tables, shown={"steps": _shown(table)}, notes=notes, figures=figures)


def find_placements(
    model: str, topology: Topology, settings: Settings
) -> tuple[Case, dict[str, np.ndarray]]:
    """The case of a model, and name -> int32[N]: each worker alone, Expert, Scotch, ours."""
    graph = type(training_graph(model, settings.size))()
    graph.CopyFrom(training_graph(model, settings.size))
    with tempfile.TemporaryDirectory() as directory:
        profile_path = None
        if settings.calibrate:
            profile_path = str(Path(directory) / "profile.pb")
            plain = prepare(training_graph(model, settings.size), None, topology)
            with open_runner(topology, plain.source) as runner:
                save_profile(profile(runner, plain.problem), profile_path)
        prepared = prepare(
            training_graph(model, settings.size), None, topology, profile=profile_path
        )
        case = make_case(f"{model}-{settings.size}@{settings.devices}", prepared)
        result = optimize(
            graph,
            devices=topology,
            budget=settings.budget,
            seed=settings.seed,
            method=settings.method,
            reward=settings.reward,
            profile=profile_path,
        )
    problem = case.problem
    placements = {
        f"worker {d} alone": problem.single_device(d) for d in range(problem.topology.num_devices)
    }
    for method in ("expert", "scotch"):
        found = search_case(case, method, Budget(settings.budget), settings.seed)
        if found.placement is not None:
            placements[method] = found.placement
    placements[OURS] = result.placement.device_of_op
    return case, placements


def measure_in_turns(
    case: Case, placements: dict[str, np.ndarray], rounds: int, steps: int
) -> pd.DataFrame:
    """Measures placements round by round, in another order each round.

    Returns:
      One line a placement: simulated_seconds, measured_seconds (median) with low and high,
      speed_up over the best single worker with speed_up_low and _high, failure.
    """
    if rounds < 2:
        raise PlacerError(f"--rounds {rounds}: give at least 2, the interval needs them")
    protocol = MeasurementProtocol(steps=steps, stop_ratio=0.0, repeats=0)
    times: dict[str, list[np.ndarray]] = {name: [] for name in placements}
    failures: dict[str, str] = {}
    order = list(placements)
    with open_runner(case.problem.topology, case.prepared.source) as runner:
        for i in range(rounds):
            for name in order if i % 2 == 0 else order[::-1]:
                if name in failures:
                    continue
                measurement = runner.measure(placements[name], protocol)
                if measurement.failure is not None:
                    failures[name] = measurement.failure
                else:
                    times[name].append(np.array(measurement.steps))
    singles = [n for n in order if n.startswith("worker") and n not in failures]
    best = min(singles, key=lambda n: float(np.median(np.concatenate(times[n]))), default=None)
    one = [np.ones(steps)] * rounds
    lines = []
    for name, placement in placements.items():
        simulated = float(case.simulator.evaluate(placement[None]).step_seconds[0])
        line: dict = {"model": case.model, "placement": name, "simulated_seconds": simulated}
        if name in failures:
            line |= {"measured_seconds": np.inf, "failure": failures[name]}
        else:
            _, low, high = ratio_interval(times[name], one, CONFIDENCE)
            median = float(np.median(np.concatenate(times[name])))
            line |= {"measured_seconds": median, "low": low, "high": high, "failure": ""}
            if best is not None:
                ratio, low, high = ratio_interval(times[best], times[name], CONFIDENCE)
                line |= {"speed_up": ratio, "speed_up_low": low, "speed_up_high": high}
        lines.append(line)
    columns = ["model", "placement", "simulated_seconds", "measured_seconds", "low", "high"]
    columns += ["speed_up", "speed_up_low", "speed_up_high", "failure"]
    return pd.DataFrame(lines).reindex(columns=columns)


def training_curve(case: Case, placement: np.ndarray, steps: int) -> pd.DataFrame:
    """Trains from the graph's own initial values on fresh workers.

    Returns:
      Columns step, seconds (since the first step began, that step included), loss.

    Raises:
      PlacerError: if the devices are not pinned workers of this machine.
    """
    import tensorflow as tf

    topology = case.problem.topology
    if re.fullmatch(r"workers:\d+", topology.name) is None:
        raise PlacerError(f"a training run needs workers:N, not {topology.name}")
    graph_def = tf.compat.v1.GraphDef()
    graph_def.CopyFrom(case.prepared.source.graph_def)
    for node, device in zip(graph_def.node, placement.tolist(), strict=True):
        node.device = topology.device_names[device]
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(graph_def, name="")
    loss, init, step = _ends(case.prepared.source)
    lines = []
    tree = ProcessTree(loopback=True, use_gpus=False)
    try:
        _, addresses = start_workers(tree, topology.num_devices, None)
        target = f"grpc://{addresses[0]}"
        with tf.compat.v1.Session(target, graph=graph, config=session_config()) as session:
            session.run(init)
            start = time.perf_counter()
            for number in range(steps):
                value, _ = session.run([loss, step])
                lines.append((number, time.perf_counter() - start, float(value)))
    finally:
        tree.close()
    return pd.DataFrame(lines, columns=["step", "seconds", "loss"])


def _ends(source: GraphSource) -> tuple[str, str, str]:
    assert source.init_op is not None, "benchmark models have an init op"
    return "loss:0", source.init_op, source.fetch_ops[0]


def _shown(table: pd.DataFrame) -> pd.DataFrame:
    lines = []
    for row in table.itertuples():
        ok = not row.failure
        lines.append(
            {
                "model": row.model,
                "placement": row.placement,
                "simulated s": f"{row.simulated_seconds:.4f}",
                "measured s": f"{row.measured_seconds:.4f}" if ok else str(row.failure)[:60],
                "interval": f"{row.low:.4f}–{row.high:.4f}" if ok else "",
                "speed-up": f"{row.speed_up:.3f}" if ok else "",
                "its interval": f"{row.speed_up_low:.3f}–{row.speed_up_high:.3f}" if ok else "",
            }
        )
    return pd.DataFrame(lines)


def _bars(table: pd.DataFrame) -> Figure:
    from matplotlib.figure import Figure

    models = list(dict.fromkeys(table.model))
    names = list(dict.fromkeys(table.placement))
    figure = Figure(figsize=(2.5 + 2.2 * len(models), 3.6), layout="constrained")
    ax = figure.subplots()
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        part = table[(table.placement == name) & (table.failure == "")].set_index("model")
        at = np.array([models.index(m) for m in part.index], float)
        ax.bar(
            at + (i - (len(names) - 1) / 2) * width,
            part.measured_seconds,
            width,
            color=COLOURS[i],
            label=name,
            yerr=[part.measured_seconds - part.low, part.high - part.measured_seconds],
            capsize=2,
        )
    ax.set_xticks(range(len(models)), models)
    ax.set_ylabel("measured step time, s")
    ax.grid(axis="y", alpha=0.25)
    ax.set_axisbelow(True)
    ax.legend(frameon=False, fontsize=8)
    return figure


def _training(curves: pd.DataFrame) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for i, (name, curve) in enumerate(curves.groupby("placement", sort=False)):
        # The first curve is wider, so that it shows below one that lies upon it.
        style = {"color": COLOURS[i], "lw": 3.0 - 1.5 * i, "label": str(name)}
        axes[0].plot(curve.step, curve.loss, **style)
        axes[1].plot(curve.seconds, curve.loss, **style)
    for ax, label in zip(axes, ("step", "seconds"), strict=True):
        ax.set_xlabel(label)
        ax.grid(alpha=0.25)
    axes[0].set_ylabel("loss, nats a token")
    axes[0].legend(frameon=False)
    return figure


def _training_note(curves: pd.DataFrame) -> str:
    loss = curves.pivot(index="step", columns="placement", values="loss")
    ends = curves.groupby("placement", sort=False).seconds.max()
    apart = float((loss.max(axis=1) - loss.min(axis=1)).max())
    slow, fast = ends.idxmax(), ends.idxmin()
    return (
        f"training run: {len(loss)} steps took {ends[slow]:.1f} s under {slow!r} and "
        f"{ends[fast]:.1f} s under {fast!r}; losses went from {loss.iloc[0].max():.3f} to "
        f"{loss.iloc[-1].max():.3f} and were at most {apart:.1e} apart"
    )


EXPERIMENT = Experiment(
    name="measured",
    summary="real steps on pinned workers with intervals, and a training run",
    settings=Settings,
    smoke=Settings(
        models=("nmt",),
        size="tiny",
        method="expert",
        reward="simulate",
        budget=1.0,
        rounds=2,
        steps=2,
        train_steps=3,
        calibrate=False,
    ),
    expected_seconds=lambda s: (
        100 * s.calibrate
        + len(s.models) * (s.budget + 5 * s.rounds * (1 if s.size == "tiny" else 4 + 0.7 * s.steps))
        + len(s.models) * (5 if s.size == "tiny" else 90)
        + s.train_steps * (0 if s.size == "tiny" else 2)
    ),
    run=run,
)
