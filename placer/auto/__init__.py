"""The default search: seeds, policy, and annealed walks from groups down to single ops."""

from placer.auto.auto import AutoParameters, run_auto

__all__ = ["AutoParameters", "run_auto"]
