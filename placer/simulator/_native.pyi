from typing import Any

import numpy as np
import numpy.typing as npt

class MoveBase:
    @property
    def step_seconds(self) -> float: ...
    @property
    def peak_bytes(self) -> npt.NDArray[np.int64]: ...

class Simulator:
    def __init__(self, inputs: Any) -> None: ...
    def evaluate(
        self,
        placements: npt.NDArray[np.int32],
        group_of: npt.NDArray[np.int32] | None,
        cutoff: npt.NDArray[np.float64],
        threads: int,
    ) -> tuple[
        npt.NDArray[np.float64],
        npt.NDArray[np.bool_],
        npt.NDArray[np.int64],
        npt.NDArray[np.float64],
        npt.NDArray[np.float64],
        npt.NDArray[np.int64],
    ]: ...
    def simulate(
        self, placement: npt.NDArray[np.int32], group_of: npt.NDArray[np.int32] | None
    ) -> dict[str, Any]: ...
    def lower_bound(
        self, allowed: npt.NDArray[np.bool_] | None, colocation: npt.NDArray[np.int32] | None
    ) -> tuple[float, float, float, float, float, str]: ...
    def move_base(
        self, placement: npt.NDArray[np.int32], group_of: npt.NDArray[np.int32] | None
    ) -> MoveBase: ...
    def evaluate_moves(
        self,
        base: MoveBase,
        move_ptr: npt.NDArray[np.int64],
        move_slots: npt.NDArray[np.int32],
        move_devices: npt.NDArray[np.int32],
        cutoff: npt.NDArray[np.float64],
        threads: int,
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.int64]]: ...
