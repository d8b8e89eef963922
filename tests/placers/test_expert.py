"""The expert's rules, on names as models and Keras write them."""

from __future__ import annotations

import pytest

from placer.placers.expert import expert, forward_name, layer_of
from tests.placers.problems import make_problem


@pytest.mark.parametrize(
    ("name", "forward"),
    [
        ("encoder/layer_1/step_3/MatMul", "encoder/layer_1/step_3/MatMul"),
        ("gradients/encoder/layer_1/MatMul_grad/MatMul_1", "encoder/layer_1/MatMul/MatMul_1"),
        ("train/gradients_1/a/b_grad_2/c", "a/b/c"),
        ("gradient_tape/model/lstm_1/while", "model/lstm_1/while"),
        ("Adam/update_encoder/kernel/ResourceApplyAdam", "encoder/kernel/ResourceApplyAdam"),
    ],
)
def test_forward_name(name: str, forward: str) -> None:
    assert forward_name(name) == forward


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("encoder/layer_1/step_3/MatMul", ("encoder/layer", 1)),
        ("model/lstm/while/body", ("model/lstm", 0)),
        ("model/lstm_1/while/body", ("model/lstm", 1)),
        ("rnn/multi_rnn_cell/cell_0/basic_lstm_cell/MatMul", ("rnn/multi_rnn_cell/cell", 0)),
        ("transformer/encoder_layer_4/ffn/MatMul", ("transformer/encoder_layer", 4)),
        ("resnet/block3/conv", ("resnet/block", 3)),
        ("conv2d_12/Conv2D", None),
        ("softmax/MatMul", None),
    ],
)
def test_layer_of(name: str, layer: tuple[str, int] | None) -> None:
    assert layer_of(name) == layer


def test_a_stack_with_attention() -> None:
    names = [
        "embedding/lookup",  # 0
        "encoder/layer_0/step_0/MatMul",
        "encoder/layer_1/step_0/MatMul",
        "decoder/layer_0/step_0/MatMul",
        "decoder/layer_1/step_0/MatMul",
        "attention/step_0/MatMul",  # 5
        "softmax/MatMul",
        "gradients/softmax/MatMul_grad/MatMul",
        "gradients/decoder/layer_0/step_0/MatMul_grad/MatMul",
        "gradients/encoder/layer_0/step_0/MatMul_grad/MatMul",
        "decoder/layer_0/kernel",  # 10, a variable
        "update",  # 11
    ]
    edges = [(0, 1), (1, 2), (2, 5), (3, 4), (4, 5), (5, 6), (6, 7), (7, 8), (8, 9)]
    edges += [(10, 3), (8, 11), (10, 11)]
    problem = make_problem(
        edges, [1e-3] * len(names), names=names, together=[(10, 11)], topology="k80:2"
    )
    placement = problem.repair(expert(problem)).tolist()
    assert placement == [1, 1, 2, 1, 2, 2, 2, 2, 1, 1, 1, 1]


def test_convolutions_are_cut_in_equal_parts() -> None:
    names, types, edges = [], [], []
    for i in range(8):
        names += [f"mixed{i // 4}/conv_{i}/Conv2D", f"mixed{i // 4}/conv_{i}/Relu"]
        types += ["Conv2D", "Relu"]
    names += ["gradients/mixed0/conv_0/Conv2D_grad/Conv2DBackpropFilter"]
    types += ["Conv2DBackpropFilter"]
    edges = [(i, i + 1) for i in range(16)]
    problem = make_problem(edges, [1e-3] * 17, names=names, types=types, topology="k80:4")
    placement = problem.repair(expert(problem)).tolist()
    assert placement[:16] == [1] * 4 + [2] * 4 + [3] * 4 + [4] * 4
    assert placement[16] == 1


def test_other_graphs_are_cut_by_compute_time() -> None:
    seconds = [1e-3] * 4 + [4e-3]
    problem = make_problem([(i, i + 1) for i in range(4)], seconds)
    assert problem.repair(expert(problem)).tolist() == [1, 1, 1, 1, 2]
