"""Methods: what --method names: auto, the policy, or one of the placers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from placer.auto import AutoParameters, run_auto
from placer.errors import PlacerError
from placer.placers import PlacerSpec, get
from placer.search import Search

AUTO = PlacerSpec(
    "auto",
    "seeds from the placers, then annealed walks over moves from groups down to single ops",
    "this project",
    AutoParameters,
    run_auto,
)


def get_method(
    name: str,
    options: Mapping[str, Any] | Sequence[str] = (),
    checkpoint_dir: str | None = None,
) -> Callable[[Search], None]:
    """The search that a method name and its options stand for.

    Raises:
      PlacerError: for an unknown name, option or value, or checkpoints of another method than the
        policy.
    """
    if name == "policy":
        from placer.policy import PolicySettings, train

        settings = PolicySettings.from_options(options)
        return lambda search: train(search, settings, checkpoint_dir)
    if checkpoint_dir is not None:
        raise PlacerError(f"method {name!r} keeps no checkpoints; --checkpoint_dir is for policy")
    spec = AUTO if name == "auto" else get(name)
    parameters = spec.make_parameters(options)
    return lambda search: spec.run(search, parameters)
