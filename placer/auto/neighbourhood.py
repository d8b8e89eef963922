"""Neighbourhood: the moves of the local search, at many scales.

A move takes a set of colocation groups ("atoms") to one device. Which sets are worth moving
together decides how good the search is: in an unrolled network the ops of one layer over a
stretch of time move for one transfer of the layer's weights, where any one of them alone would
pay for it in full. The sets are found from the graph itself:

- one atom;
- an atom with those that exchange most with it (a ball, grown by bytes);
- an op group of a coarser grouping;
- a scope: what shares a name prefix, such as one cell at one step;
- a role: what has the same name, or scope, but for one number or for all numbers, such as one
  MatMul of a layer at all steps, or one layer at all steps;
- a linkage: what hangs together by tensors of at least so many bytes, such as a variable with all
  that reads it and the gradients that its update adds up;
- a part of a linkage: its ops of one type and output shape;

- what another good placement has elsewhere ("inherit");

each whole, or only what runs in a window of time, and only what is on one device now.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from placer.grouping import Grouping, group_ops
from placer.problem import PlacementProblem
from placer.simulator import Simulator

OPERATORS = (
    "atom",
    "ball",
    "group",
    "scope",
    "role",
    "linkage",
    "part",
    "window",
    "swap",
    "inherit",
)
_FAMILIES = ("group", "scope", "role", "linkage", "part")
_LARGEST_BALL = 32


@dataclasses.dataclass(frozen=True, eq=False)
class View:
    """What guides the moves of one placement of A atoms.

    Attributes:
      start: float64[A] when each atom's first op starts, in seconds.
      critical_share: float64[M] cumulative time of the movable atoms on the critical path.
    """

    start: np.ndarray
    critical_share: np.ndarray


class Neighbourhood:
    """Proposes moves of atoms.

    Attributes:
      atoms: the finest grouping: A atoms.
      movable: int64[M] atoms that are executed, or hold memory, and may use several devices.
    """

    def __init__(self, problem: PlacementProblem, atoms: Grouping) -> None:
        self.problem = problem
        self.atoms = atoms
        busy = (atoms.size > 0) | (atoms.persistent_bytes > 0)
        self.movable = np.flatnonzero(busy & (atoms.allowed.sum(axis=1) > 1))
        self._adjacency()
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
        cost = atoms.seconds.min(axis=0)[self.movable]
        self._by_cost = np.cumsum(cost + 1e-3 * cost.sum() / max(len(cost), 1))

    def _adjacency(self) -> None:
        """CSR of neighbours in both directions, weighted by bytes."""
        atoms = self.atoms
        src = np.concatenate([atoms.edge_src, atoms.edge_dst])
        dst = np.concatenate([atoms.edge_dst, atoms.edge_src])
        weight = np.concatenate([atoms.edge_bytes, atoms.edge_bytes]) + 1.0
        order = np.lexsort((-weight, src))
        self._neighbour = dst[order].astype(np.int64)
        self._weight = weight[order]
        self._pointer = np.searchsorted(src[order], np.arange(atoms.num_groups + 1))

    def _group_sets(self) -> list[np.ndarray]:
        sets: list[np.ndarray] = []
        for size in (512, 128, 32, 8):
            grouping = group_ops(self.problem, size)
            label = np.zeros(self.atoms.num_groups, np.int64)
            label[self.atoms.group_of] = grouping.group_of
            sets += self._split(label)
        return sets

    def _names(self) -> list[str]:
        """For each movable atom, the name of the op that costs most in it."""
        graph = self.problem.graph
        weight = self.problem.costs.seconds.min(axis=0) + 1e-12
        heaviest = np.lexsort((weight, self.atoms.group_of))
        last = np.flatnonzero(np.diff(self.atoms.group_of[heaviest], append=-1))
        name_of = [graph.names[i] for i in heaviest[last]]
        return [name_of[a] for a in self.movable]

    def _scope_sets(self) -> list[np.ndarray]:
        return _distinct(
            [s for names in _prefixes(self._names()) for s in self._split_names(names)]
        )

    def _role_sets(self) -> list[np.ndarray]:
        names = self._names()
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

    def neighbours(self, atom: int) -> np.ndarray:
        """Atoms that exchange tensors with one, most bytes first."""
        return self._neighbour[self._pointer[atom] : self._pointer[atom + 1]]

    def view(self, simulator: Simulator, devices: np.ndarray) -> View:
        """Simulates a placement of atoms, int32[A], for what guides its moves."""
        trace = simulator.simulate(devices, self.atoms.group_of)
        start = np.full(self.atoms.num_groups, np.inf)
        np.fmin.at(start, self.atoms.group_of, trace.op_start)
        start[~np.isfinite(start)] = 0.0
        path = trace.critical_path()
        atom = self.atoms.group_of[[step.op for step in path]]
        length = np.bincount(atom, [step.end - step.start for step in path], self.atoms.num_groups)[
            self.movable
        ]
        share = np.cumsum(
            length + 1e-2 * length.sum() / max(np.count_nonzero(length), 1) * (length > 0)
        )
        return View(start, share)

    def _pick_atom(self, view: View, rng: np.random.Generator) -> int:
        """An atom: by its time on the critical path, by compute time, or any."""
        choice = rng.random()
        if choice < 0.4 and view.critical_share[-1] > 0:
            i = np.searchsorted(view.critical_share, rng.random() * view.critical_share[-1])
            return int(self.movable[min(i, len(self.movable) - 1)])
        if choice < 0.75:
            i = np.searchsorted(self._by_cost, rng.random() * self._by_cost[-1])
            return int(self.movable[min(i, len(self.movable) - 1)])
        return int(self.movable[rng.integers(len(self.movable))])

    def _ball(self, atom: int, devices: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The atom and those on its device that exchange most with what is in the ball."""
        size = int(2 ** rng.uniform(1, np.log2(_LARGEST_BALL)))
        ball = [atom]
        inside = {atom}
        device = devices[atom]
        i = 0
        while i < len(ball) and len(ball) < size:
            for other in self.neighbours(ball[i])[:8].tolist():
                if other not in inside and devices[other] == device and len(ball) < size:
                    inside.add(other)
                    ball.append(other)
            i += 1
        return np.array(ball)

    def propose(
        self,
        operator: str,
        devices: np.ndarray,
        view: View,
        rng: np.random.Generator,
        mates: Sequence[np.ndarray] = (),
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """A move.

        Args:
          operator: one of OPERATORS.
          devices: int32[A] the current placement of atoms.
          view: of this placement, or one a few moves ago.
          rng: source of all choices.
          mates: other good placements of atoms, for "inherit".

        Returns:
          (atoms int64[m], their new devices int32[m]), or None if the choice led nowhere.
        """
        allowed = self.atoms.allowed
        if operator == "inherit":
            return self._inherit(devices, mates, view, rng)
        if operator in ("atom", "ball", "swap"):
            atom = self._pick_atom(view, rng)
            members = np.array([atom]) if operator == "atom" else self._ball(atom, devices, rng)
        else:
            family = (
                _FAMILIES[int(rng.integers(len(_FAMILIES)))] if operator == "window" else operator
            )
            found = self._pick_set(family, view, rng)
            if found is None:
                return None
            members = found
            if operator == "window" or rng.random() < 0.3:
                members = self._window(members, view, rng)
            if rng.random() < 0.6:
                device = devices[members[rng.integers(len(members))]]
                members = members[devices[members] == device]
        target = self._target(members, devices, rng)
        fits = allowed[members, target] & (devices[members] != target)
        source = devices[members[0]]
        if not fits.any():
            return None
        moved = members[fits]
        new = np.full(len(moved), target, np.int32)
        if operator == "swap":
            candidates = self.movable[
                (devices[self.movable] == target) & allowed[self.movable, source]
            ]
            if len(candidates):
                other = self._ball(int(candidates[rng.integers(len(candidates))]), devices, rng)
                other = other[allowed[other, source] & (devices[other] == target)]
                moved = np.concatenate([moved, other])
                new = np.concatenate([new, np.full(len(other), source, np.int32)])
        return moved, new

    def _pick_set(self, family: str, view: View, rng: np.random.Generator) -> np.ndarray | None:
        """A set of a family that contains a picked atom, if there is one."""
        pointer, containing = self._containing[family]
        atom = self._pick_atom(view, rng)
        first, last = pointer[atom], pointer[atom + 1]
        if first == last:
            return None
        return self._sets[family][containing[rng.integers(first, last)]]

    def _inherit(
        self,
        devices: np.ndarray,
        mates: Sequence[np.ndarray],
        view: View,
        rng: np.random.Generator,
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Takes over a set's devices from another placement."""
        if not mates:
            return None
        mate = mates[int(rng.integers(len(mates)))]
        members = self._pick_set(_FAMILIES[int(rng.integers(len(_FAMILIES)))], view, rng)
        if members is None:
            return None
        if rng.random() < 0.5:
            members = self._window(members, view, rng)
        members = members[devices[members] != mate[members]]
        return (members, mate[members]) if len(members) else None

    @staticmethod
    def _window(members: np.ndarray, view: View, rng: np.random.Generator) -> np.ndarray:
        """Only those of a set that start in a stretch of time."""
        order = members[np.argsort(view.start[members], kind="stable")]
        a, b = np.sort(rng.integers(0, len(order) + 1, 2))
        return order[a:b] if b > a else order[a : a + 1] if a < len(order) else order[-1:]

    def _target(self, members: np.ndarray, devices: np.ndarray, rng: np.random.Generator) -> int:
        """A device to move to: half of the time one that a neighbour is on."""
        current = devices[members[0]]
        if rng.random() < 0.5:
            atom = int(members[rng.integers(len(members))])
            near = self.neighbours(atom)
            if len(near):
                other = devices[near]
                other = other[other != current]
                if len(other):
                    return int(other[rng.integers(len(other))])
        choices = np.flatnonzero(self.atoms.allowed[members[0]])
        choices = choices[choices != current]
        return int(choices[rng.integers(len(choices))]) if len(choices) else int(current)


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
