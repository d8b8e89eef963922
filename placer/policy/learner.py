"""Learner: samples from the policy and updates it, both as batched TensorFlow functions."""

from __future__ import annotations

import keras
import tensorflow as tf

from placer.policy.model import Decoded, PlacementPolicy, gumbel
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
        self.sample = tf.function(self._sample, autograph=False)
        self.update = tf.function(self._update, autograph=False)

    def _sample(self, incumbents: tf.Tensor, stay: tf.Tensor, seed: tf.Tensor) -> Decoded:
        """Samples B placements.

        Args:
          incumbents: int32[B, G] placements to change, rows of D for none.
          stay: float32[B], see PlacementPolicy.decode.
          seed: int32[2]; the samples depend on it and on the weights alone.
        """
        batch = tf.shape(incumbents)[0]
        noise = gumbel(seed, [self.policy.num_groups, batch, self.policy.num_devices])
        return self.policy.decode(self.policy.encode(), incumbents, stay, noise)

    def gradients(
        self,
        decoded: Decoded,
        incumbents: tf.Tensor,
        stay: tf.Tensor,
        advantages: tf.Tensor,
        imitate: tf.Tensor,
        entropy_weight: tf.Tensor,
    ) -> list[tf.Tensor]:
        """The gradient of the loss by policy.trainable_variables, not clipped.

        The loss is -1/B * sum over samples of advantage * log-probability (REINFORCE), or its
        clipped surrogate by steps (PPO, Schulman et al. 2017, equation 7), less the entropies.

        Args:
          decoded: B placements with the log-probabilities they were sampled with.
          incumbents, stay: as they were sampled with.
          advantages: float32[B].
          imitate: bool[B]; rows whose log-probability is raised without regard to how likely they
            were when sampled.
          entropy_weight: float32 scalar.
        """
        clip = self.settings.ppo_clip
        with tf.GradientTape() as tape:
            log_probs, entropy = self.policy.log_probs(
                self.policy.encode(), decoded, incumbents, stay
            )
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
        return tape.gradient(loss, self._variables(), unconnected_gradients="zero")

    def _update(
        self,
        decoded: Decoded,
        incumbents: tf.Tensor,
        stay: tf.Tensor,
        advantages: tf.Tensor,
        imitate: tf.Tensor,
        entropy_weight: tf.Tensor,
        learning_rate: tf.Tensor,
    ) -> tf.Tensor:
        """One step of Adam; arguments as `gradients`. Returns the gradient's norm, float32."""
        gradients = self.gradients(decoded, incumbents, stay, advantages, imitate, entropy_weight)
        gradients, norm = tf.clip_by_global_norm(gradients, self.settings.clip_norm)
        self.optimizer.learning_rate.assign(learning_rate)
        self.optimizer.apply(gradients)
        return norm

    def _variables(self) -> list[tf.Variable]:
        return [variable.value for variable in self.policy.trainable_variables]
