import dataclasses

import numpy as np
import pytest

from benchmarks.models import build
from placer import report
from placer.devices import parse
from placer.pipeline import prepare
from placer.simulator.build import build_simulator


@dataclasses.dataclass(frozen=True)
class Example:
    """A tiny NMT on two GPUs, encoder on the first and the rest on the second."""

    problem: object
    placement: np.ndarray
    layers: report.Layers
    trace: object


@pytest.fixture(scope="session")
def graph():
    return build("nmt", "tiny")


@pytest.fixture(scope="session")
def example(graph):
    problem = prepare(graph, None, parse("k80:2")).problem
    wishes = [1 if "encoder" in name else 2 for name in problem.graph.names]
    placement = problem.repair(np.array(wishes, np.int32))
    trace = build_simulator(problem).simulate(placement)
    return Example(problem, placement, report.find_layers(problem), trace)
