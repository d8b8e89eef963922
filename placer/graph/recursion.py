"""Refusing functions that call themselves: TensorFlow's importer overflows its stack on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tensorflow.core.framework import node_def_pb2

from placer.errors import PlacerError
from placer.graph.source import GraphSource


def check_recursion(source: GraphSource) -> None:
    """Raises PlacerError, naming the functions, if one calls itself, directly or not."""
    library = {f.signature.name: f for f in source.graph_def.library.function}
    called = {
        name: sorted(set(_functions(function.node_def, library)))
        for name, function in library.items()
    }
    done: set[str] = set()
    for root in sorted(library):
        path: list[str] = []
        stack = [iter([root])]
        while stack:
            name = next(stack[-1], None)
            if name is None:
                stack.pop()
                if path:
                    done.add(path.pop())
            elif name in path:
                shown = " -> ".join([*path[path.index(name) :], name])
                raise PlacerError(
                    f"{source.origin} has a function that calls itself ({shown}); "
                    "TensorFlow cannot run it, write it as a while loop"
                )
            elif name not in done:
                path.append(name)
                stack.append(iter(called[name]))


def _functions(nodes: Iterable[node_def_pb2.NodeDef], library: dict) -> Iterator[str]:
    """The library's functions that nodes name, as their op or in attributes."""
    for node in nodes:
        if node.op in library:
            yield node.op
        for value in node.attr.values():
            if value.HasField("func") and value.func.name in library:
                yield value.func.name
            for function in value.list.func:
                if function.name in library:
                    yield function.name
