"""Random simulator inputs for tests."""

from __future__ import annotations

import numpy as np

from placer.simulator import SimulatorInputs


def random_inputs(
    rng: np.random.Generator,
    *,
    max_ops: int = 30,
    max_devices: int = 4,
    grid: bool | None = None,
) -> SimulatorInputs:
    """A small graph with everything in it.

    `grid` draws times from a few round numbers, so that many events fall on the same moment.
    """
    n = int(rng.integers(1, max_ops + 1))
    d = int(rng.integers(1, max_devices + 1))
    k = int(rng.integers(1, d + 1))
    on_grid = bool(rng.random() < 0.5) if grid is None else grid

    def seconds(*shape: int) -> np.ndarray:
        if on_grid:
            return rng.integers(0, 4, shape) * 0.5
        return rng.random(shape) * rng.choice([0.0, 1.0, 1.0, 3.0], shape)

    counts = rng.choice([0, 1, 1, 1, 2, 3], n)
    out_ptr = np.concatenate([[0], np.cumsum(counts)])
    t = int(out_ptr[-1])
    # A hidden order keeps the graph acyclic while indices are shuffled.
    rank = rng.permutation(n)
    producer = np.repeat(np.arange(n), counts)
    in_lists = []
    for i in range(n):
        before = np.flatnonzero(rank[producer] < rank[i])
        size = int(rng.integers(0, 4)) if before.size else 0
        in_lists.append(rng.choice(before, size) if size else np.zeros(0, np.int64))
    in_ptr = np.concatenate([[0], np.cumsum([len(x) for x in in_lists])])
    in_tensor = np.concatenate(in_lists) if in_lists else np.zeros(0)
    controls = rng.integers(0, n, (int(rng.integers(0, n + 1)), 2))
    controls = controls[rank[controls[:, 0]] < rank[controls[:, 1]]]
    alias = np.full(t, -1)
    for x in range(t):
        inputs = len(in_lists[producer[x]])
        if inputs and rng.random() < 0.3:
            alias[x] = rng.integers(0, inputs)
    sizes = rng.integers(0, 6, t) * rng.choice([0, 1, 10], t)
    cpu = rng.random() < 0.4
    pairs = [rng.random((d, d)) < 0.5 if cpu else np.zeros((d, d)) for _ in range(4)]
    style = rng.integers(0, 5)
    channels = np.full((d, d, 2), -1)
    if style == 1:  # one outgoing bus a device
        channels[:, :, 0] = np.arange(d)[:, None]
    elif style == 2:  # egress and ingress
        channels[:, :, 0] = np.arange(d)[:, None]
        channels[:, :, 1] = d + np.arange(d)[None, :]
    elif style == 3:  # any
        channels = rng.integers(-1, 4, (d, d, 2)) * 7
        channels[channels < 0] = -1
    elif style == 4:  # a channel a pair
        channels[:, :, 1] = np.arange(d * d).reshape(d, d)
    concurrency = rng.choice([1, 1, 1, 2, 3], d)
    return SimulatorInputs(
        executed=rng.random(n) < rng.choice([1.0, 0.8]),
        op_seconds=seconds(k, n),
        launch_seconds=seconds(d) * 0.5,
        persistent_bytes=rng.integers(0, 20, n) * (rng.random(n) < 0.3),
        temporary_bytes=rng.integers(0, 20, (k, n)) * (rng.random((k, n)) < 0.3),
        out_ptr=out_ptr,
        tensor_bytes=sizes,
        tensor_local_bytes=np.where(rng.random(t) < 0.2, 0, sizes),
        tensor_alias=alias,
        in_ptr=in_ptr,
        in_tensor=in_tensor.astype(np.int64),
        control_src=controls[:, 0],
        control_dst=controls[:, 1],
        device_class=np.concatenate([np.arange(k), rng.integers(0, k, d - k)]),
        memory_limit=rng.integers(0, 100, d),
        concurrency=concurrency,
        executor_threads=rng.integers(1, 4, d)
        * (concurrency == 1)
        * (rng.random(d) < rng.choice([0.0, 0.5, 1.0])),
        contention=rng.integers(0, 3, (d, d)) * rng.choice([0.0, 0.5, 0.1]),
        inline_op=rng.random(n) < 0.4,
        latency=seconds(d, d) * 0.5,
        seconds_per_byte=seconds(d, d) * 0.1,
        channels=channels,
        send_cpu_seconds=seconds(d, d) * pairs[0],
        send_cpu_seconds_per_byte=seconds(d, d) * 0.1 * pairs[1],
        recv_cpu_seconds=seconds(d, d) * pairs[2],
        recv_cpu_seconds_per_byte=seconds(d, d) * 0.1 * pairs[3],
    )
