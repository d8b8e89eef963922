"""Grappler's op cost estimator: operations and bytes of every op of a graph, in one measurement.

Grappler's estimate of an op on a device is
`ceil(operations / operations_per_ns) + ceil(bytes / bytes_per_ns)` nanoseconds
(tensorflow/core/grappler/costs/op_level_cost_estimator.cc, PredictOpCountBasedCost, with compute
and memory time added up, not overlapped). Only those two rates depend on the device. So one
VirtualCluster.MeasureCosts on a device that does one operation and moves one byte in a microsecond,
the resolution that the estimator reports in, gives both counts exactly, and with them the cost
on any number of device models.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from tensorflow.core.framework import graph_pb2
from tensorflow.core.grappler.costs import op_performance_data_pb2
from tensorflow.core.protobuf import device_properties_pb2, meta_graph_pb2
from tensorflow.python.grappler import _pywrap_tf_cluster, _pywrap_tf_item

from placer.costs.peak import operations_per_second
from placer.devices import DeviceModel
from placer.errors import PlacerError

# Grappler multiplies a GPU's num_cores and clock by this for any architecture from 6 on: 64 cores
# a multiprocessor, two operations (multiply, add) each (GetDeviceInfo).
_GRAPPLER_OPERATIONS_PER_CYCLE = 128
_GRAPPLER_ARCHITECTURE = "6.0"
# Nanoseconds of an op that costs "the minimum": kMinComputeTime. Below the resolution of a report.
MINIMUM_SECONDS = 1e-9
_NANOSECONDS_PER_COUNT = 1000
_MEMORY_WITHOUT_END = 1 << 60
_MEASURING_DEVICE = device_properties_pb2.NamedDevice(
    name="/job:localhost/replica:0/task:0/device:CPU:0",
    properties=device_properties_pb2.DeviceProperties(
        type="CPU", frequency=1, num_cores=1, bandwidth=1000, memory_size=_MEMORY_WITHOUT_END
    ),
)


@dataclasses.dataclass(frozen=True, eq=False)
class Work:
    """What N ops have to do, once each; arrays follow the nodes of a GraphDef.

    Attributes:
      operations: float64[N] arithmetic operations.
      bytes: float64[N] bytes read and written.
      temporary_bytes: int64[N] as Grappler reports them.
      measured: bool[N]; Grappler ran the op. It skips what the fetches do not need.
    """

    operations: np.ndarray
    bytes: np.ndarray
    temporary_bytes: np.ndarray
    measured: np.ndarray


def measure_work(
    graph_def: graph_pb2.GraphDef, fetch_ops: Sequence[str], origin: str = "graph"
) -> Work:
    """Measures a graph's ops with one MeasureCosts; devices and colocation are ignored.

    Args:
      graph_def: N nodes.
      fetch_ops: names of the ops that a step computes; Grappler costs what they need.
      origin: what to call the graph in errors.

    Returns:
      The work of the N ops. Where Grappler cannot run the graph at all (a shape function fails),
      nothing is `measured`.

    Raises:
      PlacerError: if TensorFlow refuses the graph.
    """
    meta = meta_graph_pb2.MetaGraphDef()
    meta.graph_def.CopyFrom(graph_def)
    for node in meta.graph_def.node:
        # Exports may leave out the default, which Grappler demands to be stated.
        if node.op == "Placeholder" and "shape" not in node.attr:
            node.attr["shape"].shape.unknown_rank = True
    # Function bodies are measured on their own, and shape inference does not look into those.
    meta.collection_def["train_op"].node_list.value.extend(dict.fromkeys(fetch_ops))
    serialized = meta.SerializeToString()
    del meta
    try:
        # Colocation and requested devices are ignored: there is one device.
        item = _pywrap_tf_item.TF_NewItem(serialized, True, True)
    except Exception as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise PlacerError(f"{origin}: TensorFlow cannot analyse the graph: {first}") from None
    cluster = _pywrap_tf_cluster.TF_NewVirtualCluster([_MEASURING_DEVICE.SerializeToString()])
    try:
        performances, _, _ = _pywrap_tf_cluster.TF_MeasureCosts(item, cluster, False)
    finally:
        _pywrap_tf_cluster.TF_ShutdownCluster(cluster)

    count = len(graph_def.node)
    index = {node.name: i for i, node in enumerate(graph_def.node)}
    operations = np.zeros(count)
    moved = np.zeros(count)
    temporary = np.zeros(count, np.int64)
    measured = np.zeros(count, bool)
    performance = op_performance_data_pb2.OpPerformance()
    for data in performances:
        performance.ParseFromString(data)
        i = index[performance.node]
        operations[i] = performance.compute_time // _NANOSECONDS_PER_COUNT
        moved[i] = performance.memory_time // _NANOSECONDS_PER_COUNT
        temporary[i] = max(performance.temporary_memory_size, 0)
        measured[i] = True
    return Work(operations, moved, temporary, measured)


def seconds(operations: np.ndarray, moved: np.ndarray, model: DeviceModel) -> np.ndarray:
    """float64: Grappler's execution time of ops with these counts on a device model."""
    rate = operations_per_second(model) * 1e-9
    bandwidth = model.bytes_per_second * 1e-9
    return (np.ceil(operations / rate) + np.ceil(moved / bandwidth)) * 1e-9


def named_device(
    model: DeviceModel, name: str, memory_bytes: int | None = None
) -> device_properties_pb2.NamedDevice:
    """A device of `model` for a Grappler virtual cluster.

    num_cores is scaled so that Grappler's formula gives the model's own peak: its table of cores
    per multiprocessor ends at Volta's, and its CPUs do one operation a cycle.

    Args:
      model: the device model.
      name: full device name.
      memory_bytes: the memory limit; without it, none.
    """
    per_cycle = operations_per_second(model) / (model.frequency_mhz * 1e6)
    if model.type == "GPU":
        per_cycle /= _GRAPPLER_OPERATIONS_PER_CYCLE
    return device_properties_pb2.NamedDevice(
        name=name,
        properties=device_properties_pb2.DeviceProperties(
            type=model.type,
            frequency=round(model.frequency_mhz),
            num_cores=max(1, round(per_cycle)),
            bandwidth=round(model.bytes_per_second / 1e3),
            memory_size=_MEMORY_WITHOUT_END if memory_bytes is None else memory_bytes,
            environment={"architecture": _GRAPPLER_ARCHITECTURE} if model.type == "GPU" else {},
        ),
    )
