"""OpCosts: what each op costs on each device model of a topology."""

from __future__ import annotations

import dataclasses
import enum

import numpy as np

from placer.devices import DeviceModel


class CostOrigin(enum.IntEnum):
    """Where an op's cost comes from."""

    # Grappler's analytical model knows the op and its shapes.
    ANALYTICAL = 0
    # Grappler does not know the op, or a shape is unknown: a stated estimate.
    ESTIMATED = 1
    # Measured on the device.
    PROFILED = 2


@dataclasses.dataclass(frozen=True, eq=False)
class OpCosts:
    """Costs of N ops on K device models (K and their order as `Topology.models`).

    The overhead of an op's first launch is not part of it: the topology's device models hold it.
    That of later launches, of an op in a loop or of the ops in a function body, is.

    Attributes:
      models: the K device models.
      seconds: float64[K, N] compute time of one step: trip counts of loops are multiplied in.
      temporary_bytes: int64[K, N] memory the op takes only while it runs.
      origin: uint8[K, N], CostOrigin.
      trip_count_source: for each loop, by name, its trip count and where that comes from.
    """

    models: tuple[DeviceModel, ...]
    seconds: np.ndarray
    temporary_bytes: np.ndarray
    origin: np.ndarray
    trip_count_source: dict[str, tuple[float, str]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for array in (self.seconds, self.temporary_bytes, self.origin):
            array.setflags(write=False)
