import numpy as np
import pytest

from benchmarks.synthetic import COLUMNS, FETCH, layered_graph_def, layered_problem
from placer.devices import parse
from placer.graph import build_op_graph, read
from placer.simulator.build import build_simulator


def test_graph_def_and_arrays_are_one_graph():
    graph_def = layered_graph_def(320, seed=3)
    graph = build_op_graph(read(graph_def, [FETCH]))
    problem = layered_problem(320, parse("v100:2"), seed=3)
    arrays = problem.graph
    index = {n: i for i, n in enumerate(graph.names)}
    columns = {f"column_{c}/weight": f"column_{c}/read" for c in range(COLUMNS)}
    body = [n for n in arrays.names if "layer" in n]
    assert len(body) == 320
    assert all(graph.executed[index[n]] for n in body)
    edges = {
        (graph.names[s], graph.names[d])
        for s, d in zip(graph.edge_src, graph.edge_dst, strict=True)
    }
    for s, d in zip(arrays.edge_src, arrays.edge_dst, strict=True):
        source = arrays.names[s]
        assert (columns.get(source, source), arrays.names[d]) in edges
    for i, name in enumerate(arrays.names):
        if name in index and "layer" in name:
            op = index[name]
            assert arrays.type_of(i) == graph.type_of(op)
            tensor = graph.out_ptr[op]
            assert arrays.tensor_bytes[arrays.out_ptr[i]] == graph.tensor_bytes[tensor]


@pytest.mark.parametrize("size", [COLUMNS, 1000])
def test_arrays_simulate(size):
    problem = layered_problem(size, parse("v100:2"))
    simulator = build_simulator(problem)
    placement = problem.single_device(1)
    step = simulator.evaluate(placement[None]).step_seconds[0]
    assert step == pytest.approx(problem.device_seconds[1].sum())
    assert np.isfinite(step)
