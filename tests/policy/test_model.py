"""The model: probabilities, masks, and the gradient against an exact expectation."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

from placer import devices
from placer.policy import PolicySettings
from placer.policy.features import group_features
from placer.policy.learner import Learner
from placer.policy.model import Conditions, Decoded, PlacementPolicy
from tests.policy.problems import chains, two_gpus

PRESETS = ("modern", "icml2017")


def make(preset: str, topology, **kwargs) -> tuple[PlacementPolicy, Learner]:
    settings = PolicySettings.named(preset, hidden=8, **kwargs)
    problem, grouping, _ = chains(topology, length=1, size=64)
    features = group_features(problem, grouping, settings.features)
    policy = PlacementPolicy(features, settings, seed=3)
    rng = np.random.default_rng(0)
    for variable in policy.trainable_variables:  # Larger than they begin, so that all matter.
        variable.assign(variable + rng.normal(0.0, 0.3, variable.shape))
    return policy, Learner(policy, settings)


def from_nothing(policy: PlacementPolicy, batch: int) -> Conditions:
    """All groups, without an incumbent."""
    groups = policy.num_groups
    return Conditions(
        order=np.arange(groups, dtype=np.int32),
        incumbents=np.full((batch, groups), policy.num_devices, np.int32),
        stay=np.zeros(batch, np.float32),
        follow=np.zeros(batch, np.float32),
        focus=np.full(batch, -1, np.int32),
        forced=np.full((batch, groups), -1, np.int32),
    )


def in_a_window(policy: PlacementPolicy, batch: int) -> Conditions:
    """Every other group of an incumbent."""
    order = np.arange(0, policy.num_groups, 2, dtype=np.int32)
    incumbent = policy._allowed.numpy().argmax(axis=1).astype(np.int32)
    return Conditions(
        order=order,
        incumbents=np.repeat(incumbent[None], batch, axis=0),
        stay=np.linspace(0.0, 3.0, batch, dtype=np.float32),
        follow=np.arange(batch, dtype=np.float32) % 2,
        focus=np.arange(batch, dtype=np.int32) % len(order),
        forced=np.full((batch, len(order)), -1, np.int32),
    )


# What the presets decode under.
CASES = (("modern", from_nothing), ("modern", in_a_window), ("icml2017", from_nothing))


def tensors(conditions: Conditions) -> Conditions:
    return Conditions(*(tf.constant(array) for array in conditions))


def first_repeated(conditions: Conditions, count: int) -> Conditions:
    return Conditions(
        conditions.order, *(np.repeat(array[:1], count, axis=0) for array in conditions[1:])
    )


@pytest.mark.parametrize(("preset", "conditions"), CASES)
def test_sampled_log_probabilities_are_those_of_teacher_forcing(preset, conditions):
    policy, learner = make(preset, devices.parse("k80:2"))
    given = tensors(conditions(policy, 64))
    decoded = learner.sample(given, np.array([1, 2], np.int32))
    again, _ = policy.log_probs(policy.encode(), decoded, given)
    np.testing.assert_allclose(again, decoded.log_probs, atol=2e-5)
    walked = policy.decode(policy.encode(), given._replace(forced=decoded.devices))
    np.testing.assert_array_equal(walked.devices, decoded.devices)
    np.testing.assert_allclose(walked.log_probs, decoded.log_probs, atol=2e-5)


@pytest.mark.parametrize(("preset", "conditions"), CASES)
def test_samples_follow_their_probabilities(preset, conditions):
    policy, learner = make(preset, two_gpus())
    count = 4000
    given = tensors(first_repeated(conditions(policy, 2), count))
    decoded = learner.sample(given, np.array([5, 0], np.int32))
    rows, first, counts = np.unique(
        decoded.devices.numpy(), axis=0, return_index=True, return_counts=True
    )
    probability = np.exp(decoded.log_probs.numpy().sum(axis=1))[first]
    error = np.sqrt(probability * (1 - probability) / count)
    assert len(rows) > 2
    assert (np.abs(counts / count - probability) < 5 * error + 1e-3).all()


def test_a_sample_leaves_the_incumbent_at_its_focus():
    policy, learner = make("modern", devices.parse("k80:2"))
    policy._allowed = tf.fill([policy.num_groups, 3], True)
    policy._movable = tf.fill([policy.num_groups], True)
    given = in_a_window(policy, 64)._replace(stay=np.full(64, 50.0, np.float32))
    decoded = learner.sample(tensors(given), np.array([1, 2], np.int32))
    changed = decoded.devices.numpy() != given.incumbents[:, given.order]
    # So reluctant that nothing else changes, but for the neighbours that follow at times.
    assert changed[np.arange(64), given.focus].all()
    assert (changed[given.follow == 0].sum(axis=1) == 1).all()


@pytest.mark.parametrize("preset", PRESETS)
def test_never_a_device_that_a_group_may_not_use(preset):
    policy, learner = make(preset, devices.parse("k80:2"))
    allowed = np.random.default_rng(1).random((policy.num_groups, 3)) < 0.5
    allowed[np.arange(policy.num_groups), np.arange(policy.num_groups) % 3] = True
    policy._allowed = tf.constant(allowed)
    policy._first_of_class = tf.fill([3], True)
    policy._class_predecessor = tf.zeros([3], tf.int32)
    found = learner.sample(tensors(from_nothing(policy, 256)), np.array([0, 0], np.int32))
    found = found.devices.numpy()
    assert allowed[np.arange(policy.num_groups), found].all()
    # Everything that is allowed is chosen at times.
    assert all(set(found[:, g]) == set(np.flatnonzero(a)) for g, a in enumerate(allowed))


def test_identical_devices_are_numbered_by_first_use():
    policy, learner = make("modern", devices.parse("k80:4"))
    given = tensors(from_nothing(policy, 256))
    found = learner.sample(given, np.array([0, 0], np.int32)).devices.numpy()
    for row in found:
        gpus = [d for d in dict.fromkeys(row.tolist()) if d > 0]
        assert gpus == sorted(gpus)
        assert gpus == list(range(1, len(gpus) + 1))


@pytest.mark.parametrize(("preset", "conditions"), CASES)
def test_gradient_is_that_of_the_exact_expected_reward(preset, conditions):
    """Over all placements, weighted by probability, REINFORCE is the gradient of sum p * R."""
    policy, learner = make(preset, two_gpus(), entropy=0.0, break_symmetry=False)
    one = conditions(policy, 1)
    one = one._replace(focus=np.full(1, -1, np.int32), follow=np.ones(1, np.float32))
    everything = np.array(list(itertools.product(range(2), repeat=len(one.order))), np.int32)
    reward = np.random.default_rng(4).normal(size=len(everything)).astype(np.float32)
    given = tensors(first_repeated(one, len(everything))._replace(forced=everything))
    walked = policy.decode(policy.encode(), given)
    probability = np.exp(walked.log_probs.numpy().astype(np.float64).sum(axis=1))
    assert probability.sum() == pytest.approx(1.0, abs=1e-5)

    variables = [v.value for v in policy.trainable_variables]
    with tf.GradientTape() as tape:
        log_probs, _ = policy.log_probs(policy.encode(), walked, given)
        expected = tf.reduce_sum(tf.exp(tf.reduce_sum(log_probs, axis=1)) * reward)
    exact = tape.gradient(expected, variables, unconnected_gradients="zero")
    weight = (probability * reward * len(everything)).astype(np.float32)
    estimate = learner.gradients(
        walked,
        given,
        tf.constant(weight),
        tf.zeros(len(everything), tf.bool),
        tf.constant(0.0),
    )
    for one, other in zip(exact, estimate, strict=True):
        np.testing.assert_allclose(-np.asarray(one), other, atol=3e-5)
    # And by finite differences, which know nothing of log-probabilities.
    bias = policy.output_layer.bias
    start = bias.numpy()

    def objective(delta: np.ndarray) -> float:
        bias.assign(start + delta)
        again = policy.decode(policy.encode(), given)
        bias.assign(start)
        return float(np.exp(again.log_probs.numpy().astype(np.float64).sum(axis=1)) @ reward)

    step = np.array([1e-2, 0.0], np.float32)
    slope = (objective(step) - objective(-step)) / 2e-2
    number = [v is bias for v in policy.trainable_variables].index(True)
    assert -float(np.asarray(estimate[number])[0]) == pytest.approx(slope, abs=2e-3)


def test_clipping_stops_what_has_become_much_likelier():
    policy, learner = make("modern", two_gpus(), entropy=0.0)
    given = tensors(in_a_window(policy, 8))
    decoded = learner.sample(given, np.array([0, 0], np.int32))
    unlikely = Decoded(decoded.devices, decoded.log_probs - 1.0, decoded.usable, decoded.features)

    def norm(advantage: float, imitate: bool) -> float:
        gradients = learner.gradients(
            unlikely,
            given,
            tf.fill([8], advantage),
            tf.fill([8], imitate),
            tf.constant(0.0),
        )
        return float(tf.linalg.global_norm(gradients))

    assert norm(1.0, imitate=False) == 0.0
    assert norm(-1.0, imitate=False) > 0.0
    assert norm(1.0, imitate=True) > 0.0


def test_policy_is_a_keras_model_that_summarises():
    policy, _ = make("modern", two_gpus())
    lines: list[str] = []
    policy.summary(print_fn=lambda line, **_: lines.append(line))
    assert any("decoder" in line for line in lines)
    assert policy.count_params() == sum(v.numpy().size for v in policy.trainable_variables)
