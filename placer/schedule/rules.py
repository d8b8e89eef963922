"""Where TensorFlow allows a control edge that changes nothing but the order of execution."""

from __future__ import annotations

import functools

import numpy as np
from tensorflow.python.framework import op_def_registry

from placer.graph import OpGraph

# tensorflow/core/graph/graph.h; their inputs and outputs live by rules of their own.
_CONTROL_FLOW = frozenset(
    prefix + name
    for prefix in ("", "Ref")
    for name in ("Switch", "Merge", "Enter", "Exit", "NextIteration")
) | {"_SwitchN", "LoopCond", "ControlTrigger"}
_FED = frozenset({"Placeholder", "PlaceholderV2", "PlaceholderWithDefault", "_Arg", "_Retval"})
_READS = frozenset({"ReadVariableOp"})


class OrderRules:
    """Which ops may wait for which.

    An op may wait if a later start cannot change what it computes: it keeps no state and reads no
    reference, or reads a variable that the step writes, if at all, only afterwards. It may be
    waited for if it always runs: what comes after a conditional may be dead, and death spreads
    along control edges. Loops and conditionals are left alone.

    Whoever fetches an op also runs what it waits for. So an op waits for no writer of a state, and
    for nothing behind one, unless it did before; and for nothing that is fed if ops outside the
    step, such as a Saver, read it.

    Attributes:
      may_wait: bool[N]; reads of variables are looked at again when they are asked for.
      may_be_awaited: bool[N].
    """

    def __init__(self, graph: OpGraph) -> None:
        src = np.concatenate([graph.edge_src, graph.control_src]).astype(np.int64)
        dst = np.concatenate([graph.edge_dst, graph.control_dst]).astype(np.int64)
        by_dst = np.argsort(dst, kind="stable")
        self._inputs = src[by_dst]
        self._pointer = np.searchsorted(dst[by_dst], np.arange(graph.num_ops + 1))
        self._added: dict[int, list[int]] = {}

        types = np.array(graph.op_types, dtype=object)
        of_type = {t: _traits(t) for t in graph.op_types}
        stateful = np.array([of_type[t][0] for t in types], bool)[graph.op_type]
        references = np.array([of_type[t][1] for t in types], bool)[graph.op_type]
        flow = np.isin(types.astype(str), sorted(_CONTROL_FLOW))[graph.op_type]
        fed = np.isin(types.astype(str), sorted(_FED))[graph.op_type]
        reads = np.isin(types.astype(str), sorted(_READS))[graph.op_type]
        # Variables themselves; what writes reference variables hands their references on.
        holders = references & (np.diff(graph.in_ptr) == 0)
        # In and after loops and conditionals.
        guarded = _reached(flow, src, dst, graph.topological_order())
        # Ops that may see a reference variable's buffer: its readers, through shared buffers too.
        exposed = _exposed(graph, references)
        self._reads = reads
        self._group = graph.colocation
        self._writers_of = _state_by_group(graph, reads, stateful)
        self._ordered: dict[int, bool] = {}
        random = np.array([_is_random(t) for t in types], bool)[graph.op_type]
        self._writers = frozenset(
            np.flatnonzero(stateful & ~reads & ~random & ~fed & ~holders).tolist()
        )
        self._fed = frozenset(np.flatnonzero(fed).tolist())
        self._read_outside = np.zeros(graph.num_ops, bool)
        self._read_outside[src[~graph.executed[dst]]] = True
        self.may_be_awaited = graph.executed & ~guarded & ~fed
        self.may_wait = (
            graph.executed & ~guarded & ~fed & ~references & ~exposed & (~stateful | reads)
        )

    def allows(self, before: int, after: int) -> bool:
        """Whether `after` may wait for `before`; they must share a device, which is not checked.

        False for edges that would close a cycle, with those that `add` was told of.
        """
        if before == after or not self.may_be_awaited[before] or not self.may_wait[after]:
            return False
        needed = self.ancestors(before) | {before}
        if after in needed:
            return False
        extra = needed & self._writers
        if self._read_outside[after]:
            extra |= needed & self._fed
        if extra and not extra <= self.ancestors(after):
            return False
        return self._is_ordered(after)

    def add(self, before: int, after: int) -> None:
        """Takes an edge into account from now on."""
        self._added.setdefault(after, []).append(before)
        self.ancestors.cache_clear()

    # Enough for the op that many others are asked to wait for; each set may hold the whole graph.
    @functools.lru_cache(maxsize=8)  # noqa: B019 - rules live as long as a search
    def ancestors(self, op: int) -> frozenset[int]:
        """All ops that must have ended before `op` starts."""
        seen: set[int] = set()
        stack = [op]
        while stack:
            at = stack.pop()
            before = self._inputs[self._pointer[at] : self._pointer[at + 1]].tolist()
            for other in (*before, *self._added.get(at, ())):
                if other not in seen:
                    seen.add(other)
                    stack.append(other)
        return frozenset(seen)

    def _is_ordered(self, op: int) -> bool:
        """Whether every executed writer of the variable that an op reads, if any, waits for it."""
        if not self._reads[op]:
            return True
        if op not in self._ordered:
            # A variable and all that takes its handle are one colocation group, or part of one.
            writers = self._writers_of.get(int(self._group[op]), [])
            self._ordered[op] = all(op in self.ancestors(writer) for writer in writers)
        return self._ordered[op]


def _state_by_group(
    graph: OpGraph, reads: np.ndarray, stateful: np.ndarray
) -> dict[int, list[int]]:
    """Colocation group of reads -> executed ops that take its state, but for the reads."""
    groups = set(graph.colocation[reads & graph.executed].tolist())
    others: dict[int, list[int]] = {}
    for op in np.flatnonzero(stateful & ~reads & graph.executed).tolist():
        group = int(graph.colocation[op])
        if group in groups and len(_inputs_of(graph, op)):
            others.setdefault(group, []).append(op)
    return others


def _inputs_of(graph: OpGraph, op: int) -> np.ndarray:
    return graph.in_tensor[graph.in_ptr[op] : graph.in_ptr[op + 1]]


def _traits(op_type: str) -> tuple[bool, bool]:
    """(keeps state, hands out a reference or a resource); both for types unknown here."""
    op_def = op_def_registry.get(op_type)
    if op_def is None:
        return True, True
    handles = any(a.is_ref or a.type == _RESOURCE for a in op_def.output_arg)
    takes_references = any(a.is_ref for a in op_def.input_arg)
    return op_def.is_stateful or takes_references, handles


def _is_random(op_type: str) -> bool:
    """Random numbers keep a state that nothing else reads."""
    op_def = op_def_registry.get(op_type)
    handles = op_def is not None and any(a.type == _RESOURCE for a in op_def.input_arg)
    return not handles and any(word in op_type for word in ("Random", "TruncatedNormal"))


_RESOURCE = 20  # DT_RESOURCE, tensorflow/core/framework/types.proto


def _reached(start: np.ndarray, src: np.ndarray, dst: np.ndarray, order: np.ndarray) -> np.ndarray:
    """bool[N]: the ops of `start` and all behind them."""
    reached = start.copy()
    position = np.empty(len(start), np.int64)
    position[order] = np.arange(len(order))
    for e in np.argsort(position[src], kind="stable").tolist():
        if reached[src[e]]:
            reached[dst[e]] = True
    return reached


def _exposed(graph: OpGraph, references: np.ndarray) -> np.ndarray:
    """bool[N]: readers of tensors that may be the buffer of a reference variable."""
    unsafe = references[graph.tensor_op] if len(graph.tensor_op) else np.zeros(0, bool)
    # Handles are not buffers: what takes a resource is judged by its being stateful.
    unsafe = unsafe & (graph.tensor_dtype != _RESOURCE)
    exposed = np.zeros(graph.num_ops, bool)
    if not unsafe.any():
        return exposed
    unsafe = unsafe.copy()
    for op in graph.topological_order().tolist():
        tensors = _inputs_of(graph, op)
        if not len(tensors) or not unsafe[tensors].any():
            continue
        exposed[op] = True
        for t in range(graph.out_ptr[op], graph.out_ptr[op + 1]):
            alias = graph.tensor_alias[t]
            unsafe[t] |= alias >= 0 and unsafe[tensors[alias]]
    return exposed
