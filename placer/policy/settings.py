"""PolicySettings: every hyperparameter of the policy and its training, and the two presets."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from placer.errors import PlacerError


@dataclasses.dataclass(frozen=True)
class PolicySettings:
    """Hyperparameters of the policy; the defaults are the preset `modern`.

    The preset `icml2017` is Mirhoseini et al., "Device Placement Optimization with Reinforcement
    Learning" (ICML 2017), section 3; what that paper leaves open (sizes, decay) is chosen here.

    Attributes:
      preset: name of the preset these settings began as, for reports.
      hidden: units of the encoder (both directions together), the decoder and the attention.
      type_units: units of the embedding of op types.
      features: what the encoder reads of a group: "shapes" (op types, padded output shapes,
        adjacency; the paper) or "costs" (op types, compute time, bytes, memory, depth, upward
        rank, allowed devices, neighbours).
      attention: "additive" (Bahdanau et al. 2015; the paper) or "dot" (scaled dot product).
      device_features: whether the decoder also scores every device by what placing the group
        there would do: traffic with neighbours, load, memory, estimated finish time.
      incumbents: whether samples decode a window of groups anew within a placement found before,
        the incumbent; else everything is decoded from nothing.
      window: groups in the largest such window.
      tolerance: after each batch the next incumbent is drawn from the batch and the last one, with
        odds of exp(reward / tolerance); this is the tolerance at first, 0 takes the best.
      final_tolerance: the tolerance when the budget is used up.
      fresh: share of the batches that are decoded from nothing although incumbents exist.
      warm_up: placements decoded from nothing before the first incumbents are used.
      levels: how many degrees of reluctance to change there are.
      fewest_changes: groups, beside one that must, that the most reluctant are to move.
      most_changes: share of the window that the least reluctant are to move.
      samples: placements sampled between two updates (K of the paper).
      update_samples: of these, how many an update learns from: the best and the worst.
      epochs: passes over the same samples; more than 1 needs `ppo_clip`.
      ppo_clip: clipping range of the probability ratio (Schulman et al. 2017); 0 for plain
        REINFORCE.
      reward: "sqrt" of the step time (the paper) or "log".
      baseline: "moving" (exponential moving average of rewards; the paper), "leave_one_out" (mean
        of the other samples of the same level), or "rank" (advantages by rank within the level
        alone).
      baseline_decay: decay of the moving average.
      normalize: divide advantages by their standard deviation.
      failing_seconds: step time that stands for a placement that does not fit; 0 for a penalty
        that grows with the bytes in excess.
      failing_updates: after so many updates only placements that ran are learnt from (paper);
        0 for never.
      learning_rate: of Adam.
      final_learning_rate: reached when the budget is used up.
      clip_norm: global norm that gradients are clipped to.
      squash: C of C * tanh(logits / temperature); 0 for plain logits.
      temperature: T of the same.
      entropy: weight of the entropy bonus at the start.
      final_entropy: its weight when the budget is used up.
      horizon: placements over which these schedules run where there is no budget.
      imitation: weight of the log-likelihood of the best placements found.
      elites: how many of the best placements are imitated.
      break_symmetry: number identical devices by first use.
      patience: stop after so many placements without a new best; 0 for never.
    """

    preset: str = "modern"
    hidden: int = 64
    type_units: int = 16
    features: str = "costs"
    attention: str = "dot"
    device_features: bool = True
    incumbents: bool = True
    window: int = 256
    tolerance: float = 0.05
    final_tolerance: float = 1e-4
    fresh: float = 0.05
    warm_up: int = 1024
    levels: int = 8
    fewest_changes: float = 0.3
    most_changes: float = 0.4
    samples: int = 128
    update_samples: int = 64
    epochs: int = 1
    ppo_clip: float = 0.2
    reward: str = "log"
    baseline: str = "leave_one_out"
    baseline_decay: float = 0.9
    normalize: bool = True
    failing_seconds: float = 0.0
    failing_updates: int = 0
    learning_rate: float = 4e-3
    final_learning_rate: float = 5e-4
    clip_norm: float = 1.0
    squash: float = 0.0
    temperature: float = 1.0
    entropy: float = 0.02
    final_entropy: float = 0.0
    horizon: int = 40_000
    imitation: float = 0.3
    elites: int = 8
    break_symmetry: bool = True
    patience: int = 0

    def __post_init__(self) -> None:
        choices = {
            "features": ("shapes", "costs"),
            "attention": ("additive", "dot"),
            "reward": ("sqrt", "log"),
            "baseline": ("moving", "leave_one_out", "rank"),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise PlacerError(
                    f"policy setting {name}={getattr(self, name)!r}: choose one of "
                    + ", ".join(known)
                )
        positive = ("hidden", "samples", "update_samples", "epochs", "type_units", "horizon")
        more = ("levels", "window", "fewest_changes", "learning_rate", "temperature")
        # What falls from one value to another does so by a factor.
        fall = ("final_tolerance", "final_learning_rate")
        for name in positive + more + fall:
            if not getattr(self, name) > 0:
                raise PlacerError(f"policy setting {name}={getattr(self, name)}: must be positive")
        if not self.tolerance >= 0:
            raise PlacerError(f"policy setting tolerance={self.tolerance}: must be at least 0")
        if self.hidden % 2 or self.hidden < 4:
            raise PlacerError(f"policy setting hidden={self.hidden}: must be even, 4 or more")
        if self.epochs > 1 and not self.ppo_clip > 0:
            raise PlacerError("policy setting epochs > 1 needs ppo_clip > 0")

    @classmethod
    def named(cls, preset: str, **overrides: Any) -> PolicySettings:
        """The settings of a preset, some of them replaced.

        Raises:
          PlacerError: no such preset or setting, or a value that is out of range.
        """
        if preset not in PRESETS:
            raise PlacerError(
                f"there is no policy preset {preset!r}; choose one of {', '.join(PRESETS)}"
            )
        known = {field.name for field in dataclasses.fields(cls)}
        for name in overrides:
            if name not in known:
                raise PlacerError(f"there is no policy setting {name!r}")
        return dataclasses.replace(PRESETS[preset], **overrides)

    @classmethod
    def from_options(cls, options: Mapping[str, Any] | Sequence[str] = ()) -> PolicySettings:
        """The settings that options ask for; the option `preset` says what they change.

        Args:
          options: {name: value} or "name=value" strings; values may be text.

        Raises:
          PlacerError: for an unknown name or a value of the wrong type or out of range.
        """
        pairs: dict[str, Any] = {}
        if isinstance(options, Mapping):
            pairs.update(options)
        else:
            for option in options:
                name, equals, value = option.partition("=")
                if not equals:
                    raise PlacerError(f"policy option {option!r}: write it as name=value")
                pairs[name.strip()] = value.strip()
        preset = str(pairs.pop("preset", "modern"))
        hints = typing.get_type_hints(cls)
        for name, value in pairs.items():
            if name not in hints:
                raise PlacerError(f"the policy has no option {name!r}; it has {', '.join(hints)}")
            pairs[name] = _convert(name, hints[name], value)
        return cls.named(preset, **pairs)


def _convert(name: str, kind: type, value: Any) -> Any:
    """`value` as a `kind`; PlacerError if it is not one."""
    if kind is bool and str(value).lower() in ("true", "yes", "1", "on"):
        return True
    if kind is bool and str(value).lower() in ("false", "no", "0", "off"):
        return False
    try:
        if kind is bool:
            raise ValueError
        converted = kind(value)
    except (TypeError, ValueError):
        raise PlacerError(
            f"policy option {name}={value}: give a value of type {kind.__name__}"
        ) from None
    if isinstance(converted, float) and not math.isfinite(converted):
        raise PlacerError(f"policy option {name}={value}: must be finite")
    return converted


PRESETS = MappingProxyType(
    {
        "modern": PolicySettings(),
        "icml2017": PolicySettings(
            preset="icml2017",
            features="shapes",
            attention="additive",
            device_features=False,
            incumbents=False,
            fresh=0.0,
            samples=16,
            update_samples=16,
            ppo_clip=0.0,
            reward="sqrt",
            baseline="moving",
            normalize=False,
            failing_seconds=100.0,
            failing_updates=5000,
            learning_rate=0.1,
            final_learning_rate=0.1,
            clip_norm=1.0,
            squash=5.0,
            temperature=10.0,
            entropy=0.0,
            final_entropy=0.0,
            imitation=0.0,
            levels=1,
            break_symmetry=False,
        ),
    }
)
