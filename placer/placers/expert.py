"""Expert: what a person who knows the model would write, from the scopes in op names."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

import numpy as np

from placer.placers.spec import PlacerSpec, parameter
from placer.problem import PlacementProblem

if TYPE_CHECKING:
    from placer.search.state import Search

NAME = "expert"

# A numbered layer of a stack: "layer_0", "cell_1", "lstm_2", "block3", "encoder_layer_4"...; a bare
# "lstm" or "gru" is number 0 of its kind (Keras leaves the first without a number).
_NUMBERED = re.compile(
    r"^((?:[a-z]+_)*(?:layers?|cell|lstm|gru|rnn|block|stage|unit))_?(\d+)$", re.IGNORECASE
)
_BARE = re.compile(r"^(lstm|gru|simple_rnn)$", re.IGNORECASE)
# What goes with the last decoder layer.
_HEAD = re.compile(
    r"attention|attn|softmax|logits|projection|(?:^|_)(?:loss|head|classifier|predictions?)",
    re.IGNORECASE,
)
# Scopes of gradients and updates, which follow what they belong to: "gradients/a/b_grad/MatMul",
# "gradient_tape/a/b/MatMul_1", "Adam/update_a/b/ResourceApplyAdam".
_GRADIENT_SCOPE = re.compile(r"^(?:gradients?(?:_\d+)?|gradient_tape)$", re.IGNORECASE)
_UPDATE = re.compile(r"^update_")
_GRAD_SUFFIX = re.compile(r"_grad(?:_\d+)?$")
_LAYER_OPS = frozenset(
    {"Conv1D", "Conv2D", "Conv3D", "DepthwiseConv2dNative", "FusedConv2DBiasActivation"}
)


@dataclasses.dataclass(frozen=True)
class ExpertParameters:
    """Parameters of the expert."""

    rule: str = parameter(
        "auto",
        "stack (layer i of L on GPU i * D / L), conv (parts with equal numbers of convolutions), "
        "contiguous (parts with equal compute time), or auto: the first of these that applies",
        choices=("auto", "stack", "conv", "contiguous"),
    )


def _run(search: Search, parameters: ExpertParameters) -> None:
    problem = search.problem
    search.evaluate(problem.repair(expert(problem, parameters.rule)), NAME)


def expert(problem: PlacementProblem, rule: str = "auto") -> np.ndarray:
    """int32[N]: Mirhoseini et al., ICML 2017, section 4.1 and appendix.

    Stacks: each layer of an LSTM stack on a GPU of its own, attention and softmax with the last
    layer. Conv nets: contiguous parts with about equal numbers of layers. Otherwise contiguous
    parts in topological order with equal compute time. Gradients and updates follow the forward
    ops that their names tell; ops without a name of use follow what reads them.
    """
    devices = problem.topology.accelerators
    forward = _forward_ops(problem)
    part = np.full(problem.graph.num_ops, -1, np.int64)
    found = False
    if rule in ("auto", "stack"):
        found = _by_stack(problem, forward, len(devices), part)
    if not found and rule in ("auto", "conv"):
        found = _by_convolutions(problem, forward, len(devices), part)
    if not found:
        _by_compute(problem, forward, len(devices), part)
    _spread(problem, part, forward, towards_inputs=True)
    _spread(problem, part, forward, towards_inputs=False)
    _follow_names(problem, part, forward)
    everything = np.ones(problem.graph.num_ops, bool)
    _spread(problem, part, everything, towards_inputs=True)
    _spread(problem, part, everything, towards_inputs=False)
    return np.where(part >= 0, np.array(devices, np.int32)[part], -1).astype(np.int32)


def forward_name(name: str) -> str:
    """The name with the marks of gradients and updates taken away."""
    kept: list[str] = []
    for segment in name.split("/"):
        if _GRADIENT_SCOPE.match(segment):
            # "training/gradients/a" and "gradients/a" both follow "a".
            kept = []
            continue
        if _UPDATE.match(segment):
            kept = []
            segment = _UPDATE.sub("", segment)
        kept.append(_GRAD_SUFFIX.sub("", segment))
    return "/".join(kept)


def layer_of(name: str) -> tuple[str, int] | None:
    """(stack, number) of the outermost numbered layer in a name, or None.

    "encoder/layer_1/step_3/MatMul" is layer 1 of stack "encoder/layer".
    """
    segments = name.split("/")
    for i, segment in enumerate(segments):
        match = _NUMBERED.match(segment)
        if match:
            return "/".join([*segments[:i], match[1].lower()]), int(match[2])
        if _BARE.match(segment):
            return "/".join([*segments[:i], segment.lower()]), 0
    return None


def _forward_ops(problem: PlacementProblem) -> np.ndarray:
    """bool[N]: ops whose names do not say that they belong to gradients or updates."""
    return np.array([forward_name(name) == name for name in problem.graph.names])


def _by_stack(problem: PlacementProblem, forward: np.ndarray, parts: int, part: np.ndarray) -> bool:
    """Layers of stacks, and heads; False if there is no stack of two layers or more."""
    names = problem.graph.names
    layers = [layer_of(name) if forward[i] else None for i, name in enumerate(names)]
    numbers: dict[str, set[int]] = {}
    for layer in layers:
        if layer is not None:
            numbers.setdefault(layer[0], set()).add(layer[1])
    stacks = {s: sorted(n) for s, n in numbers.items() if len(n) > 1}
    if not stacks:
        return False
    place = {
        (stack, number): i * parts // len(ordered)
        for stack, ordered in stacks.items()
        for i, number in enumerate(ordered)
    }
    last = max(place.values())
    for i, layer in enumerate(layers):
        if layer in place:
            part[i] = place[layer]
        elif forward[i] and any(_HEAD.search(s) for s in names[i].split("/")[:-1]):
            part[i] = last
    return True


def _by_convolutions(
    problem: PlacementProblem, forward: np.ndarray, parts: int, part: np.ndarray
) -> bool:
    """Contiguous parts with equal numbers of convolutions; False with fewer than two a part."""
    graph = problem.graph
    kinds = np.array([t in _LAYER_OPS for t in graph.op_types])
    order = graph.topological_order()
    layers = order[(kinds[graph.op_type] & forward & graph.executed)[order]]
    if len(layers) < 2 * parts:
        return False
    scopes: dict[str, int] = {}
    for i, op in enumerate(layers.tolist()):
        part[op] = i * parts // len(layers)
        scope, slash, _ = graph.names[op].rpartition("/")
        if slash:
            scopes.setdefault(scope, int(part[op]))
    # What is beside a convolution in its scope belongs to its layer.
    for op in np.flatnonzero(forward & (part < 0)).tolist():
        scope = graph.names[op].rpartition("/")[0]
        while scope and scope not in scopes:
            scope = scope.rpartition("/")[0]
        if scope:
            part[op] = scopes[scope]
    return True


def _by_compute(
    problem: PlacementProblem, forward: np.ndarray, parts: int, part: np.ndarray
) -> None:
    """Contiguous parts of the forward ops with equal compute time."""
    graph = problem.graph
    devices = list(problem.topology.accelerators)
    seconds = problem.device_seconds[devices].min(axis=0)
    order = graph.topological_order()
    chosen = forward if (forward & graph.executed).any() else np.ones(graph.num_ops, bool)
    order = order[(chosen & graph.executed)[order]]
    before = np.cumsum(seconds[order]) - seconds[order] / 2
    total = max(float(seconds[order].sum()), 1e-30)
    part[order] = np.minimum((before * parts / total).astype(np.int64), parts - 1)


def _follow_names(problem: PlacementProblem, part: np.ndarray, forward: np.ndarray) -> None:
    """Gradients and updates go where most of the compute time of their forward scope is."""
    graph = problem.graph
    weight = problem.costs.seconds.min(axis=0) + 1e-9
    votes: dict[str, dict[int, float]] = {}
    for op in np.flatnonzero(forward & (part >= 0)).tolist():
        scope, p, w = graph.names[op], int(part[op]), float(weight[op])
        while scope:
            tally = votes.setdefault(scope, {})
            tally[p] = tally.get(p, 0.0) + w
            scope = scope.rpartition("/")[0]
    for op in np.flatnonzero(~forward & (part < 0)).tolist():
        scope = forward_name(graph.names[op])
        while scope and scope not in votes:
            scope = scope.rpartition("/")[0]
        # A scope that is in several parts says nothing; what reads the op does.
        if scope and len(votes[scope]) == 1:
            part[op] = next(iter(votes[scope]))


def _spread(
    problem: PlacementProblem, part: np.ndarray, members: np.ndarray, towards_inputs: bool
) -> None:
    """Ops of `members` without a part take that of a reader (or of an input), over chains."""
    graph = problem.graph
    src = np.concatenate([graph.edge_src, graph.control_src])
    dst = np.concatenate([graph.edge_dst, graph.control_dst])
    if not towards_inputs:
        src, dst = dst, src
    order = np.argsort(src, kind="stable")
    pointer = np.searchsorted(src[order], np.arange(graph.num_ops + 1)).tolist()
    targets = dst[order].tolist()
    topological = graph.topological_order()
    sweep = topological[::-1] if towards_inputs else topological
    for op in sweep.tolist():
        if part[op] >= 0 or not members[op]:
            continue
        for e in range(pointer[op], pointer[op + 1]):
            if part[targets[e]] >= 0:
                part[op] = part[targets[e]]
                break


SPEC = PlacerSpec(
    NAME,
    "each layer of a stack on a GPU of its own; conv nets in contiguous parts",
    "Mirhoseini et al., Device Placement Optimization with RL, ICML 2017, section 4.1; Sutskever "
    "et al., NIPS 2014; Wu et al., 2016 (GNMT)",
    ExpertParameters,
    _run,
)
