"""Layers: which scope of the model each op belongs to, and to which pass, from op names."""

from __future__ import annotations

import dataclasses
import enum
import re

import numpy as np

from placer.graph.op_graph import OpGraph
from placer.problem import PlacementProblem

# A scope is split into its parts if it takes more than this share of the compute time.
_SPLIT_SHARE = 1 / 6
# Scopes below this share go to one row together.
_SMALL_SHARE = 1 / 500
OTHER = "(other)"

# tf.gradients names its scope "gradients", tf.GradientTape "gradient_tape"; both may be numbered.
_BACKWARD_SCOPE = re.compile(r"(gradients|gradient_tape)(_\d+)?", re.IGNORECASE)
_GRADIENT_OF = re.compile(r".*_grad(_\d+)?")
_OPTIMIZER_SCOPE = re.compile(
    r"(optimizer|adam|adamw|adamax|nadam|adagrad|adadelta|rmsprop|momentum|sgd|ftrl|lamb"
    r"|gradientdescent|clip_by_global_norm)(_\d+)?",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"_\d+$")


class Pass(enum.IntEnum):
    """What an op is for."""

    FORWARD = 0
    BACKWARD = 1
    UPDATE = 2


@dataclasses.dataclass(frozen=True, eq=False)
class Layers:
    """The rows of a picture of N ops.

    Attributes:
      names: R names of scopes, in the order of the forward pass.
      layer_of: int32[N], -1 for ops that the step does not execute.
      pass_of: int8[N], Pass.
    """

    names: tuple[str, ...]
    layer_of: np.ndarray
    pass_of: np.ndarray


def split_name(name: str, op_type: str = "") -> tuple[tuple[str, ...], Pass]:
    """The scopes that an op name holds, without those of gradients and optimizers.

    "gradients/decoder/step_2/MatMul_grad/Mul" is (decoder, step_2), BACKWARD, and
    "Adam/update_decoder/kernel/mul" is (decoder, kernel), UPDATE.
    """
    parts = name.split("/")
    kind = Pass.FORWARD
    if op_type.startswith(("ResourceApply", "Apply", "ResourceSparseApply", "SparseApply")):
        kind = Pass.UPDATE
    scopes: list[str] = []
    for part in parts[:-1]:
        if _BACKWARD_SCOPE.fullmatch(part):
            kind = max(kind, Pass.BACKWARD)
        elif _OPTIMIZER_SCOPE.fullmatch(part):
            if not scopes:
                kind = Pass.UPDATE
        elif part.startswith("update_") and kind == Pass.UPDATE:
            scopes.append(part.removeprefix("update_"))
        elif _GRADIENT_OF.fullmatch(part):
            kind = max(kind, Pass.BACKWARD)
        else:
            scopes.append(part)
    return tuple(scopes), kind


def find_layers(problem: PlacementProblem, max_layers: int = 24) -> Layers:
    """Groups executed ops into at most `max_layers` scopes worth showing.

    Scopes are split from the top, largest first, while a scope takes more than a sixth of the
    compute time and its parts still fit: unrolled steps stay together, a big encoder does not.
    Ops without a scope, such as sums of gradients, go with the op they read from.

    Args:
      problem: gives op names and compute times (on the fastest device an op may use).
      max_layers: upper limit of rows, at least 2.
    """
    graph = problem.graph
    seconds = np.where(problem.allowed.T, problem.device_seconds, np.inf).min(axis=0)
    weight = (seconds * graph.executed).tolist()
    paths, passes = _paths(graph)
    ops = np.flatnonzero(graph.executed).tolist()
    rows = _fold_small(_split(ops, paths, weight, max_layers), weight)
    layer_of = np.full(graph.num_ops, -1, np.int32)
    named = []
    for name, members in rows:
        forward = [i for i in members if passes[i] == Pass.FORWARD]
        first = min(forward or [graph.num_ops + min(members)])
        named.append((name == OTHER, first, name, members))
    names = []
    for number, (_, _, name, members) in enumerate(sorted(named)):
        names.append(name)
        layer_of[members] = number
    return Layers(tuple(names), layer_of, np.array(passes, np.int8))


def _paths(graph: OpGraph) -> tuple[list[tuple[str, ...]], list[Pass]]:
    """Scopes and pass of every op; ops without scopes take those of what they read."""
    paths, passes = [], []
    for op, name in enumerate(graph.names):
        path, kind = split_name(name, graph.type_of(op))
        paths.append(path)
        passes.append(kind)
    src, dst = graph.edge_src, graph.edge_dst
    first = np.full(graph.num_ops, -1)
    first[dst[::-1]] = src[::-1]
    for op in graph.topological_order().tolist():
        if paths[op]:
            continue
        source = int(first[op])
        if source >= 0 and paths[source] and passes[op] != Pass.FORWARD:
            paths[op] = paths[source]
        else:
            paths[op] = (_NUMBER.sub("", graph.names[op].rpartition("/")[2]),)
    return paths, passes


def _split(
    ops: list[int], paths: list[tuple[str, ...]], weight: list[float], limit: int
) -> list[tuple[str, list[int]]]:
    """(scope, ops) of each row."""
    rows: dict[tuple[str, ...], list[int]] = {(): ops}
    done: set[tuple[str, ...]] = set()
    total = sum(weight[i] for i in ops) or 1.0
    while True:
        share = {
            key: sum(weight[i] for i in members) / total
            for key, members in rows.items()
            if key not in done and (not key or len(members) > 1)
        }
        key = max(share, key=lambda k: (share[k], k), default=None)
        if key is None:
            break
        depth = len(key)
        parts: dict[tuple[str, ...], list[int]] = {}
        for i in rows[key]:
            parts.setdefault(paths[i][: depth + 1], []).append(i)
        lone = len(parts) == 1 and key not in parts
        if not key and len(parts) > limit:
            rows = _largest(parts, weight, limit)
            done.add(())
        elif lone or not key or (share[key] > _SPLIT_SHARE and len(rows) - 1 + len(parts) <= limit):
            if set(parts) == {key}:
                done.add(key)
                continue
            del rows[key]
            if key in parts:
                done.add(key)
            rows.update(parts)
        else:
            done.add(key)
    return [("/".join(key), members) for key, members in rows.items() if members]


def _fold_small(
    rows: list[tuple[str, list[int]]], weight: list[float]
) -> list[tuple[str, list[int]]]:
    """Joins rows too small to be seen, and what is in no scope, to OTHER."""
    seconds = [sum(weight[i] for i in members) for _, members in rows]
    least = _SMALL_SHARE * sum(seconds)
    kept, other = [], []
    for row, own in zip(rows, seconds, strict=True):
        if own < least or row[0] == OTHER:
            other += row[1]
        else:
            kept.append(row)
    return [*kept, (OTHER, sorted(other))] if other else kept


def _largest(
    parts: dict[tuple[str, ...], list[int]], weight: list[float], limit: int
) -> dict[tuple[str, ...], list[int]]:
    order = sorted(parts, key=lambda k: (-sum(weight[i] for i in parts[k]), k))
    rows = {key: parts[key] for key in order[: limit - 1]}
    rows[(OTHER,)] = [i for key in order[limit - 1 :] for i in parts[key]]
    return rows
