"""The benchmark models: TensorFlow itself loads, checks and trains every one."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import models
from placer.errors import PlacerError

NAMES = sorted(models.MODELS)


@pytest.fixture(scope="module")
def tiny():
    return {name: models.build(name, "tiny") for name in NAMES}


def _import(meta_graph):
    graph = tf.Graph()
    with graph.as_default():
        tf.compat.v1.train.import_meta_graph(meta_graph)
    return graph


def _losses(graph, steps, feeds=None):
    with tf.compat.v1.Session(graph=graph) as session:
        session.run("init")
        return [float(session.run(["train", "loss:0"], feeds)[1]) for _ in range(steps)]


def test_every_family_is_registered():
    assert NAMES == [
        "dlrm",
        "gnmt",
        "inception_v3",
        "nmt",
        "resnet50",
        "rnnlm",
        "transformer",
    ]
    for spec in models.MODELS.values():
        assert set(spec.sizes) == {"paper", "small", "tiny"}


@pytest.mark.parametrize("name", NAMES)
def test_trains_in_a_fresh_graph(tiny, name):
    losses = _losses(_import(tiny[name]), 3)
    assert np.isfinite(losses).all()
    assert len(set(losses)) == 3


@pytest.mark.parametrize("name", ["gnmt", "nmt", "rnnlm", "transformer"])
def test_learns_the_constant_sentences(name):
    losses = _losses(_import(models.build(name, "tiny", learning_rate=0.05)), 30)
    # Untrained, a model is no better than uniform over the vocabulary of 50.
    assert losses[0] == pytest.approx(np.log(50), abs=0.5)
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("name", NAMES)
def test_layout(tiny, name):
    meta_graph = tiny[name]
    nodes = meta_graph.graph_def.node
    assert len({node.name for node in nodes}) == len(nodes)
    assert not [node.name for node in nodes if node.device]
    collections = meta_graph.collection_def
    assert list(collections["train_op"].node_list.value) == ["train"]
    assert list(collections["init_op"].node_list.value) == ["init"]
    assert list(collections["losses"].node_list.value) == ["loss:0"]
    ops = {node.name: node.op for node in nodes}
    assert ops["train"] == ops["init"] == "NoOp"
    assert not meta_graph.graph_def.library.function


@pytest.mark.parametrize("name", NAMES)
def test_shapes_are_static(tiny, name):
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(tiny[name].graph_def, name="")
    # The last output of batch normalisation is scratch whose shape is the kernel's affair.
    scratch = {
        operation.outputs[5].name
        for operation in graph.get_operations()
        if operation.type == "FusedBatchNormV3"
    }
    dynamic = {
        operation.name
        for operation in graph.get_operations()
        for tensor in operation.outputs
        if not tensor.shape.is_fully_defined()
        and tensor.name not in scratch
        and not (operation.type == "ZerosLike" and operation.inputs[0].name in scratch)
    }
    # How many distinct rows a step looks up is known only when it runs.
    assert all(name.startswith("optimizer/update_") for name in dynamic)
    assert all("/table/" in name for name in dynamic)


@pytest.mark.parametrize("name", NAMES)
def test_building_twice_gives_the_same_bytes(tiny, name):
    again = models.build(name, "tiny")
    assert again.SerializeToString(deterministic=True) == tiny[name].SerializeToString(
        deterministic=True
    )


def test_constants_are_small():
    for name in ("dlrm", "nmt", "rnnlm", "transformer"):
        graph_def = models.build(name, "small").graph_def
        sizes = [
            tf.make_ndarray(node.attr["value"].tensor).nbytes
            for node in graph_def.node
            if node.op == "Const"
        ]
        assert max(sizes) <= 64 * 1024


def test_inception_has_the_weights_of_the_keras_architecture():
    keras = tf.keras.applications.InceptionV3(weights=None)
    expected = sorted(tuple(w.shape) for w in keras.trainable_weights)
    graph = _import(models.build("inception_v3", "paper", batch=1))
    with graph.as_default():
        trainable = tf.compat.v1.trainable_variables()
    assert sorted(tuple(v.shape) for v in trainable) == expected


def test_resnet_has_the_weights_of_the_keras_architecture():
    keras = tf.keras.applications.ResNet50(weights=None)
    # Keras gives its convolutions a bias that the batch normalisation after them cancels.
    expected = sorted(
        tuple(w.shape)
        for w in keras.trainable_weights
        if not (w.name == "bias" and "conv" in w.path)
    )
    graph = _import(models.build("resnet50", "paper", batch=1))
    with graph.as_default():
        trainable = tf.compat.v1.trainable_variables()
    assert sorted(tuple(v.shape) for v in trainable) == expected


def test_lstm_matches_keras():
    """The unrolled language model computes what Keras' LSTM does with the same weights."""
    batch, units, steps, vocabulary = 4, 16, 3, 50
    graph = _import(models.build("rnnlm", "tiny"))
    with tf.compat.v1.Session(graph=graph) as session:
        session.run("init")
        fetches = {
            "table": "embedding/table/Read/ReadVariableOp:0",
            "kernel": "layer_0/kernel/Read/ReadVariableOp:0",
            "ids": "inputs/tokens:0",
            "hidden": f"layer_0/step_{steps - 1}/hidden:0",
        }
        got = session.run(fetches)
    layer = tf.keras.layers.LSTM(units)
    layer.build((batch, steps, units))
    # Gates here: input, candidate, forget, output; in Keras: input, forget, candidate, output.
    kernel = got["kernel"].reshape(2 * units, 4, units)[:, [0, 2, 1, 3]].reshape(2 * units, -1)
    bias = np.zeros(4 * units, np.float32)
    bias[units : 2 * units] = 1.0
    layer.set_weights([kernel[:units], kernel[units:], bias])
    assert got["ids"].max() < vocabulary
    vectors = got["table"][got["ids"]].transpose(1, 0, 2)
    np.testing.assert_allclose(got["hidden"], layer(vectors).numpy(), rtol=1e-4, atol=1e-6)


def test_weight_gradients_sum_over_steps():
    def sums(aggregation):
        nodes = models.build("rnnlm", "tiny", aggregation=aggregation).graph_def.node
        uses = [
            node
            for node in nodes
            if any(source.split(":")[0].startswith("gradients/layer_0") for source in node.input)
        ]
        kernels = [n for n in uses if n.op == "AddN" and "MatMul_grad" in n.input[-1]]
        return [len(node.input) for node in kernels]

    assert 3 in sums("add_n")
    assert set(sums("pairwise")) == {2}


def test_options_change_the_graph_but_not_the_loss(tiny):
    plain = _losses(_import(tiny["nmt"]), 1)
    for change in ({"aggregation": "pairwise"}, {"reads": "use"}, {"softmax_by_step": False}):
        changed = models.build("nmt", "tiny", **change)
        assert changed.graph_def != tiny["nmt"].graph_def
        assert _losses(_import(changed), 1)[0] == pytest.approx(plain[0], abs=0.05)


def test_reads_of_variables():
    def reads(**options):
        nodes = models.build("nmt", "tiny", **options).graph_def.node
        return sum(n.op == "ReadVariableOp" and "encoder/layer_0/kernel" in n.input for n in nodes)

    steps = 3
    assert reads(reads="use") == reads() - 1 + steps


@pytest.mark.parametrize("options", [{"score": "bilinear"}, {"input_feeding": True}])
def test_other_attention_trains(options):
    losses = _losses(_import(models.build("nmt", "tiny", **options)), 2)
    assert losses[1] < losses[0]


@pytest.mark.parametrize("optimizer", ["adagrad", "adam", "momentum", "rmsprop", "sgd"])
def test_every_optimizer_trains(optimizer):
    losses = _losses(_import(models.build("rnnlm", "tiny", optimizer=optimizer)), 2)
    assert losses[1] < losses[0]


def test_placeholders():
    graph = _import(models.build("rnnlm", "tiny", inputs="placeholder"))
    kinds = {o.name: o.type for o in graph.get_operations() if o.type == "Placeholder"}
    assert set(kinds) == {"inputs/tokens", "inputs/targets"}
    ids = np.zeros([3, 4], np.int32)
    losses = _losses(graph, 2, {"inputs/tokens:0": ids, "inputs/targets:0": ids})
    assert losses[1] < losses[0]


def test_seed_changes_the_data():
    first, second = (models.build("rnnlm", "tiny", seed=seed) for seed in (1, 2))
    assert _losses(_import(first), 1) != _losses(_import(second), 1)
    assert _losses(_import(first), 2) == _losses(_import(first), 2)


def test_statistics_of_known_weights():
    counts = models.graph_statistics(models.build("rnnlm", "tiny", optimizer="sgd"))
    units, vocabulary, layers = 16, 50, 2
    lstm = layers * (2 * units * 4 * units + 4 * units)
    weights = vocabulary * units + lstm + units * vocabulary + vocabulary
    assert counts.variable_bytes == 4 * weights
    assert counts.variables == 1 + 2 * layers + 2
    assert counts.executed_ops < counts.nodes


@pytest.mark.parametrize(
    ("arguments", "changes", "message"),
    [
        (("vgg",), {}, "no model 'vgg'"),
        (("nmt", "huge"), {}, "no size 'huge'"),
        (("nmt", "tiny"), {"depth": 3}, "no parameter 'depth'"),
        (("nmt", "tiny"), {"batch": "four"}, "type int"),
        (("nmt", "tiny"), {"batch": True}, "type int"),
        (("nmt", "tiny"), {"batch": 0}, "must be positive"),
        (("nmt", "tiny"), {"optimizer": "lion"}, "optimizer='lion'"),
        (("nmt", "tiny"), {"inputs": "files"}, "inputs='files'"),
        (("nmt", "tiny"), {"reads": "never"}, "reads='never'"),
        (("nmt", "tiny"), {"aggregation": "none"}, "aggregation='none'"),
        (("nmt", "tiny"), {"score": "cosine"}, "score='cosine'"),
        (("nmt", "tiny"), {"seed": -1}, "seed=-1"),
        (("nmt", "tiny"), {"learning_rate": 0.0}, "must be positive"),
        (("inception_v3", "tiny"), {"image": 74}, "image=74"),
        (("transformer", "tiny"), {"units": 15}, "units=15"),
        (("gnmt", "tiny"), {"layers": 1}, "layers=1"),
    ],
)
def test_bad_requests_are_one_line(arguments, changes, message):
    with pytest.raises(PlacerError) as error:
        models.build(*arguments, **changes)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_export_writes_loadable_files(tmp_path):
    exported = list(models.export_models(tmp_path / "graphs", ["rnnlm", "nmt"], "tiny"))
    assert sorted(os.listdir(tmp_path / "graphs")) == ["nmt-tiny.pb", "rnnlm-tiny.pb"]
    for model in exported:
        meta_graph = tf.compat.v1.MetaGraphDef.FromString(model.path.read_bytes())
        assert len(meta_graph.graph_def.node) == model.statistics.nodes
        assert len(_losses(_import(meta_graph), 1)) == 1


def test_export_checks_before_it_builds(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PlacerError, match="cannot make directory"):
        next(models.export_models(tmp_path / "file"))
    with pytest.raises(PlacerError, match="no model"):
        next(models.export_models(tmp_path / "graphs", ["nmt", "vgg"], "tiny"))
    assert not (tmp_path / "graphs").exists()


def test_command(tmp_path):
    command = [sys.executable, "-m", "benchmarks.models", "--export", str(tmp_path)]
    command += ["--model", "dlrm", "--model", "rnnlm", "--size", "tiny"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split()[:3] == ["model", "nodes", "executed"]
    assert [line.split()[0] for line in lines[1:]] == ["DLRM", "RNNLM"]
    assert sorted(os.listdir(tmp_path)) == ["dlrm-tiny.pb", "rnnlm-tiny.pb"]
