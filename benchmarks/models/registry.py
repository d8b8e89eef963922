"""The models by name, their sizes, and how one is built."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import tensorflow as tf

from benchmarks.models.dlrm import dlrm
from benchmarks.models.gnmt import gnmt
from benchmarks.models.inception import inception_v3
from benchmarks.models.nmt import nmt
from benchmarks.models.resnet import resnet50
from benchmarks.models.rnnlm import rnnlm
from benchmarks.models.training import TrainingGraph, TrainingOptions
from benchmarks.models.transformer import transformer
from placer.errors import PlacerError

Parameter = int | float | bool | str


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """A family of training graphs.

    Attributes:
      name: key in the registry.
      title: name for tables.
      forward: adds the forward pass to a `TrainingGraph` and returns the scalar loss; its
        keyword-only arguments are the model's parameters.
      sizes: parameters by name of the size; `paper`, `small` (two cores, seconds a step at
        most) and `tiny` (tests) always exist.
    """

    name: str
    title: str
    forward: Callable[..., tf.Tensor]
    sizes: Mapping[str, Mapping[str, Parameter]]

    def parameters(self) -> dict[str, type]:
        """Every parameter that `build` takes for this model, and its type."""
        own = {
            parameter.name: parameter.annotation
            for parameter in inspect.signature(self.forward).parameters.values()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        }
        shared: dict[str, Any] = {f.name: f.type for f in dataclasses.fields(TrainingOptions)}
        return own | shared

    def resolve(self, size: str, overrides: Mapping[str, Parameter]) -> dict[str, Parameter]:
        """The parameters of `size` with `overrides`, checked.

        Raises:
          PlacerError: unknown size or parameter, or a value of the wrong type or range.
        """
        if size not in self.sizes:
            raise PlacerError(
                f"model {self.name} has no size {size!r}: choose one of {', '.join(self.sizes)}"
            )
        known = self.parameters()
        for name, value in overrides.items():
            if name not in known:
                raise PlacerError(
                    f"model {self.name} has no parameter {name!r}: "
                    f"choose among {', '.join(sorted(known))}"
                )
            _check_value(self.name, name, known[name], value)
        return dict(self.sizes[size]) | dict(overrides)


def _check_value(model: str, name: str, kind: type, value: Parameter) -> None:
    allowed = (int, float) if kind is float else (kind,)
    if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
        raise PlacerError(
            f"model {model}, parameter {name}={value!r}: give a value of type {kind.__name__}"
        )
    if kind in (int, float) and name != "seed" and not value > 0:  # type: ignore[operator]
        raise PlacerError(f"model {model}, parameter {name}={value!r}: must be positive")


def _spec(
    name: str,
    title: str,
    forward: Callable[..., tf.Tensor],
    paper: dict[str, Parameter],
    small: dict[str, Parameter],
    tiny: dict[str, Parameter],
) -> ModelSpec:
    """Sizes `small` and `tiny` are given as changes to `paper`."""
    sizes = {"paper": paper, "small": paper | small, "tiny": paper | tiny}
    frozen = {size: MappingProxyType(values) for size, values in sizes.items()}
    return ModelSpec(name, title, forward, MappingProxyType(frozen))


_SPECS = (
    _spec(
        "inception_v3",
        "Inception-V3",
        inception_v3,
        paper={
            "batch": 32,
            "image": 299,
            "classes": 1000,
            "optimizer": "rmsprop",
            "learning_rate": 0.045,
        },
        small={"batch": 4, "learning_rate": 0.005},
        tiny={"batch": 2, "image": 75, "classes": 10, "width": 0.125},
    ),
    _spec(
        "rnnlm",
        "RNNLM",
        rnnlm,
        paper={"batch": 64, "layers": 2, "units": 2048, "steps": 40, "vocabulary": 10000},
        small={"batch": 32, "units": 1024, "steps": 10},
        tiny={"batch": 4, "units": 16, "steps": 3, "vocabulary": 50},
    ),
    _spec(
        "nmt",
        "NMT",
        nmt,
        paper={"batch": 64, "layers": 2, "units": 1024, "steps": 30, "vocabulary": 30000},
        small={"batch": 32, "units": 512, "steps": 10},
        tiny={"batch": 4, "units": 16, "steps": 3, "vocabulary": 50},
    ),
    _spec(
        "gnmt",
        "GNMT",
        gnmt,
        # One AddN a weight would keep 60 gradients of 50 MB for each of 17 layers alive at once.
        paper={
            "batch": 128,
            "layers": 8,
            "units": 1024,
            "steps": 60,
            "vocabulary": 32000,
            "aggregation": "pairwise",
        },
        small={"batch": 16, "units": 256, "steps": 8, "vocabulary": 8000},
        tiny={"batch": 4, "layers": 3, "units": 16, "steps": 3, "vocabulary": 50},
    ),
    _spec(
        "transformer",
        "Transformer",
        transformer,
        paper={
            "batch": 64,
            "layers": 6,
            "units": 512,
            "heads": 8,
            "feed_forward": 2048,
            "steps": 64,
            "vocabulary": 32000,
        },
        small={"batch": 8, "layers": 3, "units": 256, "feed_forward": 1024, "steps": 32},
        tiny={
            "batch": 2,
            "layers": 1,
            "units": 16,
            "heads": 2,
            "feed_forward": 32,
            "steps": 4,
            "vocabulary": 50,
        },
    ),
    _spec(
        "resnet50",
        "ResNet-50",
        resnet50,
        paper={
            "batch": 32,
            "image": 224,
            "classes": 1000,
            "optimizer": "momentum",
            "learning_rate": 0.0125,
        },
        small={"batch": 4, "learning_rate": 0.001},
        tiny={"batch": 2, "image": 32, "classes": 10, "width": 0.125},
    ),
    _spec(
        "dlrm",
        "DLRM",
        dlrm,
        paper={
            "batch": 2048,
            "tables": 26,
            "rows": 1000000,
            "lookups": 10,
            "dimension": 64,
            "reals": 13,
            "hidden": 512,
            "optimizer": "adagrad",
            "learning_rate": 0.01,
        },
        small={"batch": 512, "rows": 50000, "dimension": 32},
        tiny={"batch": 8, "tables": 3, "rows": 50, "lookups": 2, "dimension": 4, "hidden": 8},
    ),
)
MODELS: dict[str, ModelSpec] = {spec.name: spec for spec in _SPECS}


def build(name: str, size: str = "paper", **overrides: Parameter) -> tf.compat.v1.MetaGraphDef:
    """Builds a training graph; the same arguments give the same graph.

    Args:
      name: key of `MODELS`.
      size: `paper`, `small` or `tiny`.
      **overrides: parameters of the model or of `TrainingOptions`, e.g. `batch=16`.

    Returns:
      a MetaGraphDef laid out as `benchmarks.models.training` says.

    Raises:
      PlacerError: unknown model, size or parameter, or a bad value.
    """
    if name not in MODELS:
        raise PlacerError(f"no model {name!r}: choose one of {', '.join(sorted(MODELS))}")
    spec = MODELS[name]
    values = spec.resolve(size, overrides)
    shared = {field.name for field in dataclasses.fields(TrainingOptions)}
    options: dict[str, Any] = {key: value for key, value in values.items() if key in shared}
    own = {key: value for key, value in values.items() if key not in shared}
    with TrainingGraph(TrainingOptions(**options)).building() as graph:
        return graph.finish(spec.forward(graph, **own))
