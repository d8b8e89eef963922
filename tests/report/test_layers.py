import numpy as np
import pytest

from benchmarks.synthetic import layered_problem
from placer.devices import parse
from placer.report.layers import OTHER, Pass, find_layers, split_name


@pytest.mark.parametrize(
    ("name", "op_type", "scopes", "kind"),
    [
        ("layer_0/step_3/MatMul", "MatMul", ("layer_0", "step_3"), Pass.FORWARD),
        ("loss", "Identity", (), Pass.FORWARD),
        (
            "gradients/layer_0/step_3/MatMul_grad/MatMul_1",
            "MatMul",
            ("layer_0", "step_3"),
            Pass.BACKWARD,
        ),
        ("gradients_1/a/b_grad/Sum", "Sum", ("a",), Pass.BACKWARD),
        ("gradient_tape/model/dense/MatMul", "MatMul", ("model", "dense"), Pass.BACKWARD),
        ("gradients/AddN_7", "AddN", (), Pass.BACKWARD),
        (
            "optimizer/update_decoder/kernel/mul",
            "Mul",
            ("decoder", "kernel"),
            Pass.UPDATE,
        ),
        ("Adam/Adam/update/ResourceApplyAdam", "ResourceApplyAdam", ("update",), Pass.UPDATE),
        ("dense/kernel/optimizer_1/Assign", "AssignVariableOp", ("dense", "kernel"), Pass.FORWARD),
    ],
)
def test_split_name(name, op_type, scopes, kind):
    assert split_name(name, op_type) == (scopes, kind)


def test_layers_of_a_model(example):
    layers = example.layers
    names = set(layers.names)
    assert {"encoder/layer_0", "encoder/layer_1", "decoder/layer_0", "attention"} <= names
    assert not any("gradients" in n or "optimizer" in n for n in names)
    graph = example.problem.graph
    assert (layers.layer_of >= 0).tolist() == graph.executed.tolist()
    for op in np.flatnonzero(graph.executed):
        name = graph.names[op]
        if name.startswith(("encoder/layer_1/step", "gradients/encoder/layer_1/step")):
            assert layers.names[layers.layer_of[op]] == "encoder/layer_1"
            backward = name.startswith("gradients")
            assert layers.pass_of[op] == (Pass.BACKWARD if backward else Pass.FORWARD)
    order = [n for n in layers.names if n.startswith("encoder/layer")]
    assert order == sorted(order)


def test_a_sum_of_gradients_goes_with_what_it_reads(example):
    graph, layers = example.problem.graph, example.layers
    sums = [
        i for i, n in enumerate(graph.names) if n.startswith("gradients/AddN") and graph.executed[i]
    ]
    assert sums
    first_edge = np.searchsorted(graph.edge_dst, np.arange(graph.num_ops))
    for op in sums:
        assert layers.layer_of[op] == layers.layer_of[graph.edge_src[first_edge[op]]]


def test_too_many_scopes_leave_a_rest():
    problem = layered_problem(320, parse("v100:2"))
    layers = find_layers(problem, max_layers=10)
    assert len(layers.names) == 10
    assert layers.names[-1] == OTHER
    # 32 equal columns: nine rows of their own and 23 in the rest.
    assert (layers.layer_of == 9).sum() == 23 * 11
