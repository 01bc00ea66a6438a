"""Whether devices that should hold the same bits do: fingerprints of what each holds, compared along each axis.

An array is the same on all devices along every axis that it is not sharded over. Faulty memory, a faulty link or a
missing sum makes that untrue without a word, and training goes on with several models in one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from sharding import collectives
from sharding.mesh import AXES


def fingerprint(x: jax.Array) -> jax.Array:
    """uint32: another one if any one element has another bit, and in all but one of 2**32 cases if several have.

    The sum of a bijection of each element's bits and its place (the finaliser of MurmurHash3, Austin Appleby).
    """
    bits = _bits(x).ravel()
    place = jax.lax.iota(jnp.uint32, bits.size) * jnp.uint32(0x9E3779B9)
    return jnp.sum(_mix(bits ^ _mix(place)), dtype=jnp.uint32)


def axes_of_replicas(spec: PartitionSpec, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """The axes along which an array laid out so is there more than once, on a mesh with these axis sizes."""
    cut = {axis for entry in spec for axis in ((entry,) if isinstance(entry, str) else entry or ())}
    return tuple(axis for axis in AXES if mesh[axis] > 1 and axis not in cut)


def compare(arrays: Sequence[jax.Array], axes: Sequence[Sequence[str]]) -> tuple[jax.Array, jax.Array]:
    """On one device's blocks: where arrays differ that should be the same along `axes`, one list of axes for each.

    Returns:
        bool [AXES, arrays], the same on all devices: whether any two along this axis differ.
        uint32 [1, arrays]: this device's fingerprints.
    """
    prints = jnp.stack([collectives.varying(fingerprint(x), AXES) for x in arrays])
    rows = []
    for axis in AXES:
        is_compared = jnp.array([axis in of_array for of_array in axes])
        # The largest of all, and the smallest: that whose complement is the largest.
        largest, others = jnp.split(collectives.all_max(jnp.concatenate([prints, ~prints]), [axis]), 2)
        rows.append(is_compared & (largest != ~others))
    differ = collectives.all_max(jnp.stack(rows).astype(jnp.int32), AXES)
    return differ > 0, prints[None]


def _bits(x: jax.Array) -> jax.Array:
    if x.dtype == jnp.bool:
        return x.astype(jnp.uint32)
    whole = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[x.dtype.itemsize]
    return jax.lax.bitcast_convert_type(x, whole).astype(jnp.uint32)


def _mix(x: jax.Array) -> jax.Array:
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
