"""From a PlacementProblem to the simulator's arrays."""

from __future__ import annotations

import numpy as np

from placer.graph.kernels import INEXPENSIVE_OPS
from placer.problem import PlacementProblem
from placer.simulator.inputs import SimulatorInputs
from placer.simulator.simulator import Simulator


def simulator_inputs(problem: PlacementProblem) -> SimulatorInputs:
    """The arrays of a problem; see SimulatorInputs."""
    graph, topology, costs = problem.graph, problem.topology, problem.costs
    links = topology.links()
    inline_types = [i for i, op in enumerate(graph.op_types) if op in INEXPENSIVE_OPS]
    return SimulatorInputs(
        executed=graph.executed,
        op_seconds=costs.seconds,
        launch_seconds=np.array([d.model.launch_seconds for d in topology.devices]),
        persistent_bytes=graph.persistent_bytes,
        temporary_bytes=costs.temporary_bytes,
        out_ptr=graph.out_ptr,
        tensor_bytes=graph.tensor_bytes,
        tensor_local_bytes=graph.tensor_local_bytes,
        tensor_alias=graph.tensor_alias,
        in_ptr=graph.in_ptr,
        in_tensor=graph.in_tensor,
        control_src=graph.control_src,
        control_dst=graph.control_dst,
        device_class=topology.device_model,
        memory_limit=topology.memory_bytes,
        concurrency=np.array([d.concurrency for d in topology.devices], np.int32),
        executor_threads=np.array([d.executor_threads for d in topology.devices], np.int32),
        contention=topology.contention,
        inline_op=np.isin(graph.op_type, inline_types),
        latency=links.latency,
        seconds_per_byte=links.seconds_per_byte,
        channels=links.channels,
        send_cpu_seconds=links.send_cpu,
        send_cpu_seconds_per_byte=links.send_cpu_per_byte,
        recv_cpu_seconds=links.receive_cpu,
        recv_cpu_seconds_per_byte=links.receive_cpu_per_byte,
    )


def build_simulator(problem: PlacementProblem) -> Simulator:
    """A simulator of a problem's graph on its topology."""
    return Simulator(simulator_inputs(problem))
