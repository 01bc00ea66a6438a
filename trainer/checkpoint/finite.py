"""Whether arrays hold only finite numbers: on the devices that hold them, or in host memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding

_BLOCK = 2**18
"""Elements looked at at a time, so that what is found of each takes no memory to speak of."""


def not_finite_on_devices(arrays: Mapping[str, jax.Array]) -> list[str]:
    """The names of arrays of accelerators with a number that is not finite. Waits for them.

    One program for all: of several with collectives, processes need not run the same first.
    """
    looked_at = {
        name: array
        for name, array in arrays.items()
        if jnp.issubdtype(array.dtype, jnp.inexact) and not is_in_host_memory(array)
    }
    if not looked_at:
        return []
    found = np.asarray(_look(next(iter(looked_at.values())).sharding)(list(looked_at.values())))
    return [name for name, is_finite in zip(looked_at, found, strict=True) if not is_finite]


def is_in_host_memory(array: jax.Array) -> bool:
    """Whether its devices are CPUs."""
    devices: Collection[jax.Device] = array.sharding.device_set
    return all(device.platform == "cpu" for device in devices)


@lru_cache(maxsize=8)
def _look(sharding: Sharding) -> jax.stages.Wrapped:
    """What looks at arrays on the devices of `sharding`, and tells all of them: bool [arrays]."""
    told = NamedSharding(sharding.mesh, PartitionSpec()) if isinstance(sharding, NamedSharding) else None
    return jax.jit(look, out_shardings=told)


def look(arrays: Sequence[jax.Array]) -> jax.Array:
    """Whether each is finite, bool [arrays]."""
    return jnp.stack([jnp.isfinite(array).all() for array in arrays])


def is_finite(data: np.ndarray) -> bool:
    """Whether an array in host memory holds only finite numbers; compiles no program."""
    if not jnp.issubdtype(data.dtype, jnp.inexact):
        return True
    flat = data.reshape(-1)
    return all(bool(np.isfinite(flat[at : at + _BLOCK]).all()) for at in range(0, flat.size, _BLOCK))
