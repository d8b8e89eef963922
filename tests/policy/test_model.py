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
from placer.policy.model import Decoded, PlacementPolicy
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


def conditions(policy: PlacementPolicy, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Half of the samples change an incumbent, where the policy can."""
    incumbents = np.full((batch, policy.num_groups), policy.num_devices, np.int32)
    stay = np.zeros(batch, np.float32)
    if policy.settings.incumbents:
        half = batch // 2
        allowed = policy._allowed.numpy()
        incumbents[:half] = allowed.argmax(axis=1)
        stay[:half] = np.linspace(0.0, 3.0, half)
    return incumbents, stay


@pytest.mark.parametrize("preset", PRESETS)
def test_sampled_log_probabilities_are_those_of_teacher_forcing(preset):
    policy, learner = make(preset, devices.parse("k80:2"))
    incumbents, stay = conditions(policy, 64)
    decoded = learner.sample(incumbents, stay, np.array([1, 2], np.int32))
    again, _ = policy.log_probs(policy.encode(), decoded, tf.constant(incumbents), stay)
    np.testing.assert_allclose(again, decoded.log_probs, atol=2e-5)
    walked = policy.decode(
        policy.encode(), tf.constant(incumbents), tf.constant(stay), given=decoded.devices
    )
    np.testing.assert_array_equal(walked.devices, decoded.devices)
    np.testing.assert_allclose(walked.log_probs, decoded.log_probs, atol=2e-5)


@pytest.mark.parametrize("preset", PRESETS)
def test_samples_follow_their_probabilities(preset):
    policy, learner = make(preset, two_gpus())
    count = 4000
    incumbents, stay = conditions(policy, 2)
    incumbents, stay = np.repeat(incumbents[-1:], count, 0), np.repeat(stay[-1:], count)
    decoded = learner.sample(incumbents, stay, np.array([5, 0], np.int32))
    rows, first, counts = np.unique(
        decoded.devices.numpy(), axis=0, return_index=True, return_counts=True
    )
    probability = np.exp(decoded.log_probs.numpy().sum(axis=1))[first]
    error = np.sqrt(probability * (1 - probability) / count)
    assert len(rows) > 2
    assert (np.abs(counts / count - probability) < 5 * error + 1e-3).all()


@pytest.mark.parametrize("preset", PRESETS)
def test_never_a_device_that_a_group_may_not_use(preset):
    policy, learner = make(preset, devices.parse("k80:2"))
    allowed = np.random.default_rng(1).random((policy.num_groups, 3)) < 0.5
    allowed[np.arange(policy.num_groups), np.arange(policy.num_groups) % 3] = True
    policy._allowed = tf.constant(allowed)
    policy._first_of_class = tf.fill([3], True)
    policy._class_predecessor = tf.zeros([3], tf.int32)
    incumbents, stay = conditions(policy, 256)
    found = learner.sample(incumbents, stay, np.array([0, 0], np.int32)).devices.numpy()
    assert allowed[np.arange(policy.num_groups), found].all()
    # Everything that is allowed is chosen at times.
    assert all(set(found[:, g]) == set(np.flatnonzero(a)) for g, a in enumerate(allowed))


def test_identical_devices_are_numbered_by_first_use():
    policy, learner = make("modern", devices.parse("k80:4"))
    incumbents, stay = conditions(policy, 256)
    incumbents[:] = policy.num_devices
    found = learner.sample(incumbents, stay, np.array([0, 0], np.int32)).devices.numpy()
    for row in found:
        gpus = [d for d in dict.fromkeys(row.tolist()) if d > 0]
        assert gpus == sorted(gpus)
        assert gpus == list(range(1, len(gpus) + 1))


@pytest.mark.parametrize("preset", PRESETS)
def test_gradient_is_that_of_the_exact_expected_reward(preset):
    """Over all placements, weighted by probability, REINFORCE is the gradient of sum p * R."""
    policy, learner = make(preset, two_gpus(), entropy=0.0, break_symmetry=False)
    groups = policy.num_groups
    everything = np.array(list(itertools.product(range(2), repeat=groups)), np.int32)
    reward = np.random.default_rng(4).normal(size=len(everything)).astype(np.float32)
    incumbents = tf.constant(np.repeat(conditions(policy, 2)[0][-1:], len(everything), axis=0))
    stay = tf.zeros(len(everything))
    walked = policy.decode(policy.encode(), incumbents, stay, given=tf.constant(everything))
    probability = np.exp(walked.log_probs.numpy().astype(np.float64).sum(axis=1))
    assert probability.sum() == pytest.approx(1.0, abs=1e-5)

    variables = [v.value for v in policy.trainable_variables]
    with tf.GradientTape() as tape:
        log_probs, _ = policy.log_probs(policy.encode(), walked, incumbents, stay)
        expected = tf.reduce_sum(tf.exp(tf.reduce_sum(log_probs, axis=1)) * reward)
    exact = tape.gradient(expected, variables, unconnected_gradients="zero")
    weight = (probability * reward * len(everything)).astype(np.float32)
    estimate = learner.gradients(
        walked,
        incumbents,
        stay,
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
        again = policy.decode(policy.encode(), incumbents, stay, given=tf.constant(everything))
        bias.assign(start)
        return float(np.exp(again.log_probs.numpy().astype(np.float64).sum(axis=1)) @ reward)

    step = np.array([1e-2, 0.0], np.float32)
    slope = (objective(step) - objective(-step)) / 2e-2
    number = [v is bias for v in policy.trainable_variables].index(True)
    assert -float(np.asarray(estimate[number])[0]) == pytest.approx(slope, abs=2e-3)


def test_clipping_stops_what_has_become_much_likelier():
    policy, learner = make("modern", two_gpus(), entropy=0.0)
    incumbents, stay = conditions(policy, 8)
    decoded = learner.sample(incumbents, stay, np.array([0, 0], np.int32))
    unlikely = Decoded(decoded.devices, decoded.log_probs - 1.0, decoded.usable, decoded.features)

    def norm(advantage: float, imitate: bool) -> float:
        gradients = learner.gradients(
            unlikely,
            tf.constant(incumbents),
            tf.constant(stay),
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
