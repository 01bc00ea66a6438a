"""How fast arrays travel between the host and one GPU: what an offload of weights or moments would be bound by."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from trainer.bench.speed import problem_of
from trainer.tables import make_table, wide_console

NUM_BYTES = 2**29
ROUNDS = 5


def check(device: jax.Device, dry: bool) -> list[str]:
    """Prints the rates; returns what failed, a line each."""
    size = NUM_BYTES // (2**9 if dry else 1)
    table = make_table(f"Copies of {size / 2**20:,.0f} MiB", ["from", "to"], ["GB/s"])
    wrong = []
    for source, target, make, copy in _copies(device, size):
        try:
            table.add_row(source, target, f"{size / _seconds(make, copy) / 1e9:.4g}")
        except Exception as error:
            wrong.append(f"{source} to {target}: {problem_of(error)}")
    wide_console().print(table)
    return wrong


Make = Callable[[], Any]
Copy = Callable[[Any], Any]


def _copies(device: jax.Device, size: int) -> Iterator[tuple[str, str, Make, Copy]]:
    """From where, to where, what makes an array to copy, and what copies it."""
    host = np.random.default_rng(0).integers(256, size=size, dtype=np.uint8)
    on_device = SingleDeviceSharding(device)
    pinned = SingleDeviceSharding(device, memory_kind="pinned_host")

    def put(where: SingleDeviceSharding) -> Copy:
        return lambda array: jax.device_put(array, where)

    yield "host", "GPU", lambda: host, put(on_device)
    yield "GPU", "host", lambda: jax.device_put(host, on_device), np.asarray
    yield "pinned host", "GPU", lambda: jax.device_put(host, pinned), put(on_device)
    yield "GPU", "pinned host", lambda: jax.device_put(host, on_device), put(pinned)


def _seconds(make: Make, copy: Copy) -> float:
    """The median; each round copies a new array, as JAX keeps the host's copy of one. The first does not count."""
    times = []
    for _ in range(ROUNDS + 1):
        array = jax.block_until_ready(make())
        start = time.perf_counter()
        jax.block_until_ready(copy(array))
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])
