"""plugin: steps through the Grappler plugin against an annotated GraphDef, and what it costs.

Step times: every placement in both forms, and the graph without devices, on two pinned workers;
sessions of the three are open together and their steps take turns. Grappler is on in all of them,
as in a user's session. Its memory optimizer rewrites the annotated graph, whose devices it sees,
otherwise than the one that the plugin places after it; so all is timed once more without that.

Set-up: sessions on logical CPU devices of one process, with and without the plugin in turns.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from benchmarks.cases import training_graph
from benchmarks.experiment import Experiment, Outcome, setting
from placer.errors import PlacerError
from placer.graph import fingerprint
from placer.optimizer import optimize
from placer.pipeline import Prepared, prepare
from placer.placement import Placement
from placer.runtime.comparison import ratio_interval

if TYPE_CHECKING:
    import tensorflow as tf

CONFIDENCE = 0.95
TOWERS = "two_towers"
GRAPPLER = ("default", "no_memory")
# What the plugin is to keep to.
STEP_DIFFERENCE = 0.03
MATCHED_SHARE = 0.05
IDLE_SHARE = 0.01
_WORKERS = "workers:2"
_TOWER_SIZES = {"small": (384, 1024), "tiny": (16, 64)}
_HERE = tuple(f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(2))


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the experiment."""

    models: tuple[str, ...] = setting(
        (TOWERS, "rnnlm"), f"models whose steps are timed; {TOWERS} is two independent chains"
    )
    size: str = setting("small", "size of those models: small or tiny")
    grappler: tuple[str, ...] = setting(
        GRAPPLER, "Grappler in their sessions: default, or no_memory without its memory optimizer"
    )
    budget: float = setting(40.0, "seconds of the search for their placements")
    reward: str = setting("both", "reward of that search: simulate, measure or both")
    rounds: int = setting(5, "sessions of each variant, at least 2")
    steps: int = setting(15, "timed steps a session")
    setup_model: str = setting("inception_v3", "model whose sessions are set up; none for none")
    setup_size: str = setting("tiny", "its size; the number of nodes is that of paper")
    setups: int = setting(7, "sessions in each state of the plugin, at least 2")
    seed: int = setting(0, "seed")


def run(settings: Settings) -> Outcome:
    """Times steps, then set-ups."""
    if settings.rounds < 2 or settings.setups < 2:
        raise PlacerError("--rounds and --setups: give at least 2, the intervals need them")
    if settings.size not in _TOWER_SIZES:
        raise PlacerError(f"--size {settings.size}: choose one of {', '.join(_TOWER_SIZES)}")
    unknown = sorted(set(settings.grappler) - set(GRAPPLER))
    if unknown:
        raise PlacerError(f"--grappler {unknown[0]}: choose of {', '.join(GRAPPLER)}")
    rows, failures = [], []
    for model in settings.models:
        case = _case(model, settings)
        for grappler in settings.grappler:
            seen = run_workers(*case, settings.rounds, settings.steps, grappler)
            rows.append(_step_row(model, grappler, seen))
            if seen["unexplained"]:
                failures.append(f"{model}: {seen['unexplained'][0]} ran elsewhere without a reason")
    tables: dict[str, pd.DataFrame] = {}
    shown: dict[str, pd.DataFrame] = {}
    notes: list[str] = []
    if rows:
        tables["steps"] = pd.DataFrame(rows)
        shown["steps"] = _shown_steps(tables["steps"])
        notes += _step_notes(tables["steps"])
    if settings.setup_model != "none":
        tables["setup"], tables["setup_differences"] = _setups(settings)
        shown["setup"] = _shown_setup(tables["setup"])
        notes += _setup_notes(tables["setup"], tables["setup_differences"])
    return Outcome(tables=tables, shown=shown, notes=notes, failures=failures)


def _step_notes(steps: pd.DataFrame) -> list[str]:
    notes = [f"brackets: {CONFIDENCE:.0%} bootstrap intervals over sessions and their steps"]
    for row in steps.itertuples():
        ratio = float(row.plugin_over_annotated)
        notes.append(
            f"{row.model}, Grappler {row.grappler}: a step through the plugin takes "
            f"{ratio - 1:+.2%} ({row.plugin_over_annotated_low - 1:+.2%} to "
            f"{row.plugin_over_annotated_high - 1:+.2%}) against the annotated GraphDef; "
            f"{STEP_DIFFERENCE:.0%} allowed: " + _verdict(abs(ratio - 1), STEP_DIFFERENCE)
        )
    return notes


def _setup_notes(setup: pd.DataFrame, differences: pd.DataFrame) -> list[str]:
    notes = [
        f"{row.state}: the pass takes {row.share:.2%} of set-up; {row.allowed:.0%} allowed: "
        + _verdict(float(row.share), float(row.allowed))
        for row in setup.itertuples()
        if row.allowed > 0
    ]
    notes += [
        f"{row.state}: set-up takes {row.ratio - 1:+.1%} ({row.low - 1:+.1%} to "
        f"{row.high - 1:+.1%}) against a process without the plugin"
        for row in differences.itertuples()
    ]
    return notes


def _verdict(value: float, limit: float) -> str:
    return "kept" if value < limit else "not kept"


def two_towers(batch: int, width: int, layers: int = 4) -> tf.compat.v1.MetaGraphDef:
    """A training step of two towers of layers that share nothing but the input and the loss."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        x = tf1.random_uniform([batch, width], seed=1)
        outputs = []
        for tower in ("left", "right"):
            h = x
            for layer in range(layers):
                w = tf1.get_variable(
                    f"{tower}/{layer}",
                    [width, width],
                    initializer=tf1.random_normal_initializer(stddev=width**-0.5, seed=layer),
                    use_resource=True,
                )
                h = tf.tanh(tf.matmul(h, w, name=f"{tower}/matmul_{layer}"))
            outputs.append(tf.reduce_mean(tf.square(h)))
        loss = tf.add(*outputs, name="loss")
        optimizer = tf1.train.GradientDescentOptimizer(0.1)
        tf.group(optimizer.minimize(loss), name="train")
        tf1.global_variables_initializer()
        meta = tf1.train.export_meta_graph(graph=graph)
    meta.collection_def["train_op"].node_list.value[:] = ["train"]
    return meta


def contiguous_placement(
    meta: tf.compat.v1.MetaGraphDef, devices: str = _WORKERS, names: tuple[str, ...] = ()
) -> Placement:
    """A legal placement: the first half of the graph's ops on one device, the rest on the other.

    Args:
      meta: the graph.
      devices: two of them, as prepare takes them.
      names: what to call them instead.
    """
    prepared = prepare(meta, None, devices)
    num_ops = prepared.problem.graph.num_ops
    return _placement(prepared, np.arange(num_ops) * 2 // num_ops, names)


def _placement(prepared: Prepared, wishes: np.ndarray, names: tuple[str, ...] = ()) -> Placement:
    problem, nodes = prepared.problem, prepared.source.graph_def.node
    return Placement(
        ops=tuple(node.name for node in nodes),
        op_types=tuple(node.op for node in nodes),
        devices=names or problem.topology.device_names,
        device_of_op=problem.repair(wishes.astype(np.int32)),
        graph_fingerprint=fingerprint(prepared.source.graph_def),
    )


def _case(model: str, settings: Settings) -> tuple[tf.compat.v1.MetaGraphDef, Placement]:
    """A model's graph and the placement that the search finds for it."""
    if model == TOWERS:
        meta = two_towers(*_TOWER_SIZES[settings.size])
    else:
        meta = training_graph(model, settings.size)
    graph = type(meta)()
    graph.CopyFrom(meta)  # The search writes its devices into what it is given.
    result = optimize(
        graph,
        devices=_WORKERS,
        budget=settings.budget,
        seed=settings.seed,
        reward=settings.reward,
    )
    return meta, result.placement


def run_workers(
    meta: tf.compat.v1.MetaGraphDef,
    placement: Placement,
    rounds: int,
    steps: int,
    grappler: str = GRAPPLER[0],
) -> dict[str, Any]:
    """Runs benchmarks.plugin_workers; returns what its `main` prints.

    Raises:
      PlacerError: if it fails.
    """
    with tempfile.TemporaryDirectory() as directory:
        files = _write(Path(directory), meta, placement)
        command = [sys.executable, "-m", "benchmarks.plugin_workers", *files]
        command += [str(rounds), str(steps), grappler]
        done = subprocess.run(command, capture_output=True)
    lines = done.stdout.decode().splitlines()
    if not lines:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise PlacerError(f"benchmarks.plugin_workers failed: {''.join(last)}")
    return json.loads(lines[-1])


def _write(
    directory: Path, meta: tf.compat.v1.MetaGraphDef, placement: Placement
) -> tuple[str, str]:
    graph_file, placement_file = directory / "graph.pb", directory / "placement.pb"
    graph_file.write_bytes(meta.SerializeToString())
    placement.save(placement_file)
    return str(graph_file), str(placement_file)


def _step_row(model: str, grappler: str, seen: Mapping[str, Any]) -> dict[str, Any]:
    times = {k: [np.array(r) for r in rounds] for k, rounds in seen["seconds"].items()}
    medians = {k: float(np.median(np.concatenate(rounds))) for k, rounds in times.items()}
    row: dict[str, Any] = {"model": model, "grappler": grappler}
    row |= {f"{name}_seconds": seconds for name, seconds in medians.items()}
    for name, over, under in (
        ("annotated_speed_up", "unplaced", "annotated"),
        ("plugin_speed_up", "unplaced", "plugin"),
        ("plugin_over_annotated", "plugin", "annotated"),
    ):
        ratio, low, high = ratio_interval(times[over], times[under], CONFIDENCE)
        row |= {name: ratio, f"{name}_low": low, f"{name}_high": high}
    losses = np.array(list(seen["losses"].values()))
    row |= {
        "ran": seen["ran"],
        "moved": seen["moved"],
        "elsewhere": len(seen["elsewhere"]),
        "unexplained": len(seen["unexplained"]),
        "losses_apart": float(np.ptp(losses, axis=0).max()),
    }
    return row


class _SetupProcess:
    """A process of benchmarks.plugin_setup."""

    def __init__(self, files: Iterable[str]):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.plugin_setup", *files],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, word: str) -> dict[str, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{word}\n")
            self._process.stdin.flush()
        except OSError:
            pass  # It is gone; so is its answer.
        answer = self._process.stdout.readline()
        if not answer:
            raise PlacerError(f"benchmarks.plugin_setup ended at {word!r}")
        return json.loads(answer)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _setups(settings: Settings) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Set-up times by state of the plugin, and their ratios to those without it.

    States take turns. Processes with and without the plugin wait for each other.
    """
    meta = training_graph(settings.setup_model, settings.setup_size)
    placement = contiguous_placement(meta, names=_HERE)
    states = ("plain", "idle", "no match", "matched")
    seen: dict[str, list[dict[str, float]]] = {state: [] for state in states}
    with tempfile.TemporaryDirectory() as directory:
        files = _write(Path(directory), meta, placement)
        plain, loaded = _SetupProcess(files), _SetupProcess(files)
        try:
            for i in range(settings.setups + 1):
                for state in states if i % 2 == 0 else states[::-1]:
                    answer = (plain if state == "plain" else loaded).ask(state)
                    if i > 0:  # The first warms the processes up.
                        seen[state].append(answer)
            wholes = [loaded.ask("whole") for _ in range(settings.setups)]
        finally:
            plain.close()
            loaded.close()
    rows = []
    for state, answers in seen.items():
        seconds = np.array([a["setup_seconds"] for a in answers])
        row: dict[str, Any] = {
            "state": state,
            "graph_nodes": len(meta.graph_def.node),
            "setup_seconds": float(np.median(seconds)),
            "setup_low": float(seconds.min()),
            "setup_high": float(seconds.max()),
        }
        passes = [a.get("pass_seconds", 0.0) for a in answers]
        row |= {
            "pass_nodes": int(max(a.get("pass_nodes", 0) for a in answers)),
            "pass_seconds": float(np.median(passes)),
            "share": float(np.median(passes / seconds)),
            "moved": int(max(a.get("moved", 0) for a in answers)),
            "allowed": {"no match": IDLE_SHARE, "matched": MATCHED_SHARE}.get(state, 0.0),
        }
        rows.append(row)
    # A session prunes the graph before the pass. Twice, for Grappler hands it over twice.
    setup = next(row["setup_seconds"] for row in rows if row["state"] == "matched")
    pass_seconds = 2 * float(np.median([a["pass_seconds"] for a in wholes]))
    rows.append(
        {
            "state": "whole graph, twice",
            "graph_nodes": len(meta.graph_def.node),
            "setup_seconds": setup,
            "pass_nodes": int(wholes[0]["pass_nodes"]),
            "pass_seconds": pass_seconds,
            "share": pass_seconds / setup,
            "moved": int(wholes[0]["moved"]),
            "allowed": MATCHED_SHARE,
        }
    )
    base = [np.array([a["setup_seconds"]]) for a in seen["plain"]]
    differences = []
    for state in states[1:]:
        times = [np.array([a["setup_seconds"]]) for a in seen[state]]
        ratio, low, high = ratio_interval(times, base, CONFIDENCE)
        differences.append({"state": state, "ratio": ratio, "low": low, "high": high})
    return pd.DataFrame(rows), pd.DataFrame(differences)


def _shown_steps(steps: pd.DataFrame) -> pd.DataFrame:
    def interval(row: Any, name: str) -> str:
        middle, low, high = (getattr(row, f"{name}{end}") for end in ("", "_low", "_high"))
        return f"{middle:.3f} ({low:.3f}–{high:.3f})"

    return pd.DataFrame(
        [
            {
                "model": row.model,
                "Grappler": row.grappler,
                "unplaced s": f"{row.unplaced_seconds:.4f}",
                "annotated s": f"{row.annotated_seconds:.4f}",
                "plugin s": f"{row.plugin_seconds:.4f}",
                "annotated speed-up": interval(row, "annotated_speed_up"),
                "plugin speed-up": interval(row, "plugin_speed_up"),
                "plugin ÷ annotated": interval(row, "plugin_over_annotated"),
                "ran": row.ran,
                "elsewhere": row.elsewhere,
                "losses apart": f"{row.losses_apart:.1e}",
            }
            for row in steps.itertuples()
        ]
    )


def _shown_setup(setup: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "plugin": row.state,
                "nodes": row.graph_nodes,
                "nodes at the pass": row.pass_nodes,
                "moved": row.moved,
                "set-up s": f"{row.setup_seconds:.3f}",
                "pass ms": f"{1e3 * row.pass_seconds:.1f}",
                "share": f"{row.share:.2%}",
            }
            for row in setup.itertuples()
        ]
    )


EXPERIMENT = Experiment(
    name="plugin",
    summary="the Grappler plugin: steps against an annotated GraphDef, and its part of set-up",
    settings=Settings,
    smoke=Settings(
        models=(TOWERS,),
        size="tiny",
        budget=1.0,
        reward="simulate",
        rounds=2,
        steps=2,
        setup_model="rnnlm",
        setups=2,
    ),
    expected_seconds=lambda s: (
        len(s.models) * (20 + s.budget)
        + len(s.models)
        * len(s.grappler)
        * s.rounds
        * (3 if s.size == "tiny" else 10 + 0.7 * s.steps)
        + {"none": 0, "rnnlm": 15}.get(s.setup_model, 30 + 12 * s.setups)
    ),
    run=run,
)
