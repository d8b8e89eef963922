"""Post: cross-entropy minimisation and proximal policy optimisation over one softmax a group."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from placer.placers.group_moves import finite_cost, graded_cost, preferred
from placer.placers.progress import Progress
from placer.placers.spec import PlacerSpec, parameter

if TYPE_CHECKING:
    from placer.search.state import Search

NAME = "cross_entropy"


@dataclasses.dataclass(frozen=True)
class CrossEntropyParameters:
    """Parameters of Post."""

    evaluations: int | None = parameter(
        None, "placements to evaluate; none: as the budget allows", least=1
    )
    batch: int = parameter(32, "placements sampled for each PPO update", least=2)
    batches: int = parameter(5, "PPO updates between two cross-entropy updates", least=1)
    elite: float = parameter(
        0.1, "part of the samples that a cross-entropy update fits", least=0.0, most=1.0
    )
    smoothing: float = parameter(
        0.3, "weight of the elite's frequencies in a cross-entropy update", least=0.0, most=1.0
    )
    epochs: int = parameter(4, "gradient steps of a PPO update", least=0)
    learning_rate: float = parameter(0.1, "of Adam, on the logits", least=0.0)
    clip: float = parameter(0.2, "PPO's bound on the ratio of probabilities", least=0.0)
    least_probability: float = parameter(
        0.005, "floor of a device's probability after an update", least=0.0, most=0.1
    )
    memory_penalty: float = parameter(
        20.0, "cost of memory over the limit: step time * penalty * part of the limit", least=0.0
    )
    use_cpu: bool = parameter(False, "sample the CPU too for groups that a GPU may run")


def _run(search: Search, parameters: CrossEntropyParameters) -> None:
    """Post's two updates of one distribution (section 4 of the paper).

    Each group's device is drawn from its own softmax, whose logits are the parameters. After each
    batch PPO (clipped; advantage from -sqrt(cost), normalised) moves the logits; every `batches`
    batches the probabilities move towards the frequencies among the best of the samples since the
    last such update, which minimises the cross entropy to them.
    """
    problem, grouping = search.problem, search.grouping
    allowed = grouping.allowed if parameters.use_cpu else preferred(problem, grouping.allowed)
    memory = problem.topology.memory_bytes
    num_groups, num_devices = allowed.shape
    rng = np.random.default_rng(search.seed)
    progress = Progress(search, parameters.evaluations)
    logits = np.where(allowed, 0.0, -np.inf)
    adam = _Adam(logits.shape, parameters.learning_rate)
    samples: list[np.ndarray] = []
    costs: list[np.ndarray] = []
    columns = np.arange(num_groups)
    while not progress.done():
        probability = _softmax(logits)
        batch = progress.room(parameters.batch)
        drawn = _sample(rng, probability, batch)
        evaluation = search.evaluate(grouping.expand(drawn), NAME)
        cost = graded_cost(evaluation, memory, parameters.memory_penalty)
        ran = np.isfinite(cost)
        if not ran.any():
            continue
        samples.append(drawn[ran])
        costs.append(cost[ran])

        reward = -np.sqrt(finite_cost(cost))
        advantage = (reward - reward.mean()) / (reward.std() + 1e-12)
        old = probability[columns, drawn]
        for _ in range(parameters.epochs if reward.std() > 0 else 0):
            new = _softmax(logits)
            ratio = new[columns, drawn] / old
            # The clipped objective is flat where the ratio has moved far enough already.
            flat = np.where(
                advantage[:, None] > 0, ratio > 1 + parameters.clip, ratio < 1 - parameters.clip
            )
            weight = np.where(flat, 0.0, advantage[:, None] * ratio) / batch
            gradient = -weight.sum(axis=0)[:, None] * new
            np.add.at(gradient, (np.broadcast_to(columns, drawn.shape), drawn), weight)
            logits = np.where(allowed, logits + adam.step(gradient), -np.inf)

        if len(samples) == parameters.batches:
            every, cost = np.concatenate(samples), np.concatenate(costs)
            count = max(1, round(parameters.elite * len(cost)))
            best = every[np.argsort(cost, kind="stable")[:count]]
            frequency = np.zeros((num_groups, num_devices))
            np.add.at(frequency, (np.broadcast_to(columns, best.shape), best), 1.0 / count)
            mixed = (1 - parameters.smoothing) * _softmax(logits)
            logits = _logits(mixed + parameters.smoothing * frequency, allowed)
            samples, costs = [], []
        # With many devices, no more than half of the probability is given away.
        choices = allowed.sum(axis=1, keepdims=True)
        floor = np.minimum(parameters.least_probability, 0.5 / np.maximum(choices, 1))
        probability = _softmax(logits)
        logits = _logits(probability * (1 - floor * choices) + floor * allowed, allowed)


def _softmax(logits: np.ndarray) -> np.ndarray:
    """float64[G, D] probabilities; -inf logits get 0."""
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def _logits(probability: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    return np.where(allowed, np.log(np.maximum(probability, 1e-12)), -np.inf)


def _sample(rng: np.random.Generator, probability: np.ndarray, batch: int) -> np.ndarray:
    """int32[batch, G] drawn from float64[G, D]."""
    cumulative = probability.cumsum(axis=1)
    cumulative /= cumulative[:, -1:]
    u = rng.random((batch, len(probability), 1))
    return (u >= cumulative).sum(axis=2).astype(np.int32)


class _Adam:
    """Adam (Kingma and Ba, 2015), ascending."""

    def __init__(self, shape: tuple[int, ...], learning_rate: float) -> None:
        self._rate = learning_rate
        self._mean, self._square, self._steps = np.zeros(shape), np.zeros(shape), 0

    def step(self, gradient: np.ndarray) -> np.ndarray:
        """The change of the parameters for a gradient."""
        self._steps += 1
        self._mean += 0.1 * (gradient - self._mean)
        self._square += 0.001 * (gradient**2 - self._square)
        mean = self._mean / (1 - 0.9**self._steps)
        square = self._square / (1 - 0.999**self._steps)
        return self._rate * mean / (np.sqrt(square) + 1e-8)


SPEC = PlacerSpec(
    NAME,
    "one softmax a group, learnt by cross-entropy minimisation and PPO",
    "Gao, Chen and Li, Post: Device Placement with Cross-Entropy Minimization and Proximal Policy "
    "Optimization, NeurIPS 2018",
    CrossEntropyParameters,
    _run,
)
