"""Making a graph runnable: initial values for its state and values for its inputs.

What is added is device-free: each added node names the node of the graph whose device it shares,
so one program serves every placement.

Placeholders and iterators that nobody feeds become constants of the same name on the device they
are placed on: a step time is the placement's, not the client's way of feeding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from placer.errors import PlacerError
from placer.runtime import synthesis

if TYPE_CHECKING:
    from tensorflow.core.framework import graph_pb2, node_def_pb2

    from placer.graph.source import GraphSource

_PREFIX = "placer_runtime"
_RESOURCE_VARIABLES = ("VarHandleOp",)
_REFERENCE_VARIABLES = ("Variable", "VariableV2")
_TABLES = ("HashTable", "HashTableV2")
_TABLE_INITIALIZERS = (
    "InitializeTable",
    "InitializeTableV2",
    "InitializeTableFromTextFile",
    "InitializeTableFromTextFileV2",
    "LookupTableImport",
    "LookupTableImportV2",
)
_ITERATORS = ("Iterator", "IteratorV2", "AnonymousIterator", "AnonymousIteratorV2")
_GET_NEXT = ("IteratorGetNext", "IteratorGetNextSync")
_ASSIGNMENTS = ("AssignVariableOp", "Assign")


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A graph that a session can run once devices are filled in.

    Attributes:
      graph_def: the caller's nodes first, in their order, then what was added. The caller's
        devices are not in it.
      owner: int32[M], for each of its M nodes the index of the caller's node whose device it
        shares; owner[i] = i for the caller's N nodes.
      num_nodes: N.
      targets: op names that one step runs.
      initializers: op names to run before the first step, in groups that run one after another.
      assigned: (placeholder to feed, op to run, value) for variables whose value is given.
      feeds: names of the tensors that each step is fed with.
    """

    graph_def: graph_pb2.GraphDef
    owner: np.ndarray
    num_nodes: int
    targets: tuple[str, ...]
    initializers: tuple[tuple[str, ...], ...]
    assigned: tuple[tuple[str, str, np.ndarray], ...]
    feeds: tuple[str, ...] = ()


def prepare(
    source: GraphSource,
    values: Mapping[str, np.ndarray] | None = None,
    feeds: Iterable[str] = (),
    seed: int = 0,
) -> Program:
    """Makes `source` runnable.

    Variables take their value, in this order, from `values`, the source's initial values, its
    init op, or their dtype and shape (`synthesis.initial_value`).

    Args:
      source: the graph; not changed.
      values: variable's op name -> initial value.
      feeds: tensor names that the caller feeds every step.
      seed: of synthesised values.

    Raises:
      PlacerError: if a variable or placeholder has a dtype or shape that nothing can be made for.
    """
    return _Preparation(source, {**source.initial_values, **(values or {})}, feeds, seed).program()


class _Preparation:
    def __init__(
        self,
        source: GraphSource,
        values: Mapping[str, np.ndarray],
        feeds: Iterable[str],
        seed: int,
    ):
        from tensorflow.core.framework import graph_pb2

        self._source = source
        self._graph = graph_pb2.GraphDef()
        self._graph.CopyFrom(source.graph_def)
        self._nodes = {n.name: n for n in self._graph.node}
        for node in self._graph.node:
            node.device = ""
            synthesis.drop_absent_colocations(node, self._nodes)
        self._index = {n.name: i for i, n in enumerate(self._graph.node)}
        self._owner = list(range(len(self._graph.node)))
        self._values = values
        self._feeds = tuple(f if ":" in f else f"{f}:0" for f in feeds)
        self._seed = seed
        self._assigns: list[str] = []
        self._late: list[str] = []
        self._assigned: list[tuple[str, str, np.ndarray]] = []
        self._check_feeds()

    def _check_feeds(self) -> None:
        for feed in self._feeds:
            if feed.split(":")[0] not in self._nodes:
                raise PlacerError(f"{self._source.origin} has no op for the feed {feed!r}")

    def program(self) -> Program:
        targets = self._source.step_ops()
        needed = self._ancestors(targets)
        init = self._source.init_op
        initialized: set[str] = set()
        if init is not None:
            before = self._ancestors([init])
            initialized = {
                self._root(self._nodes[n].input[0])
                for n in before
                if self._nodes[n].op in _ASSIGNMENTS
            }
            self._feed_placeholders(before - needed)
        self._initialize_variables(needed, initialized)
        self._initialize_iterators(needed)
        # Without the iterators that are no longer read, and with what makes those that are.
        self._initialize_tables(self._ancestors((*targets, *self._late)))
        self._feed_placeholders(self._ancestors((*targets, *self._late)))
        first = (*((init,) if init is not None else ()), *self._assigns)
        groups = tuple(g for g in (first, tuple(self._late)) if g)
        return Program(
            self._graph,
            np.array(self._owner, np.int32),
            len(self._source.graph_def.node),
            targets,
            groups,
            tuple(self._assigned),
            self._feeds,
        )

    def _ancestors(self, names: Iterable[str]) -> set[str]:
        found: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name in found:
                continue
            if name not in self._nodes:
                raise PlacerError(f"{self._source.origin} has no node {name!r}, which it reads")
            found.add(name)
            waiting += [_op(i) for i in self._nodes[name].input]
        return found

    def _root(self, name: str) -> str:
        """The variable whose handle or reference `name` passes on."""
        name = _op(name)
        while self._nodes[name].op in ("Identity", "RefIdentity", "Enter", "RefEnter", "Switch"):
            name = _op(self._nodes[name].input[0])
        return name

    def _add(self, name: str, op: str, owner: str, inputs: Iterable[str]) -> node_def_pb2.NodeDef:
        node = self._graph.node.add(name=f"{_PREFIX}/{name}", op=op)
        while node.name in self._nodes:
            node.name += "_"
        node.input.extend(inputs)
        self._nodes[node.name] = node
        self._owner.append(self._index[owner])
        return node

    def _constant(
        self, name: str, owner: str, value: synthesis.Value, dtype: int | None = None
    ) -> str:
        node = self._add(name, "Const", owner, ())
        proto = synthesis.tensor_proto(value, dtype)
        node.attr["dtype"].type = proto.dtype
        node.attr["value"].tensor.CopyFrom(proto)
        return node.name

    def _initialize_variables(self, needed: set[str], initialized: set[str]) -> None:
        roles = synthesis.variable_roles(self._source.graph_def)
        for i, node in enumerate(self._source.graph_def.node):
            if node.op not in _RESOURCE_VARIABLES + _REFERENCE_VARIABLES or node.name not in needed:
                continue
            if node.name in self._values:
                self._assign_given(i, node, np.asarray(self._values[node.name]))
            elif node.name not in initialized:
                self._assign_synthesised(i, node, roles.get(node.name, synthesis.Role.WEIGHT))

    def _assign(self, i: int, node: node_def_pb2.NodeDef, value: str) -> str:
        if node.op in _RESOURCE_VARIABLES:
            assign = self._add(f"assign/{i}", "AssignVariableOp", node.name, (node.name, value))
            assign.attr["dtype"].type = node.attr["dtype"].type
        else:
            assign = self._add(f"assign/{i}", "Assign", node.name, (node.name, value))
            assign.attr["T"].type = node.attr["dtype"].type
            assign.attr["validate_shape"].b = False
            # A reference binds an op to the variable's device; say so to TensorFlow's placer.
            assign.attr["_class"].list.s.append(b"loc:@" + node.name.encode())
        return assign.name

    def _assign_given(self, i: int, node: node_def_pb2.NodeDef, value: np.ndarray) -> None:
        fed = self._add(f"value/{i}", "Placeholder", node.name, ())
        fed.attr["dtype"].type = node.attr["dtype"].type
        for size in value.shape:
            fed.attr["shape"].shape.dim.add(size=size)
        self._assigned.append((f"{fed.name}:0", self._assign(i, node, fed.name), value))

    def _assign_synthesised(self, i: int, node: node_def_pb2.NodeDef, role: synthesis.Role) -> None:
        shape = synthesis.static_shape(node.attr["shape"].shape)
        dtype = node.attr["dtype"].type
        where = f"{self._source.origin}: variable {node.name!r}"
        if shape is None:
            raise PlacerError(f"{where} has no shape; give its value or an init op")
        value = synthesis.initial_value(role, dtype, shape, where)
        name = node.name
        dims = self._constant(f"shape/{i}", name, np.array(shape, np.int32))
        if value.limit == 0.0:
            scalar = self._constant(f"fill/{i}", name, np.asarray(value.constant), dtype)
            made = self._add(f"initial/{i}", "Fill", name, (dims, scalar))
            made.attr["T"].type = dtype
            made.attr["index_type"].type = synthesis.INT32
        else:
            uniform = self._add(f"uniform/{i}", "RandomUniform", name, (dims,))
            uniform.attr["T"].type = synthesis.INT32
            uniform.attr["dtype"].type = dtype
            uniform.attr["seed"].i = self._seed + 1
            uniform.attr["seed2"].i = i + 1
            half = self._constant(f"half/{i}", name, np.asarray(0.5), dtype)
            width = self._constant(f"width/{i}", name, np.asarray(2 * value.limit), dtype)
            centred = self._add(f"centred/{i}", "Sub", name, (uniform.name, half))
            made = self._add(f"initial/{i}", "Mul", name, (centred.name, width))
            centred.attr["T"].type = made.attr["T"].type = dtype
        self._assigns.append(self._assign(i, node, made.name))

    def _initialize_tables(self, needed: set[str]) -> None:
        done: set[str] = set()
        for node in self._source.graph_def.node:
            if node.op in _TABLE_INITIALIZERS and self._root(node.input[0]) in needed:
                self._late.append(node.name)
                done.add(self._root(node.input[0]))
        for i, node in enumerate(self._source.graph_def.node):
            if node.op not in _TABLES or node.name not in needed or node.name in done:
                continue
            kinds = (node.attr["key_dtype"].type, node.attr["value_dtype"].type)
            keys, values = (
                self._constant(
                    f"table/{i}/{part}", node.name, synthesis.zeros(kind, (1,), node.name), kind
                )
                for part, kind in zip(("keys", "values"), kinds, strict=True)
            )
            op = "InitializeTableV2" if node.op == "HashTableV2" else "InitializeTable"
            made = self._add(f"table/{i}", op, node.name, (node.name, keys, values))
            made.attr["Tkey"].type, made.attr["Tval"].type = kinds
            self._late.append(made.name)

    def _initialize_iterators(self, needed: set[str]) -> None:
        made: set[str] = set()
        for node in self._source.graph_def.node:
            if node.op == "MakeIterator":
                root = self._root(node.input[1])
                if root in needed:
                    made.add(root)
                    self._late.append(node.name)
        for name in sorted(needed):
            node = self._nodes[name]
            if node.op in _GET_NEXT:
                root = self._nodes[self._root(node.input[0])]
                if root.op in (*_ITERATORS, "Placeholder") and root.name not in made:
                    self._replace_get_next(node)

    def _replace_get_next(self, node: node_def_pb2.NodeDef) -> None:
        shapes = node.attr["output_shapes"].list.shape
        types = list(node.attr["output_types"].list.type)
        bounds = synthesis.index_bounds(self._source.graph_def, node.name)
        values = [
            self._constant(
                f"next/{self._index[node.name]}/{k}",
                node.name,
                synthesis.input_value(dtype, shape, bounds.get(k), self._seed, f"{node.name}:{k}"),
                dtype,
            )
            for k, (dtype, shape) in enumerate(zip(types, shapes, strict=True))
        ]
        control = [i for i in node.input if i.startswith("^")]
        node.op = "IdentityN"
        node.ClearField("attr")
        node.attr["T"].list.type.extend(types)
        node.ClearField("input")
        node.input.extend([*values, *control])

    def _feed_placeholders(self, needed: set[str]) -> None:
        for name in sorted(needed):
            node = self._nodes[name]
            if node.op not in ("Placeholder", "PlaceholderV2") or f"{name}:0" in self._feeds:
                continue
            if name.startswith(_PREFIX):
                continue
            dtype = node.attr["dtype"].type
            bound = synthesis.index_bounds(self._source.graph_def, name).get(0)
            value = synthesis.input_value(
                dtype, node.attr["shape"].shape, bound, self._seed, f"placeholder {name!r}"
            )
            node.op = "Const"
            kept = {k: node.attr[k].SerializeToString() for k in node.attr if k.startswith("_")}
            node.ClearField("attr")
            for key, data in kept.items():
                node.attr[key].ParseFromString(data)
            node.attr["dtype"].type = dtype
            node.attr["value"].tensor.CopyFrom(synthesis.tensor_proto(value, dtype))


def _op(name: str) -> str:
    return name.removeprefix("^").partition(":")[0]
