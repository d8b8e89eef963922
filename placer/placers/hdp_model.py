"""The networks of HDP, in TensorFlow."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """B draws.

    Attributes:
      groups: int64[B, U] group of each unit.
      devices: int64[B, G] device of each group.
      group_features: float32[B, G, F] what the placer read.
    """

    groups: np.ndarray
    devices: np.ndarray
    group_features: np.ndarray


class Hdp(tf.Module):
    """Grouper and placer with their optimizer. All random numbers come from `seed`."""

    def __init__(
        self,
        features: np.ndarray,
        edges: tuple[np.ndarray, np.ndarray],
        *,
        num_groups: int,
        num_devices: int,
        grouper_hidden: int,
        placer_hidden: int,
        learning_rate: float,
        clip_norm: float,
        tanh_constant: float,
        seed: int,
    ) -> None:
        """Builds the networks.

        Args:
          features: float32[U, F] of the units.
          edges: int64[M], int64[M] between units.
          num_groups: G.
          num_devices: devices to choose among.
          grouper_hidden, placer_hidden: sizes.
          learning_rate, clip_norm: of Adam.
          tanh_constant: logits of devices are held within it.
          seed: of initial values and draws.
        """
        super().__init__()
        self._features = features
        self._edges = edges
        self._num_groups, self._num_devices = num_groups, num_devices
        self._rng = np.random.default_rng(seed)
        self._clip_norm, self._rate, self._bound = clip_norm, learning_rate, tanh_constant
        self._placer_hidden = h = placer_hidden
        # A group's features: its units', how many it has, and the groups it feeds and reads.
        self._width = features.shape[1] + 1 + 2 * num_groups

        def weight(rows: int, columns: int) -> tf.Variable:
            bound = (6.0 / (rows + columns)) ** 0.5
            value = self._rng.uniform(-bound, bound, (rows, columns))
            return tf.Variable(value.astype(np.float32))

        def bias(size: int) -> tf.Variable:
            return tf.Variable(np.zeros(size, np.float32))

        self._grouper = [
            weight(features.shape[1], grouper_hidden),
            bias(grouper_hidden),
            weight(grouper_hidden, num_groups),
            bias(num_groups),
        ]
        self._embed = [weight(self._width, h), bias(h)]
        self._forward = [weight(2 * h, 4 * h), bias(4 * h)]
        self._backward = [weight(2 * h, 4 * h), bias(4 * h)]
        self._memory = [weight(2 * h, h), bias(h)]
        self._decoder = [weight(3 * h, 4 * h), bias(4 * h)]
        self._query = weight(h, h)
        self._score = weight(h, 1)
        self._device_embedding = weight(num_devices + 1, h)
        self._output = [weight(2 * h, num_devices), bias(num_devices)]
        self._weights = list(self.trainable_variables)
        self._moments = [
            (tf.Variable(tf.zeros_like(w)), tf.Variable(tf.zeros_like(w))) for w in self._weights
        ]
        self._steps = tf.Variable(0.0, trainable=False)

    def sample(self, batch: int) -> Sample:
        """Draws `batch` groupings and placements."""
        logits = self._group_logits().numpy()
        # Gumbel-max draws from the softmax of the logits.
        noise = self._rng.gumbel(size=(batch, *logits.shape)).astype(np.float32)
        groups = (logits[None] + noise).argmax(axis=2)
        group_features = np.stack([self._group_features(g) for g in groups])
        size = (batch, self._num_groups, self._num_devices)
        devices = self._draw(
            tf.constant(group_features), tf.constant(self._rng.gumbel(size=size).astype(np.float32))
        ).numpy()
        return Sample(groups, devices.astype(np.int64), group_features)

    def update(self, sample: Sample, advantage: np.ndarray) -> None:
        """One step of Adam along advantage[B] times the gradient of the log probabilities."""
        self._update(
            tf.constant(sample.groups, tf.int32),
            tf.constant(sample.devices, tf.int32),
            tf.constant(sample.group_features),
            tf.constant(advantage.astype(np.float32)),
        )

    def _group_features(self, groups: np.ndarray) -> np.ndarray:
        """float32[G, width] of one grouping, int64[U]."""
        g = self._num_groups
        total = np.zeros((g, self._features.shape[1]), np.float32)
        np.add.at(total, groups, self._features)
        size = np.bincount(groups, minlength=g).astype(np.float32)
        adjacency = np.zeros((g, g), np.float32)
        adjacency[groups[self._edges[0]], groups[self._edges[1]]] = 1.0
        mean = total / np.maximum(size, 1)[:, None]
        return np.concatenate([mean, np.log1p(size)[:, None], adjacency, adjacency.T], axis=1)

    def _group_logits(self) -> tf.Tensor:
        w1, b1, w2, b2 = self._grouper
        hidden = tf.nn.relu(tf.constant(self._features) @ w1 + b1)
        return hidden @ w2 + b2

    @staticmethod
    def _cell(
        weights: list[tf.Variable], x: tf.Tensor, h: tf.Tensor, c: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        i, f, o, u = tf.split(tf.concat([x, h], 1) @ weights[0] + weights[1], 4, axis=1)
        c = tf.sigmoid(f + 1.0) * c + tf.sigmoid(i) * tf.tanh(u)
        return tf.sigmoid(o) * tf.tanh(c), c

    def _encode(self, group_features: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Attention memory [B, G, h] and the final state of the forward LSTM."""
        x = tf.tanh(tf.tensordot(group_features, self._embed[0], 1) + self._embed[1])
        steps = tf.transpose(x, [1, 0, 2])
        zero = tf.zeros_like(steps[0])

        def scan(weights: list[tf.Variable], sequence: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            def step(
                state: tuple[tf.Tensor, tf.Tensor], x: tf.Tensor
            ) -> tuple[tf.Tensor, tf.Tensor]:
                return self._cell(weights, x, *state)

            return tf.scan(step, sequence, (zero, zero))

        ahead, ahead_c = scan(self._forward, steps)
        back = tf.reverse(scan(self._backward, tf.reverse(steps, [0]))[0], [0])
        both = tf.transpose(tf.concat([ahead, back], 2), [1, 0, 2])
        memory = tf.tensordot(both, self._memory[0], 1) + self._memory[1]
        return memory, ahead[-1], ahead_c[-1]

    def _decode(
        self, group_features: tf.Tensor, choose: tf.Tensor, forced: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Runs the decoder, one group a step.

        Args:
          group_features: [B, G, width].
          choose: int32[B, G] devices if `forced`, else Gumbel noise [B, G, D].
          forced: whether the devices are given.

        Returns:
          Devices int32[G, B] and logits [G, B, D].
        """
        memory, h, c = self._encode(group_features)
        batch = tf.shape(memory)[0]
        start = tf.fill([batch], self._num_devices)
        first_logits = tf.zeros([batch, self._num_devices])
        inputs = tf.transpose(choose, [1, 0] if forced else [1, 0, 2])
        aligned = tf.transpose(memory, [1, 0, 2])

        def step(state: tuple[tf.Tensor, ...], now: tuple[tf.Tensor, ...]) -> tuple:
            h, c, previous, _ = state
            given, own = now
            embedded = tf.gather(self._device_embedding, previous)
            h, c = self._cell(self._decoder, tf.concat([own, embedded], 1), h, c)
            scores = tf.tanh(memory + (h @ self._query)[:, None, :])
            attention = tf.nn.softmax(tf.tensordot(scores, self._score, 1)[:, :, 0])
            context = tf.einsum("bg,bgh->bh", attention, memory)
            logits = tf.concat([h, context], 1) @ self._output[0] + self._output[1]
            logits = self._bound * tf.tanh(logits / self._bound)
            device = given if forced else tf.argmax(logits + given, 1, output_type=tf.int32)
            return h, c, device, logits

        _, _, devices, logits = tf.scan(step, (inputs, aligned), (h, c, start, first_logits))
        return devices, logits

    @tf.function(autograph=False)
    def _draw(self, group_features: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
        return tf.transpose(self._decode(group_features, noise, forced=False)[0])

    @tf.function(autograph=False)
    def _update(
        self,
        groups: tf.Tensor,
        devices: tf.Tensor,
        group_features: tf.Tensor,
        advantage: tf.Tensor,
    ) -> None:
        with tf.GradientTape() as tape:
            log_groups = tf.nn.log_softmax(self._group_logits())
            # log p of each unit's group, summed over units.
            one = tf.range(tf.shape(groups)[1])[None, :] + tf.zeros_like(groups)
            log_p = tf.reduce_sum(tf.gather_nd(log_groups, tf.stack([one, groups], 2)), 1)
            _, logits = self._decode(group_features, devices, forced=True)
            loss = tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels=tf.transpose(devices), logits=logits
            )
            log_p -= tf.reduce_sum(loss, 0)
            objective = -tf.reduce_mean(log_p * advantage)
        gradients = tape.gradient(objective, self._weights)
        gradients, _ = tf.clip_by_global_norm(gradients, self._clip_norm)
        self._steps.assign_add(1.0)
        correction = tf.sqrt(1.0 - 0.999**self._steps) / (1.0 - 0.9**self._steps)
        for weight, gradient, (mean, square) in zip(
            self._weights, gradients, self._moments, strict=True
        ):
            gradient = tf.convert_to_tensor(gradient)
            mean.assign(0.9 * mean + 0.1 * gradient)
            square.assign(0.999 * square + 0.001 * tf.square(gradient))
            weight.assign_sub(self._rate * correction * mean / (tf.sqrt(square) + 1e-8))
