"""Training: it learns, obeys the budget, and depends on the seed alone."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import numpy as np
import pytest

from placer import devices
from placer.errors import PlacerError
from placer.placers.progress import Progress
from placer.policy import PolicySettings, train
from placer.policy.features import numbered_by_first_use
from placer.policy.rewards import advantages, rewards
from placer.policy.train import Training
from placer.policy.windows import Windows
from placer.search import Budget, Search
from placer.simulator import Evaluation
from tests.policy.problems import chains, search_of, two_gpus


def optimum(problem) -> float:
    """By evaluating every placement of the groups."""
    _, grouping, simulator = problem
    count = grouping.num_groups
    everything = (np.arange(1 << count)[:, None] >> np.arange(count)) & 1
    result = simulator.evaluate(everything.astype(np.int32), grouping.group_of)
    return float(result.step_seconds[result.feasible].min())


@pytest.mark.parametrize("seed", range(5))
def test_policy_alone_places_two_chains_on_two_devices_optimally(seed):
    problem = chains(two_gpus())
    search = search_of(problem, evaluations=6000, seed=seed)
    best = optimum(problem)

    def stop_at_optimum(s):
        if s.best_seconds <= best * (1 + 1e-9):
            s.budget = type(s.budget)(evaluations=0)

    search._on_progress = stop_at_optimum
    train(search)
    assert search.best_seconds == pytest.approx(best, rel=1e-9)
    assert set(search.history().source) == {"policy"}


def test_the_papers_policy_learns():
    search = search_of(chains(devices.parse("k80:2"), length=2), evaluations=10**6)
    training = Training(search, PolicySettings.named("icml2017"))
    means = []
    learn = training._learn

    def recorded(decoded, conditions, level, reward, feasible):
        means.append(reward.mean())
        learn(decoded, conditions, level, reward, feasible)

    training._learn = recorded
    for _ in range(120):
        training.iterate()
    assert np.mean(means[-20:]) > np.mean(means[:5])
    assert training.state.updates == 120


def test_budget_is_met_to_the_placement_and_counts_no_more():
    problem = chains(two_gpus(), length=1)
    search = search_of(problem, evaluations=300)
    train(search, PolicySettings(samples=128))
    assert search.evaluations == 300


def test_patience_ends_a_run_that_finds_nothing_better():
    search = search_of(chains(two_gpus(), length=1), evaluations=10**6)
    train(search, PolicySettings(patience=512))
    assert search.evaluations < 10_000


_RUN = """
import sys
import tensorflow as tf
threads = int(sys.argv[1])
tf.config.threading.set_intra_op_parallelism_threads(threads)
tf.config.threading.set_inter_op_parallelism_threads(threads)
from placer import devices
from placer.policy import train
from placer.policy.settings import PolicySettings
from placer.policy.train import Training
from tests.policy.problems import chains, search_of
search = search_of(chains(devices.parse("k80:2"), count=8, length=12), evaluations=10**6, seed=7)
training = Training(search, PolicySettings(warm_up=256, samples=128))
for _ in range(4):
    training.iterate()
weights = b"".join(v.numpy().tobytes() for v in training.learner.policy.trainable_variables)
import hashlib
print(hashlib.sha256(weights + search.best.tobytes()).hexdigest(), search.best_seconds)
"""


def test_seed_alone_decides_whatever_the_number_of_threads():
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    results = {
        subprocess.run(
            [sys.executable, "-c", _RUN, str(threads)],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for threads in (1, 3)
    }
    assert len(results) == 1


def test_equal_devices_are_renamed_by_first_use():
    symmetry = np.array([0, 1, 1, 1])
    rows = np.array([[3, 0, 3, 1], [0, 1, 2, 3], [0, 0, 0, 0], [2, 3, 2, 2]], np.int32)
    found = numbered_by_first_use(rows, symmetry)
    np.testing.assert_array_equal(found, [[1, 0, 1, 2], [0, 1, 2, 3], [0, 0, 0, 0], [1, 2, 1, 1]])
    # Equal placements stay equal, and simulate alike.
    _, grouping, simulator = chains(devices.parse("k80:3"))
    placement = np.where(np.arange(grouping.num_groups) % 2, 3, 2).astype(np.int32)[None]
    both = np.concatenate([placement, numbered_by_first_use(placement, symmetry)])
    assert (both[0] != both[1]).any()
    seconds = simulator.evaluate(both, grouping.group_of).step_seconds
    assert seconds[0] == pytest.approx(seconds[1], rel=1e-12)


def test_windows_are_ascending_movable_groups():
    _, grouping, _ = chains(two_gpus(), length=12)
    movable = np.arange(grouping.num_groups) % 5 > 0
    windows = Windows(grouping, movable)
    rng = np.random.default_rng(0)
    seen = np.zeros(grouping.num_groups, bool)
    for _ in range(200):
        window = windows.draw(rng, 6)
        assert len(window) == 6
        assert (np.diff(window) > 0).all()
        assert movable[window].all()
        seen[window] = True
    assert (seen == movable).all()
    assert len(windows.draw(rng, 10**6)) == movable.sum()


def test_incumbents_get_better_as_the_tolerance_falls():
    training = Training(search_of(chains(two_gpus()), evaluations=10**6), PolicySettings())
    state = training.state
    placements = np.eye(3, state.incumbent.size, dtype=np.int32)
    reward = np.array([-1.0, -1.1, -2.0])

    def means(progress: float) -> float:
        total = 0.0
        for iteration in range(200):
            state.incumbent_reward, state.iteration = -3.0, iteration
            state.progress = progress
            training._choose_incumbent(placements, reward)
            total += state.incumbent_reward
        return total / 200

    assert means(0.0) == pytest.approx(-1.0, abs=0.05)
    assert means(0.89) == -1.0
    state.incumbent_reward = -0.5  # Better than all of the batch.
    training._choose_incumbent(placements, reward)
    assert state.incumbent_reward == -0.5
    # At last, the best of all.
    state.keep_elites(placements[1:2] + 1, np.array([-0.25]))
    state.progress = 0.95
    training._choose_incumbent(placements, reward)
    assert state.incumbent_reward == -0.25
    np.testing.assert_array_equal(state.incumbent, placements[1] + 1)


def evaluation(seconds, peak, feasible) -> Evaluation:
    nothing = np.zeros((len(seconds), 1))
    return Evaluation(
        np.array(seconds), np.array(peak)[:, None], np.array(feasible), nothing, nothing, nothing
    )


def test_rewards_of_the_paper_and_of_the_modern_preset():
    result = evaluation([4.0, 1.0], [50, 150], [True, False])
    limit = np.array([100])
    np.testing.assert_allclose(
        rewards(result, limit, PolicySettings.named("icml2017")), [-2.0, -10.0]
    )
    modern = rewards(result, limit, PolicySettings())
    assert modern[0] == pytest.approx(-np.log(4.0))
    # The more bytes in excess, the worse.
    worse = rewards(evaluation([1.0], [200], [False]), limit, PolicySettings())
    assert worse[0] < modern[1] < 0.0


def test_runs_that_failed_are_the_worst_and_finite():
    result = evaluation([4.0, np.inf, 8.0], [50, 50, 50], [True, False, True])
    limit = np.array([100])
    for preset in ("modern", "icml2017"):
        reward = rewards(result, limit, PolicySettings.named(preset))
        assert np.isfinite(reward).all()
        assert reward.argmin() == 1
    none = evaluation([np.inf, np.inf], [50, 50], [False, False])
    assert np.isfinite(rewards(none, limit, PolicySettings())).all()


def test_a_policy_learns_on_after_runs_that_failed():
    """One failed run must not turn the weights to nan."""
    search = search_of(chains(two_gpus(), length=2), 512)
    simulator = search.simulator

    class Failing:
        def evaluate(self, placements, group_of=None, *, cutoff=float("inf")):
            found = simulator.evaluate(placements, group_of, cutoff=cutoff)
            seconds = found.step_seconds.copy()
            seconds[::7] = np.inf
            return dataclasses.replace(
                found, step_seconds=seconds, feasible=found.feasible & np.isfinite(seconds)
            )

    search.simulator = Failing()
    training = Training(search, PolicySettings(hidden=16, samples=64, update_samples=32))
    for _ in range(4):
        training.iterate()
    for variable in training.learner.policy.trainable_variables:
        assert np.isfinite(np.asarray(variable)).all(), variable.path


def test_advantages():
    everything, level = np.ones(4, bool), np.array([0, 0, 1, 1])
    reward = np.array([1.0, 3.0, 10.0, 30.0])
    loo = PolicySettings(baseline="leave_one_out", normalize=False)
    # By hand: reward less the mean of the others of its level.
    np.testing.assert_allclose(advantages(reward, everything, level, 0.0, loo), [-2, 2, -20, 20])
    paper = PolicySettings.named("icml2017")
    np.testing.assert_allclose(
        advantages(reward, np.array([True, False, True, True]), level, 2.0, paper), [-1, 0, 8, 28]
    )
    rank = advantages(reward, everything, np.zeros(4, int), 0.0, PolicySettings(baseline="rank"))
    assert rank.sum() == pytest.approx(0.0)
    assert (np.diff(rank) >= 0).all()


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(PlacerError, match="icml2017"):
        PolicySettings.named("nonsense")
    with pytest.raises(PlacerError, match="nosuch"):
        PolicySettings.named("modern", nosuch=1)
    with pytest.raises(PlacerError, match="features"):
        PolicySettings(features="pixels")
    with pytest.raises(PlacerError, match="hidden"):
        PolicySettings(hidden=7)
    with pytest.raises(PlacerError, match="ppo_clip"):
        PolicySettings(epochs=2, ppo_clip=0.0)
    with pytest.raises(PlacerError, match=r"samples=many.*int"):
        PolicySettings.from_options(["samples=many"])
    with pytest.raises(PlacerError, match="name=value"):
        PolicySettings.from_options(["samples"])
    with pytest.raises(PlacerError, match="no option 'nosuch'"):
        PolicySettings.from_options({"nosuch": 1})


def test_settings_from_options():
    settings = PolicySettings.from_options(
        ["preset=icml2017", "samples=20", "learning_rate=0.01", "break_symmetry=yes"]
    )
    expected = PolicySettings.named("icml2017", samples=20, learning_rate=0.01, break_symmetry=True)
    assert settings == expected
    assert PolicySettings.from_options() == PolicySettings()


def test_a_limit_on_evaluations_alone_drives_the_schedules():
    """A limit in seconds beside it must not: it would make runs of one seed differ."""
    problem = chains(two_gpus(), length=1)
    search = Search(*problem, budget=Budget(seconds=1e3, evaluations=640))
    training = Training(search, PolicySettings(samples=64, hidden=8))
    training.iterate()
    assert training.state.progress == 0.1
    progress = Progress(search, None)
    search.evaluate(np.zeros([288, problem[0].graph.num_ops], np.int32), "test")
    assert progress.fraction() == 0.5
