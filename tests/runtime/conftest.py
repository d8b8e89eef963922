"""Runners that tests share; starting processes is most of what a test takes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from placer.graph.source import GraphSource
from placer.runtime import Runner, RunnerSettings, open_runner
from tests.runtime.graphs import two_chains


@pytest.fixture(scope="session")
def chains() -> GraphSource:
    return two_chains()


@pytest.fixture(scope="session")
def workers(chains: GraphSource) -> Iterator[Runner]:
    """Two workers; tests may harm them. Noise of the machine is not what they test."""
    settings = RunnerSettings(disturbance_ratio=3.0)
    with open_runner("workers:2", chains, settings) as runner:
        yield runner
