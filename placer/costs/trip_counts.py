"""How often loops run: from constants, from the sizes of what they loop over, or from the caller.

A loop's condition bounds a counter that the body moves by a constant step: `i < limit`, alone or
as part of a conjunction (tf.while_loop's maximum_iterations, dynamic_rnn's time and Keras' loops
all look like that). The count is the smallest that the readable parts give. Where none can be read,
the size of a TensorArray or TensorList that enters the loop stands in.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from tensorflow.core.framework import node_def_pb2
from tensorflow.python.framework import dtypes, tensor_util

from placer.graph.kernels import attribute

FROM_CALLER = "given"
FROM_CONSTANTS = "loop bound"
FROM_LIST = "length of a tensor list or array"
FROM_PROFILE = "profile"
ASSUMED = "unknown, taken as 1"

_PASSING = frozenset(
    ["Identity", "Enter", "RefEnter", "StopGradient", "Snapshot", "LoopCond", "EnsureShape"]
)
_LIST_SIZE_INPUT = {
    "TensorArrayV3": 0,
    "TensorArrayV2": 0,
    "TensorArray": 0,
    "TensorListReserve": 1,
}
_DEPTH = 64

Shape = tuple[int, ...] | None


@dataclasses.dataclass(frozen=True)
class Tensors:
    """What loop analysis needs of one graph.

    Attributes:
      nodes: by name.
      shape: shape of a tensor by op name and output number; None or -1 where unknown.
      known: values of scalars, by op name and output number, that loops leave behind; filled in
        as loops are counted. The loop of a gradient runs down from what the forward loop's
        counter ended at.
    """

    nodes: Mapping[str, node_def_pb2.NodeDef]
    shape: Callable[[str, int], Shape]
    known: dict[tuple[str, int], float] = dataclasses.field(default_factory=dict)


def split(name: str) -> tuple[str, int]:
    """Op name and output number of a tensor name."""
    producer, _, position = name.partition(":")
    return producer, int(position) if position else 0


def data_inputs(node: node_def_pb2.NodeDef) -> list[str]:
    """A node's inputs without its control inputs."""
    return [i for i in node.input if not i.startswith("^")]


def constant(
    tensors: Tensors,
    name: str,
    depth: int = 0,
    found: dict[tuple[str, int], np.ndarray | None] | None = None,
) -> np.ndarray | None:
    """The value of a tensor if it follows from constants and shapes, else None.

    Args:
      tensors: the graph.
      name: of the tensor.
      depth: how many ops this is away from where the question came from.
      found: what was found on the way there, so that what is read twice is worked out once.
    """
    tensor = split(name)
    found = {} if found is None else found
    if tensor not in found:
        found[tensor] = _constant(tensors, tensor, depth, found)
    return found[tensor]


def _constant(
    tensors: Tensors,
    tensor: tuple[str, int],
    depth: int,
    found: dict[tuple[str, int], np.ndarray | None],
) -> np.ndarray | None:
    node = tensors.nodes.get(tensor[0])
    if node is None or depth > _DEPTH:
        return None
    if tensor in tensors.known:
        return np.asarray(tensors.known[tensor])
    inputs = data_inputs(node)

    def value(i: int) -> np.ndarray | None:
        return constant(tensors, inputs[i], depth + 1, found) if i < len(inputs) else None

    kind = node.op
    if kind == "Const":
        shape = [d.size for d in node.attr["value"].tensor.tensor_shape.dim]
        # Only bounds and sizes are of interest, not weights.
        if math.prod(shape) > 1024:
            return None
        return np.asarray(tensor_util.MakeNdarray(node.attr["value"].tensor))
    if kind in _PASSING:
        return value(0)
    if kind == "Cast":
        operand = value(0)
        if operand is None:
            return None
        whole = dtypes.as_dtype(attribute(node, "DstT").type).is_integer
        return np.trunc(operand) if whole else operand.astype(np.float64)
    if kind in ("Shape", "Size", "Rank"):
        shape_of = tensors.shape(*split(inputs[0])) if inputs else None
        if shape_of is None:
            return None
        if kind == "Rank":
            return np.asarray(len(shape_of))
        if kind == "Shape":
            # An unknown size is no number, and nothing that is computed from it is.
            return np.asarray([math.nan if size < 0 else size for size in shape_of])
        return None if min(shape_of, default=0) < 0 else np.asarray(math.prod(shape_of))
    if kind == "StridedSlice" and attribute(node, "shrink_axis_mask").i == 1:
        operand, index = value(0), _number(value(1))
        if operand is None or index is None or operand.ndim != 1:
            return None
        if not -operand.size <= index < operand.size:
            return None
        element = np.asarray(operand[int(index)])
        return None if _number(element) is None else element
    if kind == "TensorListLength":
        length = list_length(tensors, inputs[0], depth + 1) if inputs else None
        return None if length is None else np.asarray(length)
    if kind in _ARITHMETIC:
        left, right = value(0), value(1)
        if kind == "Minimum" and (left is None or right is None):
            # An upper bound is the best there is.
            return left if right is None else right
        if left is None or right is None or left.size != 1 or right.size != 1:
            return None
        if kind in ("FloorDiv", "RealDiv") and not float(right.reshape(-1)[0]):
            return None
        return np.asarray(_ARITHMETIC[kind](left, right))
    return None


_ARITHMETIC: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "Add": np.add,
    "AddV2": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Maximum": np.maximum,
    "Minimum": np.fmin,  # An unknown operand leaves the other as a bound.
    "FloorDiv": np.floor_divide,
    "RealDiv": np.true_divide,
}


def scalar(tensors: Tensors, name: str) -> float | None:
    """A scalar constant that is a known, non-negative-shaped number, else None."""
    return _number(constant(tensors, name))


def _number(found: np.ndarray | None) -> float | None:
    """The finite number that is an array's only element, else None."""
    if found is None or found.size != 1 or found.dtype.kind not in "iuf":
        return None
    number = float(found.reshape(-1)[0])
    return number if math.isfinite(number) else None


def list_length(tensors: Tensors, name: str, depth: int = 0) -> float | None:
    """Elements of a TensorArray or TensorList by its handle, where the graph says so."""
    node = tensors.nodes.get(split(name)[0])
    if node is None or depth > _DEPTH:
        return None
    inputs = data_inputs(node)
    if node.op in _LIST_SIZE_INPUT and len(inputs) > _LIST_SIZE_INPUT[node.op]:
        length = scalar(tensors, inputs[_LIST_SIZE_INPUT[node.op]])
        return length if length is not None and length > 0 else None
    if node.op == "TensorListFromTensor" and inputs:
        shape = tensors.shape(*split(inputs[0]))
        return float(shape[0]) if shape and shape[0] > 0 else None
    if node.op in _PASSING and inputs:
        return list_length(tensors, inputs[0], depth + 1)
    return None


@dataclasses.dataclass(frozen=True)
class LoopVariable:
    """One variable of a loop, as its condition reads it.

    Attributes:
      initial: its value before the loop, if known.
      step: what one iteration adds to it; 0 for what the loop does not change; None if unknown.
    """

    initial: float | None
    step: float | None


def count_from_condition(
    tensors: Tensors, name: str, variable: Callable[[str], LoopVariable | None]
) -> float | None:
    """Trip count that a loop condition allows; None if it cannot be read.

    Args:
      tensors: the graph that computes the condition.
      name: tensor name of the condition.
      variable: the loop variable that a tensor of it is, or None.
    """
    seen: set[str] = set()
    found: list[float] = []
    waiting = [name]
    while waiting:
        node = tensors.nodes.get(split(waiting.pop())[0])
        if node is None or node.name in seen:
            continue
        seen.add(node.name)
        if node.op in _PASSING:
            waiting += data_inputs(node)[:1]
        elif node.op == "LogicalAnd":
            waiting += data_inputs(node)
        else:
            count = _count_from_comparison(tensors, node, variable)
            found += [] if count is None else [count]
    return min(found, default=None)


def _count_from_comparison(
    tensors: Tensors,
    node: node_def_pb2.NodeDef,
    variable: Callable[[str], LoopVariable | None],
) -> float | None:
    inputs = data_inputs(node)
    if node.op not in ("Less", "LessEqual", "Greater", "GreaterEqual", "NotEqual"):
        return None
    left = _operand(tensors, inputs[0], variable)
    right = _operand(tensors, inputs[1], variable)
    if left is None or right is None or left.initial is None or right.initial is None:
        return None
    if left.step is None or right.step is None:
        return None
    # The condition holds while `distance` is positive (or not negative), and each iteration
    # takes `step` off it.
    distance, step = right.initial - left.initial, left.step - right.step
    if node.op.startswith("Greater"):
        distance, step = -distance, -step
    if node.op == "NotEqual":
        distance, step = abs(distance), abs(step)
    if step <= 0:
        return None
    if node.op.endswith("Equal") and node.op != "NotEqual":
        return float(max(math.floor(distance / step) + 1, 0))
    return float(max(math.ceil(distance / step), 0))


def _operand(
    tensors: Tensors, name: str, variable: Callable[[str], LoopVariable | None]
) -> LoopVariable | None:
    for _ in range(_DEPTH):
        found = variable(name)
        if found is not None:
            return found
        node = tensors.nodes.get(split(name)[0])
        if node is None or node.op not in _PASSING:
            break
        if node.op in ("Enter", "RefEnter"):
            break
        name = data_inputs(node)[0]
    number = scalar(tensors, name)
    return None if number is None else LoopVariable(number, 0.0)


def step_of(tensors: Tensors, name: str, itself: Callable[[str], bool]) -> float | None:
    """What `name` adds to the loop variable that `itself` recognises; None if not a constant."""
    for _ in range(_DEPTH):
        if itself(name):
            return 0.0
        node = tensors.nodes.get(split(name)[0])
        if node is None:
            return None
        inputs = data_inputs(node)
        if node.op in _PASSING and inputs:
            name = inputs[0]
            continue
        if node.op not in ("Add", "AddV2", "Sub"):
            return None
        for own, other, sign in ((0, 1, 1.0), (1, 0, 1.0)):
            if node.op == "Sub":
                if own == 1:
                    continue
                sign = -1.0
            if _leads_to(tensors, inputs[own], itself):
                amount = scalar(tensors, inputs[other])
                return None if amount is None else sign * amount
        return None
    return None


def _leads_to(tensors: Tensors, name: str, itself: Callable[[str], bool]) -> bool:
    for _ in range(_DEPTH):
        if itself(name):
            return True
        node = tensors.nodes.get(split(name)[0])
        if node is None or node.op not in _PASSING:
            return False
        name = data_inputs(node)[0]
    return False


def frame_count(tensors: Tensors, frame: str, members: Sequence[str]) -> tuple[float, str]:
    """Trip count of a v1 while frame and where it is from.

    Args:
      tensors: the whole graph.
      frame: name of the frame.
      members: names of the ops whose innermost frame it is.
    """
    nodes = tensors.nodes

    def variable(name: str) -> LoopVariable | None:
        return _merged_variable(tensors, members, name)

    counts = [
        count_from_condition(tensors, node.input[0], variable)
        for node in (nodes[m] for m in members)
        if node.op == "LoopCond"
    ]
    found = [c for c in counts if c is not None]
    if found:
        return min(found), FROM_CONSTANTS
    entering = [
        nodes[m].input[0]
        for m in members
        if nodes[m].op == "Enter"
        and nodes[m].attr["frame_name"].s.decode(errors="replace") == frame
    ]
    return _from_lists(tensors, entering)


def leave_frame(tensors: Tensors, members: Sequence[str], count: float) -> None:
    """Adds to `tensors.known` what the variables of a v1 frame are after `count` iterations."""
    for member in members:
        if tensors.nodes[member].op != "Exit":
            continue
        switch = tensors.nodes.get(split(tensors.nodes[member].input[0])[0])
        if switch is None or switch.op != "Switch":
            continue
        found = _merged_variable(tensors, members, switch.input[0])
        if found is not None and found.initial is not None and found.step is not None:
            tensors.known[member, 0] = found.initial + count * found.step


def _merged_variable(tensors: Tensors, members: Sequence[str], name: str) -> LoopVariable | None:
    """The loop variable that a v1 frame's Merge holds; None if `name` is no Merge."""
    nodes = tensors.nodes
    merge = nodes.get(split(name)[0])
    if merge is None or merge.op != "Merge" or split(name)[1] != 0:
        return None
    initial = step = None
    switches = {
        n for n in members if nodes[n].op == "Switch" and split(nodes[n].input[0])[0] == merge.name
    }
    for source in data_inputs(merge):
        node = nodes.get(split(source)[0])
        if node is None:
            continue
        if node.op == "Enter":
            initial = scalar(tensors, node.input[0])
        elif node.op == "NextIteration":
            step = step_of(
                tensors,
                node.input[0],
                lambda n: split(n)[0] in switches or split(n)[0] == merge.name,
            )
    return LoopVariable(initial, step)


def while_count(
    outer: Tensors,
    arguments: Sequence[str],
    condition: Tensors,
    condition_names: Sequence[str],
    condition_result: str,
    body: Tensors,
    body_names: Sequence[str],
    body_results: Sequence[str],
) -> tuple[float, str]:
    """Trip count of a functional While and where it is from.

    Args:
      outer: the graph with the While op; `arguments` are the names of its data inputs.
      condition, body: its functions; `*_names` are the nodes of their arguments.
      condition_result: what the condition returns; `body_results` what the body returns.
    """
    position = {name: i for i, name in enumerate(condition_names)}

    def variable(name: str) -> LoopVariable | None:
        i = position.get(split(name)[0])
        if i is None or i >= len(arguments):
            return None
        return _argument_variable(outer, arguments[i], body, body_names[i], body_results[i])

    found = count_from_condition(condition, condition_result, variable)
    if found is not None:
        return found, FROM_CONSTANTS
    return _from_lists(outer, arguments)


def leave_while(
    outer: Tensors,
    name: str,
    arguments: Sequence[str],
    body: Tensors,
    body_names: Sequence[str],
    body_results: Sequence[str],
    count: float,
) -> None:
    """Adds to `outer.known` what the While op `name` puts out after `count` iterations."""
    for i, argument in enumerate(arguments):
        found = _argument_variable(outer, argument, body, body_names[i], body_results[i])
        if found.initial is not None and found.step is not None:
            outer.known[name, i] = found.initial + count * found.step


def _argument_variable(
    outer: Tensors, argument: str, body: Tensors, itself: str, result: str
) -> LoopVariable:
    """The variable of a functional While with this argument, name in the body and result."""
    return LoopVariable(
        scalar(outer, argument), step_of(body, result, lambda n: split(n)[0] == itself)
    )


def _from_lists(tensors: Tensors, names: Sequence[str]) -> tuple[float, str]:
    lengths = [list_length(tensors, n) for n in names]
    found = [length for length in lengths if length is not None]
    return (max(found), FROM_LIST) if found else (1.0, ASSUMED)


def runs_in_frames(
    nodes: Sequence[node_def_pb2.NodeDef],
    paths: Sequence[tuple[str, ...]],
    counts: Mapping[str, float],
) -> np.ndarray:
    """float64[N]: how often each op runs in a step.

    Args:
      nodes: N nodes.
      paths: the v1 while frames around each, outermost first.
      counts: trip count of each frame.
    """
    runs = np.ones(len(paths))
    for op, path in enumerate(paths):
        if not path:
            continue
        # Enter and Exit run once an entry into the loop, as what surrounds it does.
        crossing = nodes[op].op in ("Enter", "RefEnter", "Exit", "RefExit")
        for frame in path[:-1] if crossing else path:
            runs[op] *= counts.get(frame, 1.0)
    return runs
