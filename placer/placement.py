"""Placement: which device each op of one graph runs on, with figures and where it came from."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping

import numpy as np
from google.protobuf import text_format

from placer.errors import PlacerError
from placer.files import read_proto, write_atomically
from placer.protos import placement_pb2


@dataclasses.dataclass(frozen=True)
class Figures:
    """What is known of one placement on one topology.

    Attributes:
      predicted_step_seconds: by the simulator; None where not simulated.
      measured_step_seconds: median of real steps; None where not measured.
      peak_bytes: device name -> peak memory by the simulator.
      infeasible: "" if it fits and runs, else why not.
    """

    predicted_step_seconds: float | None = None
    measured_step_seconds: float | None = None
    peak_bytes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    infeasible: str = ""


@dataclasses.dataclass(frozen=True, eq=False)
class Placement(Mapping[str, str]):
    """A mapping from op name to full device name.

    Attributes:
      ops: N op names, in the graph's order.
      op_types: their N op types.
      devices: the devices of the topology.
      device_of_op: int32[N], indices into devices.
      graph_fingerprint: of the graph that it places (placer.graph.fingerprint).
      figures: what is known of it.
      provenance: how it was made, for a person to read.
      control_edges: int32[S, 2] ops (before, after) of one device, joined by control edges that
        were added to the graph; the fingerprint is of the graph without them.
    """

    ops: tuple[str, ...]
    op_types: tuple[str, ...]
    devices: tuple[str, ...]
    device_of_op: np.ndarray
    graph_fingerprint: str = ""
    figures: Figures = Figures()
    provenance: Mapping[str, str] = dataclasses.field(default_factory=dict)
    control_edges: np.ndarray = dataclasses.field(
        default_factory=lambda: np.zeros((0, 2), np.int32)
    )

    def __post_init__(self) -> None:
        edges = self.control_edges
        if len(edges) and not (edges.min() >= 0 and edges.max() < len(self.ops)):
            raise PlacerError("a placement joins an op number that it has no name for")
        if not len(self.ops) == len(self.op_types) == len(self.device_of_op):
            raise PlacerError("a placement needs one op type and one device for each op")
        if len(self.ops) and not (
            self.device_of_op.min() >= 0 and self.device_of_op.max() < len(self.devices)
        ):
            raise PlacerError("a placement names a device number that it has no name for")
        index = {name: i for i, name in enumerate(self.ops)}
        object.__setattr__(self, "_index", index)

    def __getitem__(self, op: str) -> str:
        index: dict[str, int] = self._index  # type: ignore[attr-defined]
        return self.devices[self.device_of_op[index[op]]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.ops)

    def __len__(self) -> int:
        return len(self.ops)

    def __contains__(self, op: object) -> bool:
        return op in self._index  # type: ignore[attr-defined]

    @property
    def device_of(self) -> dict[str, str]:
        """Op name -> device name."""
        return dict(self)

    @property
    def fingerprint(self) -> str:
        """Same as graph_fingerprint."""
        return self.graph_fingerprint

    def counts(self) -> dict[str, int]:
        """Device name -> number of ops on it."""
        numbers = np.bincount(self.device_of_op, minlength=len(self.devices))
        return dict(zip(self.devices, numbers.tolist(), strict=True))

    def to_proto(self) -> placement_pb2.Placement:
        """As a proto; `from_proto` gives an equal placement back."""
        types = tuple(dict.fromkeys(self.op_types))
        numbers = {t: i for i, t in enumerate(types)}
        f = self.figures
        return placement_pb2.Placement(
            graph_fingerprint=self.graph_fingerprint,
            devices=self.devices,
            ops=self.ops,
            device_of_op=self.device_of_op.tolist(),
            op_types=types,
            op_type_of_op=[numbers[t] for t in self.op_types],
            figures=placement_pb2.PlacementFigures(
                predicted_step_seconds=f.predicted_step_seconds or 0.0,
                measured_step_seconds=f.measured_step_seconds or 0.0,
                peak_bytes={k: int(v) for k, v in f.peak_bytes.items()},
                infeasible=f.infeasible,
            ),
            provenance=dict(self.provenance),
            control_before=self.control_edges[:, 0].tolist(),
            control_after=self.control_edges[:, 1].tolist(),
        )

    @classmethod
    def from_proto(cls, proto: placement_pb2.Placement, where: str = "placement") -> Placement:
        """From a proto; PlacerError, which calls it `where`, if it is not consistent."""
        try:
            types = tuple(proto.op_types[i] for i in proto.op_type_of_op)
            if len(proto.control_before) != len(proto.control_after):
                raise PlacerError("a control edge lacks an end")
            return cls(
                ops=tuple(proto.ops),
                op_types=types,
                devices=tuple(proto.devices),
                device_of_op=np.array(proto.device_of_op, np.int32),
                graph_fingerprint=proto.graph_fingerprint,
                figures=Figures(
                    proto.figures.predicted_step_seconds or None,
                    proto.figures.measured_step_seconds or None,
                    dict(proto.figures.peak_bytes),
                    proto.figures.infeasible,
                ),
                provenance=dict(proto.provenance),
                control_edges=np.array(
                    [proto.control_before, proto.control_after], np.int32
                ).T.reshape(-1, 2),
            )
        except (PlacerError, IndexError) as error:
            raise PlacerError(f"{where} is damaged: {error}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a placement file atomically: text if its name ends in .pbtxt, else binary."""
        proto = self.to_proto()
        text = str(path).endswith(".pbtxt")
        data = text_format.MessageToString(proto).encode() if text else proto.SerializeToString()
        write_atomically(path, data)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Placement:
        """Reads a placement file, binary or text; PlacerError if it is not one."""
        proto = read_proto(path, placement_pb2.Placement, "placement", lambda p: bool(p.ops))
        return cls.from_proto(proto, where=str(path))

    def scope(self):
        """A context in which TensorFlow variables are created where this placement wants them."""
        from placer.plugin import variable_scope

        return variable_scope(self)
