"""Which devices a run uses, here and in other processes, and how host rows become global arrays on them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from models.inputs import Batch
from sharding.mesh import MeshConfig
from trainer.errors import ConfigError
from trainer.paths import local
from trainer.processes.membership import current, join_others

Rows = Callable[[int, int], dict[str, np.ndarray]]


def find_devices(config: MeshConfig) -> Sequence[jax.Device]:
    """All that JAX finds, those of other processes too; virtual ones are made where the config asks for them.

    Raises:
        ConfigError: JAX finds none, or the environment tells of other processes by half.
        OSError: the other processes did not come.
    """
    join_others()
    return _all_devices() if config.virtual_devices is None else _virtual_devices(config.virtual_devices)


def use_compile_cache(folder: str | None) -> None:
    """Keeps XLA's programs in `folder` between runs, unless the environment already names one."""
    if folder is not None and not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", local(folder))


def put_batch(mesh: Mesh, specs: Batch, size: int, rows: Rows) -> Batch:
    """A global batch of `size` sequences; each process reads only the rows that its devices hold.

    `rows(low, high)` gives them as numpy arrays by the names of Batch.
    """
    spec: PartitionSpec = specs.tokens  # type: ignore[assignment]
    sharding = NamedSharding(mesh, spec)
    spans = [_span(index, size) for index in sharding.addressable_devices_indices_map((size,)).values()]
    low, high = min(begin for begin, _ in spans), max(end for _, end in spans)
    host = rows(low, high)

    def put(array: np.ndarray) -> jax.Array:
        def shard(index: tuple[slice, ...] | None) -> np.ndarray:
            begin, end = _span(index, size)
            return array[begin - low : end - low]

        return jax.make_array_from_callback((size, *array.shape[1:]), sharding, shard)

    return Batch(*(put(host[name]) for name in Batch._fields))


def _span(index: tuple[slice, ...] | None, size: int) -> tuple[int, int]:
    """The rows of one device: begin and end."""
    return index[0].indices(size)[:2] if index else (0, size)


def _all_devices() -> list[jax.Device]:
    try:
        return jax.devices()
    except (RuntimeError, AssertionError) as error:  # the latter for a platform whose plugin is not installed
        platforms = os.environ.get("JAX_PLATFORMS") or "not set"
        reason = str(error) or "its plugin is not installed"
        raise ConfigError(
            f"JAX finds no devices ({reason}); see that JAX_PLATFORMS (now {platforms}) names what is there, "
            "and what `meshwright doctor` says"
        ) from error


def _virtual_devices(count: int) -> list[jax.Device]:
    """`count` virtual CPU devices, as many in each process; where JAX has started already there must be enough."""
    here = current()
    processes = 1 if here is None else here.place.processes
    if count % processes:
        raise ConfigError(
            f"mesh.virtual_devices={count} does not share out evenly among {processes} processes; use a multiple of it"
        )
    with contextlib.suppress(RuntimeError):  # JAX is running: what there is, is all there will be
        jax.config.update("jax_num_cpu_devices", count // processes)
        jax.config.update("jax_platforms", "cpu")
    devices = jax.devices("cpu")
    if len(devices) < count:
        raise ConfigError(
            f"mesh.virtual_devices={count}, but JAX has already started with {len(devices)} on the CPU; "
            f"train before anything else uses JAX, or set jax.config.update('jax_num_cpu_devices', {count}) first"
        )
    return devices[:count]
