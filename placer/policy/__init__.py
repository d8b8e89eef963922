"""The policy: a Keras sequence-to-sequence model that places groups, and its training."""

from placer.policy.settings import PRESETS, PolicySettings
from placer.policy.train import train

__all__ = ["PRESETS", "PolicySettings", "train"]
