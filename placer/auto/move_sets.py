"""Sets of atoms that are worth moving together, found from the graph itself."""

from __future__ import annotations

import re

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from placer.grouping import Grouping, group_ops
from placer.problem import PlacementProblem

FAMILIES = ("group", "scope", "role", "linkage", "part")


class MoveSets:
    """Families of sets of movable atoms.

    - group: an op group of a coarser grouping;
    - scope: what shares a name prefix, such as one cell at one step;
    - role: what has the same name, or scope, but for one number or for all numbers, such as one
      MatMul of a layer at all steps, or one layer at all steps;
    - linkage: what hangs together by tensors of at least so many bytes, such as a variable with
      all that reads it and the gradients that its update adds up;
    - part: the ops of one type and output shape of a linkage.

    Attributes:
      movable: int64[M] atoms that are executed, or hold memory, and may use several devices.
    """

    def __init__(self, problem: PlacementProblem, atoms: Grouping) -> None:
        self.problem = problem
        self.atoms = atoms
        busy = (atoms.size > 0) | (atoms.persistent_bytes > 0)
        self.movable = np.flatnonzero(busy & (atoms.allowed.sum(axis=1) > 1))
        self._names = self._costliest_names()
        linkages, parts = self._linkage_sets()
        self._sets = {
            "group": self._group_sets(),
            "scope": self._scope_sets(),
            "role": self._role_sets(),
            "linkage": linkages,
            "part": parts,
        }
        self._containing = {
            family: _memberships(sets, atoms.num_groups) for family, sets in self._sets.items()
        }

    def pick(self, family: str, atom: int, rng: np.random.Generator) -> np.ndarray | None:
        """A set of a family, int64[m], that contains an atom; None if none does."""
        pointer, containing = self._containing[family]
        first, last = pointer[atom], pointer[atom + 1]
        if first == last:
            return None
        return self._sets[family][containing[rng.integers(first, last)]]

    def _group_sets(self) -> list[np.ndarray]:
        sets: list[np.ndarray] = []
        for size in (512, 128, 32, 8):
            grouping = group_ops(self.problem, size)
            label = np.zeros(self.atoms.num_groups, np.int64)
            label[self.atoms.group_of] = grouping.group_of
            sets += self._split(label)
        return sets

    def _costliest_names(self) -> list[str]:
        """For each movable atom, the name of the op that costs most in it."""
        graph = self.problem.graph
        weight = self.problem.costs.seconds.min(axis=0) + 1e-12
        heaviest = np.lexsort((weight, self.atoms.group_of))
        last = np.flatnonzero(np.diff(self.atoms.group_of[heaviest], append=-1))
        name_of = [graph.names[i] for i in heaviest[last]]
        return [name_of[a] for a in self.movable]

    def _scope_sets(self) -> list[np.ndarray]:
        return _distinct([s for names in _prefixes(self._names) for s in self._split_names(names)])

    def _role_sets(self) -> list[np.ndarray]:
        names = self._names
        sets: list[np.ndarray] = []
        for level in (names, *_prefixes(names)):
            sets += self._split_names([re.sub(r"\d+", "#", n) for n in level])
            numbers = max((len(re.findall(r"\d+", n)) for n in level), default=0)
            for i in range(min(numbers, 4)):
                sets += self._split_names([_without_number(n, i) for n in level])
        return _distinct(sets)

    def _linkage_sets(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Components of the edges of at least so many bytes, and their ops of one kind."""
        graph, atoms = self.problem.graph, self.atoms
        # The kind of an atom: op type and output bytes of its costliest op.
        weight = self.problem.costs.seconds.min(axis=0) + 1e-12
        order = np.lexsort((weight, atoms.group_of))
        last = order[np.flatnonzero(np.diff(atoms.group_of[order], append=-1))]
        first_output = np.minimum(graph.out_ptr[last], max(len(graph.tensor_bytes) - 1, 0))
        outputs = graph.tensor_bytes[first_output] if len(graph.tensor_bytes) else 0 * last
        kind = graph.op_type[last].astype(np.int64) * (1 << 40) + outputs
        linkages: list[np.ndarray] = []
        parts: list[np.ndarray] = []
        top = int(np.log2(max(atoms.edge_bytes.max(initial=1.0), 1.0)))
        for power in range(top, 9, -1):
            heavy = atoms.edge_bytes >= 2.0**power
            _, label = connected_components(
                coo_matrix(
                    (np.ones(heavy.sum()), (atoms.edge_src[heavy], atoms.edge_dst[heavy])),
                    shape=(atoms.num_groups, atoms.num_groups),
                ),
                directed=False,
            )
            components = self._split(label.astype(np.int64))
            if len(components) <= 1 and power < top - 2:
                break
            linkages += components
            _, both = np.unique(np.stack([label, kind]), axis=1, return_inverse=True)
            parts += self._split(both.ravel().astype(np.int64))
        return _distinct(linkages), _distinct(parts)

    def _split_names(self, names: list[str]) -> list[np.ndarray]:
        _, inverse = np.unique(np.array(names, dtype=object).astype(str), return_inverse=True)
        label = np.full(self.atoms.num_groups, -1, np.int64)
        label[self.movable] = inverse
        return self._split(label, skip=-1)

    def _split(self, label: np.ndarray, skip: int | None = None) -> list[np.ndarray]:
        movable = self.movable if skip is None else self.movable[label[self.movable] != skip]
        order = movable[np.argsort(label[movable], kind="stable")]
        bounds = np.flatnonzero(np.diff(label[order])) + 1
        return [s for s in np.split(order, bounds) if len(s) > 1]


def _memberships(sets: list[np.ndarray], count: int) -> tuple[np.ndarray, np.ndarray]:
    """CSR by atom of the numbers of the sets that contain it."""
    if not sets:
        return np.zeros(count + 1, np.int64), np.zeros(0, np.int64)
    member = np.concatenate(sets)
    number = np.repeat(np.arange(len(sets)), [len(s) for s in sets])
    order = np.argsort(member, kind="stable")
    return np.searchsorted(member[order], np.arange(count + 1)), number[order]


def _prefixes(names: list[str]) -> list[list[str]]:
    """Scopes of names, one list a depth; "" for names that are not that deep."""
    deepest = max((n.count("/") for n in names), default=0)
    return [
        ["/".join(n.split("/")[:depth]) if n.count("/") >= depth else "" for n in names]
        for depth in range(1, min(deepest, 6) + 1)
    ]


def _without_number(name: str, i: int) -> str:
    """A name with its number i, counted from 0, replaced by "#"."""
    parts = re.split(r"(\d+)", name)
    if 2 * i + 1 < len(parts):
        parts[2 * i + 1] = "#"
    return "".join(parts)


def _distinct(sets: list[np.ndarray]) -> list[np.ndarray]:
    return list({s.tobytes(): s for s in sets}.values())
