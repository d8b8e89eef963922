"""Neighbourhood: the moves of the local search, at many scales.

A move takes some colocation groups ("atoms") to one device. Which atoms are worth moving together
decides how good the search is: in an unrolled network the ops of one layer over a stretch of time
move for one transfer of the layer's weights, where any one of them alone would pay for it in full.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placer.auto.move_sets import FAMILIES, MoveSets
from placer.auto.view import View
from placer.grouping import Grouping
from placer.problem import PlacementProblem
from placer.simulator import Simulator

# atom: one. ball: one with those that exchange most with it. swap: a ball against another.
# group, scope, role, linkage, part: sets of MoveSets, whole or those of one device. window: such a
# set in a stretch of time. wire: an end of a transfer of the critical path to its other end.
# blockers: what kept a device busy while the critical path waited for it. inherit: a set's
# devices in another good placement.
OPERATORS = (
    "atom",
    "ball",
    "swap",
    *FAMILIES,
    "window",
    "wire",
    "blockers",
    "inherit",
)
_LARGEST_BALL = 32
_MOST_BLOCKERS = 64

Move = tuple[np.ndarray, np.ndarray]


class Neighbourhood:
    """Proposes moves of atoms.

    Attributes:
      atoms: the finest grouping: A atoms.
      movable: int64[M] atoms that can and matter to be moved.
    """

    def __init__(self, problem: PlacementProblem, atoms: Grouping) -> None:
        self.atoms = atoms
        self._sets = MoveSets(problem, atoms)
        self.movable = self._sets.movable
        self._adjacency()
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

    def neighbours(self, atom: int) -> np.ndarray:
        """Atoms that exchange tensors with one, most bytes first."""
        return self._neighbour[self._pointer[atom] : self._pointer[atom + 1]]

    def view(self, simulator: Simulator, devices: np.ndarray) -> View:
        """Simulates a placement of atoms, int32[A], for what guides its moves."""
        trace = simulator.simulate(devices, self.atoms.group_of)
        return View.of_trace(trace, self.atoms, self.movable)

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
    ) -> Move | None:
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
        if operator == "inherit":
            return self._inherit(devices, mates, view, rng)
        if operator == "wire":
            return self._wire(devices, view, rng)
        if operator == "blockers":
            return self._blockers(devices, view, rng)
        if operator == "atom":
            members: np.ndarray | None = np.array([self._pick_atom(view, rng)])
        elif operator in ("ball", "swap"):
            members = self._ball(self._pick_atom(view, rng), devices, rng)
        else:
            members = self._set(operator, devices, view, rng)
        if members is None:
            return None
        target = self._target(members, devices, view, rng)
        move = self._move(members, target, devices)
        if move is not None and operator == "swap":
            move = self._in_exchange(move, int(devices[members[0]]), target, devices, rng)
        return move

    def _move(self, members: np.ndarray, target: int, devices: np.ndarray) -> Move | None:
        """Those of the members that may use the target and are not there, to the target."""
        fits = self.atoms.allowed[members, target] & (devices[members] != target)
        if not fits.any():
            return None
        moved = members[fits]
        return moved, np.full(len(moved), target, np.int32)

    def _set(
        self, operator: str, devices: np.ndarray, view: View, rng: np.random.Generator
    ) -> np.ndarray | None:
        window = operator == "window"
        family = FAMILIES[int(rng.integers(len(FAMILIES)))] if window else operator
        members = self._sets.pick(family, self._pick_atom(view, rng), rng)
        if members is None:
            return None
        if window or rng.random() < 0.3:
            members = _window(members, view, rng)
        if rng.random() < 0.6:
            device = devices[members[rng.integers(len(members))]]
            members = members[devices[members] == device]
        return members

    def _in_exchange(
        self, move: Move, source: int, target: int, devices: np.ndarray, rng: np.random.Generator
    ) -> Move:
        """The move, and a ball of the target's atoms the other way."""
        allowed = self.atoms.allowed
        there = self.movable[(devices[self.movable] == target) & allowed[self.movable, source]]
        if not len(there):
            return move
        ball = self._ball(int(there[rng.integers(len(there))]), devices, rng)
        ball = ball[allowed[ball, source]]
        back = np.full(len(ball), source, np.int32)
        return np.concatenate([move[0], ball]), np.concatenate([move[1], back])

    def _wire(self, devices: np.ndarray, view: View, rng: np.random.Generator) -> Move | None:
        """The producer to the reader's device, or the reader to the producer's."""
        i = view.pick_wire(rng)
        if i is None:
            return None
        producer, reader = int(view.wire_producer[i]), int(view.wire_reader[i])
        if rng.random() < 0.5:
            atom, target = producer, int(devices[reader])
        else:
            atom, target = reader, int(devices[producer])
        one = rng.random() < 0.5
        members = np.array([atom]) if one else self._ball(atom, devices, rng)
        return self._move(members, target, devices)

    def _blockers(self, devices: np.ndarray, view: View, rng: np.random.Generator) -> Move | None:
        """Up to so many successive blockers of the critical path to an idle device."""
        count = len(view.blockers)
        if not count:
            return None
        first = int(rng.integers(count))
        size = int(2 ** rng.uniform(0, np.log2(_MOST_BLOCKERS)))
        members = np.unique(view.blockers[first : first + size])
        members = members[devices[members] == devices[view.blockers[first]]]
        if not len(members):
            return None
        return self._move(members, self._target(members, devices, view, rng), devices)

    def _inherit(
        self,
        devices: np.ndarray,
        mates: Sequence[np.ndarray],
        view: View,
        rng: np.random.Generator,
    ) -> Move | None:
        """Takes over a set's devices from another placement."""
        if not mates:
            return None
        mate = mates[int(rng.integers(len(mates)))]
        family = FAMILIES[int(rng.integers(len(FAMILIES)))]
        members = self._sets.pick(family, self._pick_atom(view, rng), rng)
        if members is None:
            return None
        if rng.random() < 0.5:
            members = _window(members, view, rng)
        members = members[devices[members] != mate[members]]
        return (members, mate[members]) if len(members) else None

    def _target(
        self, members: np.ndarray, devices: np.ndarray, view: View, rng: np.random.Generator
    ) -> int:
        """A device to move to: where a neighbour is, one that is idle then, or any."""
        atom = int(members[rng.integers(len(members))])
        current = devices[atom]
        choice = rng.random()
        if choice < 0.4:
            near = devices[self.neighbours(atom)]
            near = near[near != current]
            if len(near):
                return int(near[rng.integers(len(near))])
        choices = np.flatnonzero(self.atoms.allowed[atom])
        choices = choices[choices != current]
        if not len(choices):
            return int(current)
        if choice < 0.75:
            idle = np.cumsum(view.idle_at(view.start[atom])[choices] + 1e-3)
            return int(choices[np.searchsorted(idle, rng.random() * idle[-1])])
        return int(choices[rng.integers(len(choices))])


def _window(members: np.ndarray, view: View, rng: np.random.Generator) -> np.ndarray:
    """Only those of a set that start in a stretch of time."""
    order = members[np.argsort(view.start[members], kind="stable")]
    a, b = np.sort(rng.integers(0, len(order) + 1, 2))
    return order[a:b] if b > a else order[a : a + 1] if a < len(order) else order[-1:]
