"""What a device spec means to the runtime, and workers that run already."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from placer.devices import cluster_addresses, gpu_hosts, parse, save_topology
from placer.errors import PlacerError
from placer.graph.source import GraphSource
from placer.runtime import MeasurementProtocol, open_runner, resolve
from placer.runtime.backends import free_ports
from tests.runtime.graphs import split_chains

ROOT = Path(__file__).resolve().parents[2]


def test_specs_name_backends(tmp_path: Path) -> None:
    assert resolve("workers:2")[1].kind == "workers"
    assert resolve("local")[1].kind == "local"
    topology, backend = resolve("grpc://one:1,two:2")
    assert backend.addresses == ("one:1", "two:2")
    assert [d.host for d in topology.devices] == [0, 1]
    save_topology(topology, tmp_path / "there.pbtxt")
    assert resolve(str(tmp_path / "there.pbtxt"))[1] == backend
    renamed = dataclasses.replace(parse("workers:2"), name="mine")
    assert resolve(renamed)[1].kind == "workers"


def test_any_topology_can_be_emulated() -> None:
    topology, backend = resolve(gpu_hosts("k80", 2), emulate=True)
    assert backend.logical_cpus == topology.num_devices == 3
    assert backend.session_devices[2] == "/job:localhost/replica:0/task:0/device:CPU:2"


@pytest.mark.parametrize("spec", ["k80:4", "v100:2x2"])
def test_devices_that_are_not_here_cannot_be_run_on(spec: str) -> None:
    with pytest.raises(PlacerError, match="measure on"):
        resolve(spec)


@pytest.mark.parametrize("nested", [True, False])
def test_cluster_files(tmp_path: Path, nested: bool) -> None:
    cluster = {"worker": ["a:1", "b:2"]}
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"cluster": cluster} if nested else cluster))
    assert cluster_addresses(path) == ("a:1", "b:2")
    assert resolve(str(path))[1].kind == "grpc"
    topology = parse(str(path))
    assert topology.device_names[1] == "/job:worker/replica:0/task:1/device:CPU:0"
    # Parsed first, as `placer.optimize` does, it still says where its workers are.
    assert resolve(topology)[1].addresses == ("a:1", "b:2")


@pytest.mark.parametrize("text", ["", "[]", '{"cluster": {"ps": ["a:1"]}}', '{"worker": ["a"]}'])
def test_bad_cluster_files_are_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(text)
    with pytest.raises(PlacerError):
        cluster_addresses(path)


@pytest.fixture(scope="module")
def addresses() -> Iterator[list[str]]:
    """Two `placer worker` processes."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    ports = free_ports(2)
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "placer", "worker", "--port", str(port)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for port in ports
    ]
    for process in processes:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert re.match(r"worker on port \d+, loopback only, pinned to core \d+", line)
    yield [f"127.0.0.1:{port}" for port in ports]
    for process in processes:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_workers_that_run_already_are_used(addresses: list[str], chains: GraphSource) -> None:
    protocol = MeasurementProtocol(steps=2)
    with open_runner("grpc://" + ",".join(addresses), chains) as runner:
        measured = runner.measure(split_chains(chains), protocol, keep_step_stats=True)
    assert measured.failure is None
    assert measured.run_metadata is not None
    devices = {d.device for d in measured.run_metadata.step_stats.dev_stats if d.node_stats}
    assert devices == {f"/job:worker/replica:0/task:{i}/device:CPU:0" for i in range(2)}
    for address in addresses:
        port = int(address.split(":")[1])
        lines = Path("/proc/net/tcp6").read_text().splitlines()[1:]
        here = [x.split()[1] for x in lines if x.split()[1].endswith(f":{port:04X}")]
        assert here
        assert all(not a.startswith("0" * 32) for a in here)


def test_workers_that_do_not_run_are_reported(chains: GraphSource) -> None:
    from placer.runtime import RunnerSettings

    settings = RunnerSettings(build_timeout_seconds=3)
    with pytest.raises(PlacerError, match=r"grpc://127\.0\.0\.1"):
        open_runner(f"grpc://127.0.0.1:{free_ports(1)[0]}", chains, settings)


@pytest.mark.parametrize("folder", ["my projects", "a:b"])
def test_a_path_that_cannot_be_preloaded_is_refused(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from placer.runtime import worker

    library = Path(worker.loopback_library())
    (tmp_path / folder).mkdir()
    (tmp_path / folder / library.name).touch()
    monkeypatch.setattr(worker, "__file__", str(tmp_path / folder / "worker.py"))
    with pytest.raises(PlacerError, match="cannot be preloaded"):
        worker.loopback_library()


def test_a_process_without_the_library_is_noticed() -> None:
    from placer.runtime import worker

    with pytest.raises(PlacerError, match="has not preloaded"):
        worker.check_loopback()
