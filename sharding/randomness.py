"""Random bits that depend on what they are for, never on where they are computed.

A bit is a function of the key and of its element's logical indices, so every device makes just its own share and gets
what any other mesh would have got, padding or not.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry_2x32
from scipy.special import ndtri

from sharding import collectives
from sharding.layout import Dim, Layout

# Normal quantiles are stored at knots, as many in each halving of the probability, and are linear in between.
_SEGMENT_BITS = 9  # knots in a halving
_PLACE_BITS = 13  # steps from knot to knot; times the largest difference between two, 2**18.7, they fit into 32 bits
_FRACTION_BITS = 28  # of a quantile as a fixed-point number


def normal(name: str, layout: Layout, seed: jax.Array) -> jax.Array:
    """This device's shard at rest of standard normal values, float32, keyed by (seed, parameter name, logical indices).

    Padding is 0. Runs in a manual region over the mesh that `layout` was planned for.
    """
    key = jax.random.fold_in(jax.random.key(seed), zlib.crc32(name.encode()))
    bits = _bits(key, [_logical_indices(dim)[0] for dim in layout.dims], layout)
    return jnp.where(mask(layout), _bits_to_normal(bits), 0)


def mask(layout: Layout) -> jax.Array:
    """True where this device's shard at rest holds logical entries, False in its padding."""
    shape = layout.shard_shape
    inside = jnp.ones(shape, bool)
    for i, dim in enumerate(layout.dims):
        _, valid = _logical_indices(dim)
        inside &= valid.reshape([-1 if j == i else 1 for j in range(len(shape))])
    return inside


def keep_mask(key: jax.Array, samples_B: jax.Array, positions_s: jax.Array, features: int, rate: float) -> jax.Array:
    """Dropout's mask [B, s, features]: True with probability 1 - rate, keyed by (key, sample, position, feature)."""
    fold = jax.random.fold_in
    keys_Bs = jax.vmap(lambda sample: jax.vmap(lambda place: fold(fold(key, sample), place))(positions_s))(samples_B)
    bits = jax.vmap(jax.vmap(lambda k: jax.random.bits(k, (features,), "uint32")))(keys_Bs)
    return bits >= jnp.uint32(rate * 2**32)


def _logical_indices(dim: Dim) -> tuple[jax.Array, jax.Array]:
    """Of this device's entries along one dim: the logical index of each, and whether it is no padding."""
    in_block = collectives.place(dim.zero_axes) * dim.shard + jnp.arange(dim.shard)
    index = collectives.place(dim.model_axes) * dim.block + in_block
    if dim.order:
        index = jnp.asarray(dim.order, jnp.int32)[index]
        return index, index >= 0
    return index, (in_block < dim.block) & (index < dim.size)


def _bits(key: jax.Array, indices: Sequence[jax.Array], layout: Layout) -> jax.Array:
    """32 random bits for each combination of indices: Threefry of the counter (layer, place in the layer)."""
    layer, dims = jnp.uint32(0), layout.dims
    if layout.stacked:
        layer, indices, dims = indices[0], indices[1:], dims[1:]
    assert math.prod(dim.size for dim in dims) < 2**32, f"a layer of {layout.shape} has more entries than the counter"
    place = jnp.uint32(0)
    for index, dim in zip(indices, dims, strict=True):
        place = place[..., None] * jnp.uint32(dim.size) + index.astype(jnp.uint32)
    if layout.stacked:
        layer = layer.reshape(-1, *[1] * len(dims))
    counter = jnp.broadcast_arrays(layer.astype(jnp.uint32), place)
    high, low = (jnp.broadcast_to(half, layout.shard_shape).ravel() for half in counter)
    bits = threefry_2x32(jax.random.key_data(key), jnp.concatenate([high, low]))
    return bits[: high.size].reshape(layout.shard_shape)


def _bits_to_normal(bits: jax.Array) -> jax.Array:
    """The inverse normal distribution at the middle of one of 2**32 equal steps: symmetric, finite, never 0.

    Integers up to the last cast, which is exact or rounds once: compilers, and the vector and scalar halves of one
    loop, differ in the last bit of any function that is a sum of floating-point products.
    """
    negative = bits >> 31 == 0
    tail = 2 * jnp.where(negative, bits, ~bits) + 1  # 2**33 times the probability beyond the value: 1, 3, … 2**32 - 1
    zeros = jax.lax.clz(tail)
    mantissa = tail << zeros
    knot = ((31 - zeros) << _SEGMENT_BITS) + ((mantissa >> 31 - _SEGMENT_BITS) & (2**_SEGMENT_BITS - 1))
    place = (mantissa >> 31 - _SEGMENT_BITS - _PLACE_BITS) & (2**_PLACE_BITS - 1)
    knots = jnp.asarray(_normal_quantiles())
    far, near = knots[knot], knots[knot + 1]
    size = (far - ((far - near) * place >> _PLACE_BITS)).astype(jnp.int32)
    return jnp.where(negative, -size, size).astype(jnp.float32) * 2.0**-_FRACTION_BITS


@cache
def _normal_quantiles() -> np.ndarray:
    """-Φ⁻¹(p) as fixed-point uint32, at probabilities p that grow from 2**-33 to 1/2: about 6.3 to 0."""
    segments = 2**_SEGMENT_BITS
    knots = np.arange(32 * segments + 1)
    probabilities = np.ldexp(1 + knots % segments / segments, knots // segments - 33)
    return np.round(-ndtri(probabilities) * 2**_FRACTION_BITS).astype(np.uint32)
