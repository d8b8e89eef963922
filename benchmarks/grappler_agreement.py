"""Agreement of the simulator with Grappler's: the same costs, free transfers, random placements.

Grappler's scheduler (tensorflow/core/grappler/costs/virtual_scheduler.cc, FirstReadyManager) runs
one op at a time on a device, first ready first, as ours does. Ops that become ready at the same
time run in the order of their names there and in the order of the graph here, so the graph is given
to both with its nodes sorted by name. Its sends take a nanosecond on a channel device, and its
receives queue on the receiving device like any op, for a nanosecond: what arrives waits behind
what was ready before, and its readers then queue again. Links with a latency and a receiving cost
of a nanosecond do the same here.

Its out-of-memory verdicts (tensorflow/core/grappler/clusters/virtual_cluster.cc, Run) differ from
ours, and ours are right, because
- they leave out persistent memory, that is variables and constants, altogether: a model whose
  weights alone do not fit passes;
- they count the output of Identity, Reshape and the like as a new tensor, though TensorFlow shares
  the buffer;
- they count an output from the end of its op and its inputs until then, so that the two of an op
  never add up, though TensorFlow allocates outputs while the inputs are alive.
With the first two done Grappler's way, the peaks can be compared (`compare_memory`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import time
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from tensorflow.core.framework import graph_pb2, types_pb2
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow.python.framework import errors
from tensorflow.python.grappler import cluster as grappler_cluster
from tensorflow.python.grappler import item as grappler_item

from benchmarks.models.registry import build
from placer.costs import grappler
from placer.costs.known_ops import MINIMUM_OPS
from placer.costs.op_costs import CostOrigin, OpCosts
from placer.devices import Link, LinkRule, Sharing, Topology, parse
from placer.graph import GraphSource, OpGraph, build_op_graph, read
from placer.problem import PlacementProblem
from placer.simulator.build import simulator_inputs
from placer.simulator.inputs import SimulatorInputs
from placer.simulator.simulator import Simulator

# IsPersistent in tensorflow/core/grappler/op_types.cc, as far as training graphs have them.
_PERSISTENT = ("Const", "VarHandleOp", "VariableV2", "Variable", "ReadVariableOp")
# Multiples of the peak near which out-of-memory verdicts are compared.
LIMITS = (0.9, 0.95, 0.98, 1.02, 1.05, 1.1)
PAPER_MODELS = ("inception_v3", "rnnlm", "nmt")


@dataclasses.dataclass(frozen=True)
class Agreement:
    """How well step times agree over the placements of one model.

    Attributes:
      model: its name.
      placements: how many were compared.
      rank_correlation: Spearman's, of the step times.
      median_error, worst_error: |ours / Grappler's - 1|.
      our_rate, grappler_rate: placements a second; ours in one batch on one thread.
    """

    model: str
    placements: int
    rank_correlation: float
    median_error: float
    worst_error: float
    our_rate: float
    grappler_rate: float


def sorted_source(source: GraphSource) -> GraphSource:
    """The same graph with its nodes in the order of their names."""
    graph_def = graph_pb2.GraphDef()
    graph_def.CopyFrom(source.graph_def)
    del graph_def.node[:]
    graph_def.node.extend(sorted(source.graph_def.node, key=lambda n: n.name))
    return GraphSource(graph_def, source.fetches, origin=source.origin)


def grappler_costs(source: GraphSource, graph: OpGraph, topology: Topology) -> OpCosts:
    """Costs exactly as Grappler has them, with none of our estimates."""
    work = grappler.measure_work(source.graph_def, source.fetch_ops, source.origin)
    seconds = np.stack([grappler.seconds(work.operations, work.bytes, m) for m in topology.models])
    minimum = np.array([t in MINIMUM_OPS for t in graph.op_types])[graph.op_type]
    seconds[:, minimum] = grappler.MINIMUM_SECONDS
    shape = seconds.shape
    return OpCosts(
        models=topology.models,
        seconds=seconds,
        temporary_bytes=np.zeros(shape, np.int64),
        origin=np.full(shape, CostOrigin.ANALYTICAL, np.uint8),
    )


def random_placements(graph: OpGraph, topology: Topology, count: int, seed: int) -> np.ndarray:
    """int32[count, N]: placements that differ in grain and balance, GPUs for all that have kernels.

    Each cuts the graph into a random number of blocks (1 to 256), of its topological order or of
    the order of its nodes in turn, and draws each block's device from probabilities of its own.
    """
    rng = np.random.default_rng(seed)
    orders = (graph.topological_order(), np.arange(graph.num_ops))
    accelerators = [d for d, device in enumerate(topology.devices) if device.model.type == "GPU"]
    placements = np.zeros((count, graph.num_ops), np.int32)
    for i, row in enumerate(placements):
        order = orders[i % 2]
        blocks = int(2 ** rng.uniform(0, 8))
        weights = rng.dirichlet(np.full(len(accelerators), 0.7))
        devices = rng.choice(accelerators, size=blocks, p=weights)
        row[order] = devices[np.arange(order.size) * blocks // order.size]
        row[~graph.has_kernel[1]] = topology.client
    return placements


def as_grappler_sees(topology: Topology) -> Topology:
    """A topology without launch overhead and with transfers as free as Grappler's."""
    devices = tuple(
        dataclasses.replace(d, model=dataclasses.replace(d.model, launch_seconds=0.0))
        for d in topology.devices
    )
    free = Link(
        latency_seconds=grappler.MINIMUM_SECONDS,
        bytes_per_second=1e30,
        sharing=Sharing.PAIR,
        receive_cpu_seconds=grappler.MINIMUM_SECONDS,
    )
    return dataclasses.replace(topology, devices=devices, link_rules=(LinkRule(free),))


class GrapplerSimulator:
    """Grappler's own simulation of placements of one graph."""

    def __init__(self, source: GraphSource, topology: Topology) -> None:
        self._meta = meta_graph_pb2.MetaGraphDef()
        self._meta.graph_def.CopyFrom(source.graph_def)
        self._meta.collection_def["train_op"].node_list.value.extend(source.fetch_ops)
        self._topology = topology

    def run(self, placement: np.ndarray) -> float:
        """Step time in seconds of a placement int32[N], without memory limits."""
        seconds, _ = self._measure(placement, [None] * self._topology.num_devices)
        return seconds

    def seconds_a_run(
        self, placement: np.ndarray, repeats: int, clock: Callable[[], float]
    ) -> float:
        """Seconds by `clock` that a simulation of a placement int32[N] takes, the least of several.

        Making the item and the cluster, which every placement needs anew, is not part of it.
        """
        item = self._item(placement)
        seconds = []
        with self._cluster([None] * self._topology.num_devices) as cluster:
            for _ in range(repeats):
                start = clock()
                cluster.MeasureCosts(item)
                seconds.append(clock() - start)
        return min(seconds)

    def fits(self, placement: np.ndarray, limit_bytes: int) -> bool:
        """Its verdict on a placement int32[N] where every device has `limit_bytes`."""
        seconds, _ = self._measure(placement, [limit_bytes] * self._topology.num_devices)
        return np.isfinite(seconds)

    def peak_bytes(self, placement: np.ndarray) -> np.ndarray:
        """int64[D]: the memory that each device needs for a placement int32[N].

        The error for a device with a single byte says how many it would need.
        """
        peaks = np.zeros(self._topology.num_devices, np.int64)
        for device in np.unique(placement):
            # No memory size means no limit.
            limits: list[int | None] = [0] * peaks.size
            limits[device] = 1
            _, needed = self._measure(placement, limits)
            peaks[device] = needed
        return peaks

    def _measure(
        self, placement: np.ndarray, memory_bytes: Sequence[int | None]
    ) -> tuple[float, int]:
        """Step time and 0, or infinity and the bytes that a device lacks."""
        item = self._item(placement)
        with self._cluster(memory_bytes) as cluster:
            try:
                _, seconds, _ = cluster.MeasureCosts(item)
            except errors.ResourceExhaustedError as error:
                found = re.search(r"requires (\d+) bytes", str(error))
                return float("inf"), int(found.group(1)) if found else 0
        return float(seconds), 0

    def _item(self, placement: np.ndarray) -> grappler_item.Item:
        names = self._topology.device_names
        for node, device in zip(self._meta.graph_def.node, placement.tolist(), strict=True):
            node.device = names[device]
            node.attr.pop("_class", None)
        return grappler_item.Item(self._meta)

    def _cluster(
        self, memory_bytes: Sequence[int | None]
    ) -> contextlib.AbstractContextManager[grappler_cluster.Cluster]:
        devices = [
            grappler.named_device(d.model, d.name, limit)
            for d, limit in zip(self._topology.devices, memory_bytes, strict=True)
        ]
        return grappler_cluster.Provision(devices=devices)


@functools.lru_cache(maxsize=1)
def _same_problem(model: str, size: str, devices: str) -> tuple[GraphSource, PlacementProblem]:
    """A model as both simulators are given it: sorted, with Grappler's costs and free transfers."""
    source = sorted_source(read(build(model, size)))
    graph = build_op_graph(source)
    topology = as_grappler_sees(parse(devices))
    costs = grappler_costs(source, graph, topology)
    allowed = np.ones((graph.num_ops, topology.num_devices), bool)
    return source, PlacementProblem(graph, topology, costs, allowed)


def compare(
    model: str,
    size: str = "paper",
    placements: int = 50,
    devices: str = "k80:4",
    seed: int = 1,
) -> tuple[pd.DataFrame, Agreement]:
    """Compares step times of random placements of one model.

    Args:
      model, size: see benchmarks.models.registry.
      placements: how many.
      devices: see placer.devices.parse.
      seed: of the placements.

    Returns:
      A frame with a row for each placement (devices used, both step times, error, our peak
      bytes), and its summary.
    """
    source, problem = _same_problem(model, size, devices)
    graph, topology = problem.graph, problem.topology
    simulator = Simulator(simulator_inputs(problem))
    rows = random_placements(graph, topology, placements, seed)
    started = time.perf_counter()
    evaluation = simulator.evaluate(rows, threads=1)
    our_rate = placements / (time.perf_counter() - started)
    reference = GrapplerSimulator(source, topology)
    started = time.perf_counter()
    theirs = np.array([reference.run(row) for row in rows])
    grappler_rate = placements / (time.perf_counter() - started)
    ours = evaluation.step_seconds
    error = np.abs(ours / theirs - 1)
    frame = pd.DataFrame(
        {
            "model": model,
            "devices_used": [len(np.unique(row)) for row in rows],
            "grappler_seconds": theirs,
            "our_seconds": ours,
            "error": error,
            "our_peak_bytes": evaluation.peak_bytes.max(axis=1),
        }
    )
    correlation = float(frame["our_seconds"].corr(frame["grappler_seconds"], method="spearman"))
    return frame, Agreement(
        model=model,
        placements=placements,
        rank_correlation=correlation,
        median_error=float(np.median(error)),
        worst_error=float(error.max()),
        our_rate=our_rate,
        grappler_rate=grappler_rate,
    )


def with_grapplers_accounting(
    inputs: SimulatorInputs, graph: OpGraph, persistent: bool = False
) -> SimulatorInputs:
    """The same problem with memory counted as Grappler counts it; see the module's docstring.

    Args:
      persistent: count variables and constants all the same.
    """
    kind = np.array(graph.op_types)[graph.op_type]
    holds_state = np.isin(kind, _PERSISTENT)
    own = np.where(graph.tensor_dtype == types_pb2.DT_RESOURCE, 0, graph.tensor_bytes)
    read = np.zeros(graph.tensor_bytes.size, bool)
    read[graph.in_tensor[graph.executed[graph.edge_dst]]] = True
    local = np.where(holds_state[graph.tensor_op] | ~read, 0, own).astype(np.int64)
    return dataclasses.replace(
        inputs,
        persistent_bytes=inputs.persistent_bytes * persistent,
        tensor_local_bytes=local,
        tensor_alias=np.full_like(graph.tensor_alias, -1),
    )


def compare_memory(
    model: str,
    size: str = "paper",
    placements: int = 5,
    devices: str = "k80:4",
    seed: int = 2,
    limits: Sequence[float] = LIMITS,
) -> pd.DataFrame:
    """Compares peak memory and out-of-memory verdicts near the limit.

    Args:
      limits: the verdicts are compared with every device's memory at these multiples of
        Grappler's peak of the fullest device.

    Returns:
      A row for each placement and limit: model, placement (its number), limit; peak bytes of the
      fullest device as Grappler has it (grappler_peak_bytes), as ours with Grappler's accounting
      (accounted_peak_bytes), with variables and constants added (with_variables_peak_bytes), and
      as ours (our_peak_bytes); the verdicts grappler_fits, accounted_fits and our_fits. Grappler's
      verdict is asked for at every limit.
    """
    source, problem = _same_problem(model, size, devices)
    graph, topology = problem.graph, problem.topology
    inputs = simulator_inputs(problem)
    rows = random_placements(graph, topology, placements, seed)
    reference = GrapplerSimulator(source, topology)
    peaks = {
        name: Simulator(counted).evaluate(rows).peak_bytes.max(axis=1)
        for name, counted in {
            "accounted": with_grapplers_accounting(inputs, graph),
            "with_variables": with_grapplers_accounting(inputs, graph, persistent=True),
            "our": inputs,
        }.items()
    }
    lines = []
    for number, row in enumerate(rows):
        theirs = int(reference.peak_bytes(row).max())
        for limit in limits:
            capacity = int(limit * theirs)
            line = {"model": model, "placement": number, "limit": limit}
            line["grappler_peak_bytes"] = theirs
            line |= {f"{name}_peak_bytes": int(peak[number]) for name, peak in peaks.items()}
            line["grappler_fits"] = reference.fits(row, capacity)
            line["accounted_fits"] = bool(peaks["accounted"][number] <= capacity)
            line["our_fits"] = bool(peaks["our"][number] <= capacity)
            lines.append(line)
    return pd.DataFrame(lines)
