"""The named collectives, written so that a program reads the same on one device and on thousands.

Every function takes mesh axis names and leaves out those of size 1, or not bound at all: on one device nothing is
emitted. All of them run inside `jax.shard_map(..., check_vma=True)`, whose types record over which axes a value
*varies*. A sum over an axis that the value does not vary over would count it once a device: it is an error here.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax


def axis_size(axis: str) -> int:
    """Devices along `axis`; 1 outside of a manual region."""
    try:
        return lax.axis_size(axis)
    except NameError:
        return 1


def live(axes: Sequence[str]) -> tuple[str, ...]:
    """Those of `axes` that have more than one device."""
    return tuple(axis for axis in axes if axis_size(axis) > 1)


def axis_index(axis: str) -> jax.Array | int:
    """This device's place along `axis`."""
    return lax.axis_index(axis) if live([axis]) else 0


def place(axes: Sequence[str]) -> jax.Array | int:
    """This device's place along `axes` together, the first the slowest."""
    index: jax.Array | int = 0
    for axis in axes:
        index = index * axis_size(axis) + axis_index(axis)
    return index


def varying_axes(x: jax.Array | jax.ShapeDtypeStruct) -> frozenset[str]:
    """The axes over which devices may hold different values of `x`, by its type."""
    return jax.typeof(x).mat.varying


def varying(x: jax.Array, axes: Sequence[str]) -> jax.Array:
    """`x`, typed as varying over `axes`: the gradient of each device's use of it then stays on that device."""
    missing = tuple(axis for axis in live(axes) if axis not in varying_axes(x))
    return lax.pcast(x, missing, to="varying") if missing else x


def all_sum(x: jax.Array, axes: Sequence[str]) -> jax.Array:
    """All-reduce: the sum over `axes`, the same on all of them."""
    return lax.psum(_distinct(x, axes), axes) if (axes := live(axes)) else x


def all_max(x: jax.Array, axes: Sequence[str]) -> jax.Array:
    """All-reduce: the maximum over `axes`. It has no gradient."""
    return lax.pmax(x, axes) if (axes := live(axes)) else x


def gather(x: jax.Array, axes: Sequence[str], dim: int) -> jax.Array:
    """All-gather: the blocks of all devices along `axes`, joined along `dim`. Its gradient is `scatter_sum`."""
    return lax.all_gather(x, axes, axis=dim, tiled=True) if (axes := live(axes)) else x


def scatter_sum(x: jax.Array, axes: Sequence[str], dim: int) -> jax.Array:
    """Reduce-scatter: this device's block along `dim` of the sum over `axes`. Its gradient is `gather`."""
    if not (axes := live(axes)):
        return x
    return lax.psum_scatter(_distinct(x, axes), axes, scatter_dimension=dim, tiled=True)


def shift(x: jax.Array, axis: str, by: int, around: bool) -> jax.Array:
    """What the device `by` places before this one along `axis` holds; zeros where there is none and not `around`."""
    size = axis_size(axis)
    pairs = [(i, (i + by) % size) for i in range(size) if around or 0 <= i + by < size]
    return lax.ppermute(x, axis, pairs)


def is_there(x: jax.Array) -> jax.Array:
    """True, but only once `x` is computed: what is made with it waits for that.

    XLA on CPU does not order what several devices exchange within loops and branches against all else that they do, and
    two of them may wait for each other.
    """
    bits = lax.bitcast_convert_type(x.ravel()[0].astype(jnp.float32), jnp.uint32)
    return (bits | 1) > 0


def _distinct(x: jax.Array, axes: Sequence[str]) -> jax.Array:
    """JAX itself would take a replicated value for equal parts of a sum, and count it once for every device."""
    same = [axis for axis in axes if axis not in varying_axes(x)]
    assert not same, f"the sum over {axes} would count a value {axis_size(same[0])} times that is one along {same}"
    return x
