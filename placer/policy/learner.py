"""Learner: samples from the policy and updates it, both as batched TensorFlow functions."""

from __future__ import annotations

import keras
import tensorflow as tf

from placer.policy.model import (
    DEVICE_FEATURES,
    Conditions,
    Decoded,
    Encoded,
    PlacementPolicy,
    gumbel,
)
from placer.policy.settings import PolicySettings


class Learner:
    """A policy with its optimizer.

    Attributes:
      policy: the model.
      optimizer: Adam; part of checkpoints.
    """

    def __init__(self, policy: PlacementPolicy, settings: PolicySettings) -> None:
        self.policy = policy
        self.settings = settings
        self.optimizer = keras.optimizers.Adam(settings.learning_rate)
        self.optimizer.build(policy.trainable_variables)
        # The encoder's steps are tiny, so XLA pays here: ten times faster. It cannot hand what the
        # backward pass needs to TensorFlow, so that reads the groups again.
        self._encode = tf.function(policy.encode, autograph=False, jit_compile=True)
        self._encoder_gradients = tf.function(
            self._gradients_through_encoder, autograph=False, jit_compile=True
        )
        # Traced once each, whatever the numbers of samples and of groups decoded.
        conditions, decoded = _signatures(policy, settings)
        scalar, row = tf.TensorSpec([], tf.float32), tf.TensorSpec([None], tf.float32)
        self.sample = tf.function(
            self._sample,
            input_signature=[conditions, tf.TensorSpec([2], tf.int32)],
            autograph=False,
        )
        self.update = tf.function(
            self._update,
            input_signature=[
                *(decoded, conditions, row, tf.TensorSpec([None], tf.bool), scalar, scalar),
            ],
            autograph=False,
        )

    def _sample(self, conditions: Conditions, seed: tf.Tensor) -> Decoded:
        """Samples B placements.

        Args:
          conditions: of each.
          seed: int32[2]; the samples depend on it, on the conditions and on the weights alone.
        """
        length, batch = tf.shape(conditions.order)[0], tf.shape(conditions.incumbents)[0]
        noise = gumbel(seed, [length, batch, self.policy.num_devices])
        return self.policy.decode(self._encode(), conditions, noise)

    def gradients(
        self,
        decoded: Decoded,
        conditions: Conditions,
        advantages: tf.Tensor,
        imitate: tf.Tensor,
        entropy_weight: tf.Tensor,
    ) -> list[tf.Tensor]:
        """The gradient of the loss by policy.trainable_variables, not clipped.

        The loss is -1/B * sum over samples of advantage * log-probability (REINFORCE), or its
        clipped surrogate by steps (PPO, Schulman et al. 2017, equation 7), less the entropies.

        Args:
          decoded: B placements with the log-probabilities they were sampled with.
          conditions: as they were sampled with.
          advantages: float32[B].
          imitate: bool[B]; rows whose log-probability is raised without regard to how likely they
            were when sampled.
          entropy_weight: float32 scalar.
        """
        clip = self.settings.ppo_clip
        encoded = self._encode()
        with tf.GradientTape() as tape:
            tape.watch(encoded)
            log_probs, entropy = self.policy.log_probs(encoded, decoded, conditions)
            gain = advantages[:, None]
            if clip > 0:
                old = tf.where(imitate[:, None], tf.stop_gradient(log_probs), decoded.log_probs)
                ratio = tf.exp(log_probs - old)
                clipped = tf.clip_by_value(ratio, 1.0 - clip, 1.0 + clip)
                surrogate = tf.minimum(ratio * gain, clipped * gain)
            else:
                surrogate = log_probs * gain
            total = tf.reduce_sum(surrogate + entropy_weight * entropy)
            loss = -total / tf.cast(tf.shape(advantages)[0], tf.float32)
        by_encoded, direct = tape.gradient(
            loss, (encoded, self._variables()), unconnected_gradients="zero"
        )
        through = self._encoder_gradients(by_encoded)
        return [one + other for one, other in zip(direct, through, strict=True)]

    def _gradients_through_encoder(self, by_encoded: Encoded) -> list[tf.Tensor]:
        """Gradients by the variables of what has the given gradients by the encoder's output."""
        with tf.GradientTape() as tape:
            encoded = self.policy.encode()
        return tape.gradient(
            encoded, self._variables(), output_gradients=by_encoded, unconnected_gradients="zero"
        )

    def _update(
        self,
        decoded: Decoded,
        conditions: Conditions,
        advantages: tf.Tensor,
        imitate: tf.Tensor,
        entropy_weight: tf.Tensor,
        learning_rate: tf.Tensor,
    ) -> tf.Tensor:
        """One step of Adam; arguments as `gradients`. Returns the gradient's norm, float32."""
        gradients = self.gradients(decoded, conditions, advantages, imitate, entropy_weight)
        gradients, norm = tf.clip_by_global_norm(gradients, self.settings.clip_norm)
        self.optimizer.learning_rate.assign(learning_rate)
        self.optimizer.apply(gradients)
        return norm

    def _variables(self) -> list[tf.Variable]:
        return [variable.value for variable in self.policy.trainable_variables]


def _signatures(policy: PlacementPolicy, settings: PolicySettings) -> tuple[Conditions, Decoded]:
    """Specifications of any number of samples of any number of decoded groups."""
    g, d = policy.num_groups, policy.num_devices
    width = len(DEVICE_FEATURES) if settings.device_features else 0
    conditions = Conditions(
        order=tf.TensorSpec([None], tf.int32),
        incumbents=tf.TensorSpec([None, g], tf.int32),
        stay=tf.TensorSpec([None], tf.float32),
        follow=tf.TensorSpec([None], tf.float32),
        focus=tf.TensorSpec([None], tf.int32),
        forced=tf.TensorSpec([None, None], tf.int32),
    )
    decoded = Decoded(
        devices=tf.TensorSpec([None, None], tf.int32),
        log_probs=tf.TensorSpec([None, None], tf.float32),
        usable=tf.TensorSpec([None, None, d], tf.bool),
        features=tf.TensorSpec([None, None, d, width], tf.float32),
    )
    return conditions, decoded
