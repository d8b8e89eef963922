"""PlacementPolicy: the attentional sequence-to-sequence model that proposes placements.

An encoder LSTM, run both ways, reads the op groups in topological order. A decoder LSTM takes one
step a group; its input is the encoder's state at that group and the embedding of the device chosen
for the group before, its output, with attention over the encoder's states, a distribution over
devices (Mirhoseini et al., ICML 2017, section 3.2; Bahdanau et al. 2015 for the attention). The
attention does not feed back into the cell, so that the probabilities of given placements need no
sequential attention.

The decoder places all groups from nothing, or decodes a window of them anew within a placement
found before, as neural large neighbourhood search does (Hottung and Tierney, ECAI 2020); the
encoder always reads all.
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
    # Share of the group's traffic that is with groups that have just moved to the device, and
    # whether the last group did; both times the inclination to follow.
    "joined": 4.0,
    "led": 2.0,
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


class Conditions(NamedTuple):
    """What B placements are decoded under.

    Attributes:
      order: int32[W] ascending, groups that are decoded; all others keep the incumbent's device.
      incumbents: int32[B, G] placements to change; D everywhere to start from nothing, which takes
        an `order` of all groups.
      stay: float32[B], before training added to the logit of the incumbent's device or, where
        there is no incumbent, of the device of the last group that had a choice.
      follow: float32[B] inclination of a group to go where those before it have moved.
      focus: int32[B] position in `order` of a group that must leave the incumbent's device; -1
        for none.
      forced: int32[B, W] devices that are chosen however unlikely; -1 where the policy chooses.
    """

    order: tf.Tensor
    incumbents: tf.Tensor
    stay: tf.Tensor
    follow: tf.Tensor
    focus: tf.Tensor
    forced: tf.Tensor


class Decoded(NamedTuple):
    """The W decoded groups of B placements, and what their probabilities depend on.

    Attributes:
      devices: int32[B, W].
      log_probs: float32[B, W] of each choice given those before.
      usable: bool[B, W, D] devices that could be chosen.
      features: float32[B, W, D, F], columns as DEVICE_FEATURES; F = 0 without device features.
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
        inputs = h + h // 4 + (h // 4 + 3 if self.settings.incumbents else 0)
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
        self, encoded: Encoded, decoded: Decoded, conditions: Conditions
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Log-probabilities of given placements, in one pass and differentiable.

        Args:
          encoded: of `encode`.
          decoded: B placements; `log_probs` is not read.
          conditions: as given to `decode` when they were sampled.

        Returns:
          float32[B, W] log-probability of each choice and float32[B, W] entropies.
        """
        devices, order = decoded.devices, conditions.order
        previous = tf.pad(devices[:, :-1], [[0, 0], [1, 0]], constant_values=self.num_devices)
        batch, width = tf.shape(devices)[0], tf.shape(order)[0]
        states = tf.gather(encoded.states, order)
        inputs = [
            tf.broadcast_to(states, [batch, width, self.settings.hidden]),
            self._embed(previous),
        ]
        if self.settings.incumbents:
            inputs.append(self._embed(tf.gather(conditions.incumbents, order, axis=1)))
            scalars = tf.stack([0.1 * conditions.stay, conditions.follow], axis=1)
            inputs.append(tf.broadcast_to(scalars[:, None], [batch, width, 2]))
            inputs.append(tf.one_hot(conditions.focus, width)[:, :, None])
        states = self.decoder(tf.concat(inputs, axis=-1))
        logits = self._logits(states, encoded, decoded.features, decoded.usable)
        log_p = tf.nn.log_softmax(logits)
        entropy = -tf.reduce_sum(tf.exp(log_p) * tf.where(decoded.usable, log_p, 0.0), axis=-1)
        chosen = tf.one_hot(devices, self.num_devices)
        return tf.reduce_sum(log_p * chosen, axis=-1), entropy

    def _embed(self, devices: tf.Tensor) -> tf.Tensor:
        return self.device_embedding(tf.one_hot(devices, self.num_devices + 1))

    def decode(
        self, encoded: Encoded, conditions: Conditions, noise: tf.Tensor | None = None
    ) -> Decoded:
        """Samples placements, or walks through those that are forced; not differentiable.

        Args:
          encoded: of `encode`.
          conditions: of B placements.
          noise: float32[W, B, D] Gumbel noise that makes the choices; None takes the likeliest.
        """
        settings, d = self.settings, self.num_devices
        hidden, order, incumbents = settings.hidden, conditions.order, conditions.incumbents
        batch, length = tf.shape(incumbents)[0], tf.shape(order)[0]
        kernel = tf.convert_to_tensor(self.decoder.cell.kernel)
        recurrent = tf.convert_to_tensor(self.decoder.cell.recurrent_kernel)
        table = tf.convert_to_tensor(self.device_embedding.kernel)
        quarter = hidden // 4
        from_previous = tf.matmul(table, kernel[hidden : hidden + quarter])
        if settings.incumbents:
            from_incumbent = tf.matmul(table, kernel[hidden + quarter : hidden + 2 * quarter])
            scalars = tf.stack([0.1 * conditions.stay, conditions.follow], axis=1)
            from_scalars = tf.matmul(scalars, kernel[hidden + 2 * quarter : -1])
        cell_inputs = tf.gather(encoded.cell_inputs, order)
        all_incumbents = tf.transpose(incumbents)
        incumbents_t = tf.gather(all_incumbents, order)
        forced = tf.transpose(conditions.forced)
        allowed, movable = tf.gather(self._allowed, order), tf.gather(self._movable, order)
        # A group that may use one device alone cannot leave it.
        leaves = tf.transpose(tf.one_hot(conditions.focus, length)) > 0
        leaves = (leaves & movable[:, None])[:, :, None]
        changing = tf.cast(incumbents_t[0] < d, tf.float32)[:, None]

        zeros = tf.zeros([batch, d])
        one_hot_incumbents = tf.one_hot(incumbents, d)
        load = tf.reduce_sum(one_hot_incumbents * self._seconds, axis=1)
        memory = tf.reduce_sum(one_hot_incumbents * self._memory, axis=1)
        width = len(DEVICE_FEATURES) if settings.device_features else 0
        if settings.device_features:
            all_seconds = tf.gather(self._seconds, order)
            all_bytes = tf.gather(self._memory, order)
            all_slowdown = tf.gather(self._slowdown, order)
            all_neighbours = tf.gather(self._neighbour, order)
            all_traffic = tf.gather(self._traffic, order, axis=1)
            all_arrival = tf.gather(self._arrival, order)
            all_before = tf.gather(self._before, order)

        def step(
            t, h, c, previous, led, anchor, used, load, memory, ready, devices, moved, finish, out
        ):
            gates = tf.matmul(h, recurrent) + cell_inputs[t]
            gates += tf.gather(from_previous, previous)
            if settings.incumbents:
                gates += tf.gather(from_incumbent, incumbents_t[t]) + from_scalars
                gates += tf.cast(tf.equal(conditions.focus, t), tf.float32)[:, None] * kernel[-1:]
            i, f, g, o = tf.split(gates, 4, axis=1)
            c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
            h = tf.sigmoid(o) * tf.tanh(c)

            incumbent = tf.one_hot(incumbents_t[t], d)
            usable = tf.broadcast_to(allowed[t], [batch, d])
            usable &= ~(leaves[t] & (incumbent > 0))
            if settings.break_symmetry:
                # Without an incumbent, identical devices are numbered by first use.
                opened = tf.gather(used, self._class_predecessor, axis=1) > 0
                opened |= self._first_of_class | (incumbents_t[t] < d)[:, None]
                usable &= opened
            features = tf.zeros([batch, d, 0])
            end = zeros
            if settings.device_features:
                seconds, bytes_ = all_seconds[t], all_bytes[t]
                kept = tf.where(incumbents_t[t] < d, incumbents_t[t], anchor)
                reference = tf.one_hot(kept, d)
                load -= incumbent * seconds
                memory -= incumbent * bytes_
                around = all_neighbours[t]
                where = tf.one_hot(devices.gather(around), d)
                joined = tf.one_hot(moved.gather(around), d)
                shares = tf.einsum("ik,kbd->ibd", all_traffic[:, t], where)
                followed = tf.einsum("k,kbd->bd", tf.reduce_sum(all_traffic[:, t], 0), joined)
                arrived = finish.gather(around)[:, :, None]
                arrived += (1.0 - where) * all_arrival[t][:, None, None]
                arrived = tf.where(all_before[t][:, None, None], arrived, 0.0)
                end = tf.maximum(ready, tf.reduce_max(arrived, axis=0)) + seconds
                delay = end - tf.reduce_min(
                    tf.where(usable, end, np.float32(1e30)), axis=1, keepdims=True
                )
                # Within an incumbent, what comes before the window has no finish time.
                delay = tf.maximum(delay, 0.0) * (1.0 - changing)
                follow = conditions.follow[:, None]
                features = tf.stack(
                    [
                        reference * conditions.stay[:, None],
                        tf.one_hot(previous, d),
                        shares[0],
                        shares[1],
                        load + seconds,
                        tf.broadcast_to(all_slowdown[t], [batch, d]),
                        memory + bytes_,
                        tf.minimum(delay, 2.0),
                        tf.tanh(delay * (self.num_groups / 4.0)),
                        1.0 - used,
                        followed * follow,
                        tf.one_hot(led, d) * follow,
                    ],
                    axis=2,
                )
            logits = self._logits(h, encoded, features, usable)
            log_p = tf.nn.log_softmax(logits)
            scores = log_p if noise is None else log_p + noise[t]
            choice = tf.argmax(scores, axis=1, output_type=tf.int32)
            choice = tf.where(forced[t] < 0, choice, forced[t])
            chosen = tf.one_hot(choice, d)
            led = tf.where(tf.equal(choice, incumbents_t[t]), -1, choice)
            used = tf.maximum(used, chosen)
            anchor = tf.where(movable[t], choice, anchor)
            if settings.device_features:
                load += chosen * seconds
                memory += chosen * bytes_
                finished = tf.reduce_sum(chosen * end, axis=1)
                ready = tf.where(chosen > 0, end, ready)
                finish = finish.write(order[t], finished)
                devices = devices.write(order[t], choice)
                moved = moved.write(order[t], led)
            out = (
                out[0].write(t, choice),
                out[1].write(t, tf.reduce_sum(log_p * chosen, axis=1)),
                out[2].write(t, usable),
                out[3].write(t, features),
            )
            return (
                *(t + 1, h, c, choice, led, anchor, used, load, memory),
                *(ready, devices, moved, finish, out),
            )

        def groups(dtype: tf.DType, values: tf.Tensor) -> tf.TensorArray:
            """Of each group, whether it is decoded or not."""
            array = tf.TensorArray(dtype, self.num_groups, clear_after_read=False)
            return array.unstack(values)

        def steps(dtype: tf.DType, *shape: int) -> tf.TensorArray:
            return tf.TensorArray(dtype, length, element_shape=[None, *shape])

        state = tf.zeros([batch, hidden])
        none = tf.fill([self.num_groups, batch], -1)
        result = tf.while_loop(
            lambda t, *_: t < length,
            step,
            (
                *(0, state, state, tf.fill([batch], d), tf.fill([batch], -1), tf.fill([batch], d)),
                *(zeros, load, memory, zeros),
                groups(tf.int32, all_incumbents),
                groups(tf.int32, none),
                groups(tf.float32, tf.zeros([self.num_groups, batch])),
                (
                    steps(tf.int32),
                    steps(tf.float32),
                    steps(tf.bool, d),
                    steps(tf.float32, d, width),
                ),
            ),
            parallel_iterations=1,
        )
        devices, log_probs, usable, features = (array.stack() for array in result[-1])
        return Decoded(
            tf.transpose(devices),
            tf.transpose(log_probs),
            tf.transpose(usable, [1, 0, 2]),
            tf.transpose(features, [1, 0, 2, 3]),
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
