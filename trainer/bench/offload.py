"""What a step with an offloaded optimizer does on the host, a part at a time: updates, copies, and a disk's sweeps.

All by what the trainer itself uses: its update, its exchange with the devices, its file. Rates are parameters a second,
as the slowest part sets the pace of a step. Knows nothing of models.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sharding.layout import Dim, Layout
from sharding.mesh import MeshConfig, make_mesh
from trainer.offload.buckets import cut
from trainer.offload.buffers import allocate
from trainer.offload.exchange import Exchange
from trainer.offload.nvme import Nvme
from trainer.offload.tiers import Memory, Tier
from trainer.offload.update import RULES, HostUpdate
from trainer.settings import OptimizerConfig

IN_MEMORY, ON_DISK = 2**24, 2**26
"""Parameters: far more than caches hold; with two moments, a file of 768 MiB."""
BUCKETS = 2**22, 2**20, 2**21
BUFFERS = 4, 3, 6
"""The defaults come first: a slow disk does not get to all."""
SECONDS, ROUNDS = 0.2, 3
"""Of a round, at least; the fastest round counts, as whatever else the machine does only slows one down."""
DISK_SECONDS = 25.0
"""After which nothing else is tried on a disk."""
AS_GOOD = 0.9
"""Of the best rate: from there on a setting counts as equal, and the one that takes less memory is to be preferred."""

Name = Literal["adamw", "lion", "sgd"]


class Setting(NamedTuple):
    """As `offload` has them in a config."""

    bucket: int
    buffers: int


class Copies(NamedTuple):
    """Parameters a second, between the host and one device."""

    down: float
    """Gradients, float32; infinite where the device's memory is the host's."""
    up: float
    """Weights, in the dtype that is computed with."""


def state_bytes(name: Name) -> int:
    """Of each parameter: float32 master and moments."""
    return 4 * (1 + len(RULES[name].moments))


def update_rate(name: Name, bucket: int) -> float:
    """Parameters a second in host memory, by all threads; the new weights are bfloat16."""
    with contextlib.closing(Memory(_records(IN_MEMORY, name, bucket))) as tier:
        return len(tier.sizes) * bucket / _seconds(_updates(tier, name, bucket))


def memory_rate() -> float:
    """Bytes a second, read and written together, at which all threads add one array to another."""
    threads = os.cpu_count() or 1
    source, target = (allocate(4 * IN_MEMORY).view(np.float32) for _ in range(2))
    source[:] = 1
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))

    def add(part: tuple[np.ndarray, np.ndarray]) -> None:
        total, more = part
        total += more

    with ThreadPoolExecutor(threads) as pool:
        return 3 * source.nbytes / _seconds(lambda: list(pool.map(add, parts)))


def copy_rates(device: jax.Device, dtype: np.dtype, bucket: int) -> Copies:
    """A bucket at a time, one after the other."""
    layout, on_cpu = Layout((Dim(2), Dim(IN_MEMORY // 2))), device.platform == "cpu"
    exchange = Exchange(make_mesh(MeshConfig(), [device]), {"w": layout}, sees_all=on_cpu)
    buckets, part = list(cut({"w": layout.shard_shape}, bucket)), np.ones(bucket, dtype)
    gradient, weights = (
        jax.device_put(jnp.ones(layout.stored_shape, kind), exchange.shardings["w"]) for kind in (jnp.float32, dtype)
    )
    held = [weights]

    def down() -> None:
        for each in buckets:
            exchange.down(gradient, each)

    def up() -> None:
        for each in buckets:
            held.append(exchange.up(held.pop(), each, [part[: each.size]]))

    return Copies(math.inf if on_cpu else IN_MEMORY / _seconds(down), IN_MEMORY / _seconds(up))


def check_folder(folder: Path) -> None:
    """Whether a disk can be measured there.

    Raises:
        ConfigError: there is no such folder, it cannot be written, has no room or no direct I/O.
    """
    Nvme(_file(folder), [ON_DISK * state_bytes("adamw")], buffers=0).close()


def disk_update_rates(folder: Path, say: Callable[[str], None]) -> dict[Setting, float]:
    """Parameters a second that are read, updated by AdamW and written, by setting: as many as there is time for.

    Raises:
        OSError: the disk cannot be read or written.
    """
    found: dict[Setting, float] = {}
    settings = [Setting(bucket, buffers) for bucket in BUCKETS for buffers in BUFFERS]
    end = time.perf_counter() + DISK_SECONDS
    for setting in settings * ROUNDS:
        if found and time.perf_counter() > end:
            break
        say(f"disk: buckets of {setting.bucket:,} through {setting.buffers} buffers")
        with _filled(folder, setting) as tier:
            rate = len(tier.sizes) * setting.bucket / _timed(_updates(tier, "adamw", setting.bucket))
        found[setting] = max(rate, found.get(setting, 0))
    return found


def disk_rates(folder: Path, setting: Setting) -> dict[str, float]:
    """Bytes a second that are read alone, written alone, and both together.

    Raises:
        OSError: the disk cannot be read or written.
    """
    with _filled(folder, setting) as tier:
        order, num_bytes = range(len(tier.sizes)), sum(tier.sizes)
        return {
            "read": num_bytes / _timed(lambda: list(tier.sweep(order, write=False))),
            "write": num_bytes / _timed(lambda: list(tier.sweep(order, read=False))),
            "both": 2 * num_bytes / _timed(lambda: list(tier.sweep(order))),
        }


def proposed(rates: Mapping[Setting, float]) -> Setting:
    """Of the settings that are as good as the best, that which takes the least memory.

    Args:
        rates: parameters a second of each.
    """
    enough = AS_GOOD * max(rates.values())
    return min((setting for setting, rate in rates.items() if rate >= enough), key=lambda s: (s.bucket * s.buffers, s))


def _updates(tier: Tier, name: Name, bucket: int) -> Callable[[], None]:
    """What visits every record and updates it."""
    update, rate, factor = HostUpdate(OptimizerConfig(name=name)), np.float32(1e-4), np.float32(0.5)
    gradients, weights = allocate(4 * IN_MEMORY).view(np.float32), np.zeros(bucket, jnp.bfloat16)
    gradients[:] = 1e-3

    def run() -> None:
        with contextlib.closing(tier.sweep(range(len(tier.sizes)))) as sweep:
            for number, record in sweep:
                master, *moments = record.view(np.float32).reshape(-1, bucket)
                gradient = gradients[number * bucket % IN_MEMORY :][:bucket]
                update(master, moments, gradient, weights, decays=True, count=9, rate=rate, factor=factor)

    return run


@contextlib.contextmanager
def _filled(folder: Path, setting: Setting) -> Iterator[Nvme]:
    """A file of AdamW's records that has been written once: before that it is faster to read, and slower to write."""
    sizes = _records(ON_DISK, "adamw", setting.bucket)
    with contextlib.closing(Nvme(_file(folder), sizes, buffers=setting.buffers)) as tier:
        list(tier.sweep(range(len(sizes)), read=False))
        yield tier


def _file(folder: Path) -> Path:
    return folder / f"meshwright-bench-{os.getpid()}.offload"


def _records(num_parameters: int, name: Name, bucket: int) -> list[int]:
    return [bucket * state_bytes(name)] * (num_parameters // bucket)


def _seconds(call: Callable[[], object]) -> float:
    """Of one call. The first, which may compile, does not count."""
    call()
    number = max(1, math.ceil(SECONDS / _timed(call)))
    return min(_timed(lambda: [call() for _ in range(number)]) / number for _ in range(ROUNDS))


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
