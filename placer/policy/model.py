"""PlacementPolicy: the attentional sequence-to-sequence model that proposes placements.

An encoder LSTM, run both ways, reads the op groups in topological order. A decoder LSTM takes one
step a group; its input is the encoder's state at that group and the embedding of the device chosen
for the group before, its output, with attention over the encoder's states, a distribution over
devices (Mirhoseini et al., ICML 2017, section 3.2; Bahdanau et al. 2015 for the attention). The
attention does not feed back into the cell, so that the probabilities of given placements need no
sequential attention.
"""

from __future__ import annotations

from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from placer.policy.features import GroupFeatures
from placer.policy.settings import PolicySettings

# Logit of a device that a group may not use.
FORBIDDEN = -1e9
# Columns of Decoded.features, in order, with their weights before any training.
DEVICE_FEATURES = {
    # The device of the placement that is being changed or, where none is, of the last group that
    # had a choice; times the reluctance to leave it.
    "stay": 1.0,
    # The device of the group before.
    "previous": 1.0,
    # Share of the traffic into and out of the group that would stay on the device.
    "received": 1.0,
    "sent": 1.0,
    # Compute time on the device so far, over all groups'.
    "load": 0.0,
    # log of the group's compute time on the device over that on its fastest.
    "slowdown": -0.5,
    # Share of the device's memory that is taken.
    "memory": 0.0,
    # Estimated finish time over the earliest, in shares of all groups' time, and squashed.
    "delay": 0.0,
    "late": -0.5,
    # No group is on the device yet.
    "unused": 0.0,
}


class Encoded(NamedTuple):
    """What one pass over the groups gives; shared by all samples.

    Attributes:
      states: float32[G, hidden].
      keys: float32[G, hidden] for the attention.
      cell_inputs: float32[G, 4 * hidden], the states' share of the decoder cell's gates.
    """

    states: tf.Tensor
    keys: tf.Tensor
    cell_inputs: tf.Tensor


class Decoded(NamedTuple):
    """B placements and what is needed to compute their probabilities again.

    Attributes:
      devices: int32[B, G].
      log_probs: float32[B, G] of each choice given those before.
      usable: bool[B, G, D] devices that could be chosen.
      features: float32[B, G, D, F], columns as DEVICE_FEATURES; F = 0 without device features.
    """

    devices: tf.Tensor
    log_probs: tf.Tensor
    usable: tf.Tensor
    features: tf.Tensor


class PlacementPolicy(keras.Model):
    """The policy for one graph of groups.

    Args:
      features: of the groups.
      settings: sizes and kinds.
      seed: of the initial weights.
    """

    def __init__(self, features: GroupFeatures, settings: PolicySettings, seed: int) -> None:
        super().__init__(name="placement_policy")
        self.settings = settings
        self.num_groups, self.num_devices = features.allowed.shape
        hidden = settings.hidden
        seeds = iter(range(1000 * seed, 1000 * seed + 1000))

        def glorot() -> keras.initializers.Initializer:
            return keras.initializers.GlorotUniform(next(seeds))

        def dense(units: int, name: str, scale: float = 1.0, **kwargs) -> keras.layers.Dense:
            initializer = keras.initializers.VarianceScaling(
                scale, "fan_avg", "uniform", next(seeds)
            )
            return keras.layers.Dense(units, kernel_initializer=initializer, name=name, **kwargs)

        def lstm(units: int, name: str) -> keras.layers.LSTM:
            return keras.layers.LSTM(
                units,
                return_sequences=True,
                seed=next(seeds),
                kernel_initializer=glorot(),
                recurrent_initializer=keras.initializers.Orthogonal(seed=next(seeds)),
                name=name,
            )

        self.type_embedding = dense(settings.type_units, "type_embedding", use_bias=False)
        self.group_embedding = dense(hidden, "group_embedding", activation="tanh")
        self.encoder = keras.layers.Bidirectional(lstm(hidden // 2, "encoder"), name="encoder")
        # Row D stands for no device.
        self.device_embedding = dense(hidden // 4, "device_embedding", use_bias=False)
        self.decoder = lstm(hidden, "decoder")
        self.query = dense(hidden, "query", use_bias=False)
        self.key = dense(hidden, "key", use_bias=False)
        self.energy = dense(1, "energy", use_bias=False)
        self.output_layer = dense(self.num_devices, "output_layer", scale=0.01)
        self.feature_weights = dense(
            len(DEVICE_FEATURES),
            "feature_weights",
            scale=0.01,
            bias_initializer=_constant(list(DEVICE_FEATURES.values())),
        )
        self._types = tf.constant(features.types)
        self._values = tf.constant(features.values)
        self._allowed = tf.constant(features.allowed)
        self._movable = tf.constant(features.movable)
        self._seconds = tf.constant(features.seconds)
        self._memory = tf.constant(features.memory)
        fastest = np.where(features.allowed, features.seconds, np.inf).min(axis=1, keepdims=True)
        slowdown = np.log(np.maximum(features.seconds, 1e-9) / np.maximum(fastest, 1e-9))
        self._slowdown = tf.constant(np.clip(slowdown, 0.0, 5.0).astype(np.float32))
        self._neighbour = tf.constant(features.neighbour)
        self._traffic = tf.constant(features.traffic)
        self._arrival = tf.constant(features.arrival)
        self._before = tf.constant(
            features.neighbour < np.arange(self.num_groups, dtype=np.int32)[:, None]
        )
        # The device of the same class that must be in use before this one is.
        previous = [
            max((j for j in range(d) if features.symmetry[j] == features.symmetry[d]), default=-1)
            for d in range(self.num_devices)
        ]
        self._first_of_class = tf.constant([p < 0 for p in previous])
        self._class_predecessor = tf.constant([max(p, 0) for p in previous])
        self._build()

    def _build(self) -> None:
        """Creates every variable, so that checkpoints and optimizers see them all."""
        h, d = self.settings.hidden, self.num_devices
        self.type_embedding.build((None, self._types.shape[1]))
        width = self.settings.type_units + self._values.shape[1]
        self.group_embedding.build((None, width))
        self.encoder.build((1, self.num_groups, h))
        self.device_embedding.build((None, d + 1))
        inputs = h + h // 4 + (h // 4 + 1 if self.settings.incumbents else 0)
        self.decoder.build((None, self.num_groups, inputs))
        self.query.build((None, h))
        self.key.build((None, h))
        if self.settings.attention == "additive":
            self.energy.build((None, h))
        self.output_layer.build((None, 2 * h))
        if self.settings.device_features:
            self.feature_weights.build((None, 2 * h))
        self.built = True

    def encode(self) -> Encoded:
        """Reads all groups once."""
        inputs = tf.concat([self.type_embedding(self._types), self._values], axis=1)
        states = self.encoder(self.group_embedding(inputs)[None])[0]
        kernel = tf.convert_to_tensor(self.decoder.cell.kernel)[: self.settings.hidden]
        cell_inputs = tf.matmul(states, kernel) + tf.convert_to_tensor(self.decoder.cell.bias)
        return Encoded(states, self.key(states), cell_inputs)

    def _attend(self, query: tf.Tensor, encoded: Encoded) -> tf.Tensor:
        """float32[..., hidden] contexts of float32[..., hidden] decoder states."""
        query = self.query(query)
        if self.settings.attention == "additive":
            scores = self.energy(tf.tanh(query[..., None, :] + encoded.keys))[..., 0]
        else:
            scores = tf.matmul(query, encoded.keys, transpose_b=True)
            scores *= self.settings.hidden**-0.5
        return tf.matmul(tf.nn.softmax(scores), encoded.states)

    def _logits(
        self, state: tf.Tensor, encoded: Encoded, features: tf.Tensor, usable: tf.Tensor
    ) -> tf.Tensor:
        """float32[..., D] masked logits of decoder states float32[..., hidden]."""
        output = tf.concat([state, self._attend(state, encoded)], axis=-1)
        logits = self.output_layer(output)
        if self.settings.device_features:
            weights = self.feature_weights(output)
            logits += tf.reduce_sum(features * weights[..., None, :], axis=-1)
        if self.settings.squash:
            logits = self.settings.squash * tf.tanh(logits / self.settings.temperature)
        return tf.where(usable, logits, FORBIDDEN)

    def log_probs(
        self, encoded: Encoded, decoded: Decoded, incumbents: tf.Tensor, stay: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Log-probabilities of given placements, in one pass and differentiable.

        Args:
          encoded: of `encode`.
          decoded: B placements; `log_probs` is not read.
          incumbents, stay: as given to `decode` when they were sampled.

        Returns:
          float32[B, G] log-probability of each choice and float32[B, G] entropies.
        """
        devices = decoded.devices
        previous = tf.pad(devices[:, :-1], [[0, 0], [1, 0]], constant_values=self.num_devices)
        batch = tf.shape(devices)[0]
        shape = [batch, self.num_groups, self.settings.hidden]
        inputs = [tf.broadcast_to(encoded.states, shape), self._embed(previous)]
        if self.settings.incumbents:
            inputs.append(self._embed(incumbents))
            inputs.append(tf.broadcast_to(0.1 * stay[:, None, None], [batch, self.num_groups, 1]))
        states = self.decoder(tf.concat(inputs, axis=-1))
        logits = self._logits(states, encoded, decoded.features, decoded.usable)
        log_p = tf.nn.log_softmax(logits)
        entropy = -tf.reduce_sum(tf.exp(log_p) * tf.where(decoded.usable, log_p, 0.0), axis=-1)
        chosen = tf.one_hot(devices, self.num_devices)
        return tf.reduce_sum(log_p * chosen, axis=-1), entropy

    def _embed(self, devices: tf.Tensor) -> tf.Tensor:
        return self.device_embedding(tf.one_hot(devices, self.num_devices + 1))

    def decode(
        self,
        encoded: Encoded,
        incumbents: tf.Tensor,
        stay: tf.Tensor,
        noise: tf.Tensor | None = None,
        given: tf.Tensor | None = None,
    ) -> Decoded:
        """Samples placements, or walks through given ones; not differentiable.

        Args:
          encoded: of `encode`.
          incumbents: int32[B, G] placements to change; D where there is none.
          stay: float32[B], before training added to the logit of the incumbent's device or, where
            there is no incumbent, of the device of the last group that had a choice.
          noise: float32[G, B, D] Gumbel noise that makes the choices.
          given: int32[B, G] choices, instead of noise.
        """
        settings, d = self.settings, self.num_devices
        hidden = settings.hidden
        batch = tf.shape(incumbents)[0]
        kernel = tf.convert_to_tensor(self.decoder.cell.kernel)
        recurrent = tf.convert_to_tensor(self.decoder.cell.recurrent_kernel)
        table = tf.convert_to_tensor(self.device_embedding.kernel)
        quarter = hidden // 4
        from_previous = tf.matmul(table, kernel[hidden : hidden + quarter])
        incumbents_t = tf.transpose(incumbents)
        if settings.incumbents:
            from_incumbent = tf.matmul(table, kernel[hidden + quarter : hidden + 2 * quarter])
            from_stay = 0.1 * stay[:, None] * kernel[hidden + 2 * quarter :]
        given_t = None if given is None else tf.transpose(given)

        ints = tf.TensorArray(tf.int32, self.num_groups, clear_after_read=False)
        floats = tf.TensorArray(tf.float32, self.num_groups, clear_after_read=False)
        zeros = tf.zeros([batch, d])
        one_hot_incumbents = tf.one_hot(incumbents, d)
        load = tf.reduce_sum(one_hot_incumbents * self._seconds, axis=1)
        memory = tf.reduce_sum(one_hot_incumbents * self._memory, axis=1)
        width = len(DEVICE_FEATURES) if settings.device_features else 0

        def step(t, h, c, previous, anchor, used, load, memory, ready, devices, finish, out):
            gates = tf.matmul(h, recurrent) + encoded.cell_inputs[t]
            gates += tf.gather(from_previous, previous)
            if settings.incumbents:
                gates += tf.gather(from_incumbent, incumbents_t[t]) + from_stay
            i, f, g, o = tf.split(gates, 4, axis=1)
            c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
            h = tf.sigmoid(o) * tf.tanh(c)

            usable = tf.broadcast_to(self._allowed[t], [batch, d])
            if settings.break_symmetry:
                # Without an incumbent, identical devices are numbered by first use.
                opened = tf.gather(used, self._class_predecessor, axis=1) > 0
                opened |= self._first_of_class | (incumbents_t[t] < d)[:, None]
                usable &= opened
            features = tf.zeros([batch, d, 0])
            end = zeros
            if settings.device_features:
                seconds, bytes_ = self._seconds[t], self._memory[t]
                incumbent = tf.one_hot(incumbents_t[t], d)
                kept = tf.where(incumbents_t[t] < d, incumbents_t[t], anchor)
                reference = tf.one_hot(kept, d)
                load -= incumbent * seconds
                memory -= incumbent * bytes_
                around = self._neighbour[t]
                where = tf.one_hot(devices.gather(around), d)
                shares = tf.einsum("ik,kbd->ibd", self._traffic[:, t], where)
                arrived = finish.gather(around)[:, :, None]
                arrived += (1.0 - where) * self._arrival[t][:, None, None]
                arrived = tf.where(self._before[t][:, None, None], arrived, 0.0)
                end = tf.maximum(ready, tf.reduce_max(arrived, axis=0)) + seconds
                delay = end - tf.reduce_min(
                    tf.where(usable, end, np.float32(1e30)), axis=1, keepdims=True
                )
                features = tf.stack(
                    [
                        reference * stay[:, None],
                        tf.one_hot(previous, d),
                        shares[0],
                        shares[1],
                        load + seconds,
                        tf.broadcast_to(self._slowdown[t], [batch, d]),
                        memory + bytes_,
                        tf.clip_by_value(delay, 0.0, 2.0),
                        tf.tanh(tf.maximum(delay, 0.0) * (self.num_groups / 4.0)),
                        1.0 - used,
                    ],
                    axis=2,
                )
            logits = self._logits(h, encoded, features, usable)
            log_p = tf.nn.log_softmax(logits)
            if given_t is None:
                assert noise is not None
                choice = tf.argmax(log_p + noise[t], axis=1, output_type=tf.int32)
            else:
                choice = given_t[t]
            chosen = tf.one_hot(choice, d)
            used = tf.maximum(used, chosen)
            anchor = tf.where(self._movable[t], choice, anchor)
            if settings.device_features:
                load += chosen * seconds
                memory += chosen * bytes_
                finished = tf.reduce_sum(chosen * end, axis=1)
                ready = tf.where(chosen > 0, end, ready)
                finish = finish.write(t, finished)
            devices = devices.write(t, choice)
            out = (
                out[0].write(t, tf.reduce_sum(log_p * chosen, axis=1)),
                out[1].write(t, usable),
                out[2].write(t, features),
            )
            return t + 1, h, c, choice, anchor, used, load, memory, ready, devices, finish, out

        state = tf.zeros([batch, hidden])
        result = tf.while_loop(
            lambda t, *_: t < self.num_groups,
            step,
            (
                0,
                state,
                state,
                tf.fill([batch], d),
                tf.fill([batch], d),
                zeros,
                load,
                memory,
                zeros,
                ints.unstack(incumbents_t),
                floats.unstack(tf.zeros([self.num_groups, batch])),
                (
                    tf.TensorArray(tf.float32, self.num_groups, element_shape=[None]),
                    tf.TensorArray(tf.bool, self.num_groups, element_shape=[None, d]),
                    tf.TensorArray(tf.float32, self.num_groups, element_shape=[None, d, width]),
                ),
            ),
            parallel_iterations=1,
        )
        devices, (log_probs, usable, features) = result[9], result[11]
        return Decoded(
            tf.transpose(devices.stack()),
            tf.transpose(log_probs.stack()),
            tf.transpose(usable.stack(), [1, 0, 2]),
            tf.transpose(features.stack(), [1, 0, 2, 3]),
        )


def gumbel(seed: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
    """Gumbel noise that depends on `seed`, int[2], alone."""
    uniform = tf.random.stateless_uniform(shape, seed, minval=1e-20, maxval=1.0, dtype=tf.float32)
    return -tf.math.log(-tf.math.log(uniform))


def _constant(values: list[float]) -> keras.initializers.Initializer:
    class Values(keras.initializers.Initializer):
        def __call__(self, shape, dtype=None):
            return tf.constant(values, dtype or tf.float32, shape)

    return Values()
