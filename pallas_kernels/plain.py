"""Runs a kernel on plain arrays, one program after the other: slow, and possible where Pallas' interpreter is not.

Inside of a manual region that checks over which mesh axes values differ, the interpreter's own steps do not pass. Here
every step is an ordinary one of JAX.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.triton import Memory, Span


class PlainMemory(Memory):
    """A block of an array."""

    def __init__(self, array: jax.Array) -> None:
        self.array = array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def zeros(self, *shape: int) -> jax.Array:
        return _varied(jnp.zeros(shape, jnp.float32), varying(self.array))

    def number(self, *place: Any) -> jax.Array:
        return self.array[place]

    def load(self, *index: Any) -> jax.Array:
        return self.array.at[_places(index)].get(mode="fill", fill_value=0)

    def store(self, value: jax.Array, *index: Any) -> None:
        self.array = self.array.at[_places(index)].set(value.astype(self.array.dtype), mode="drop")


def varying(array: Any) -> frozenset[str]:
    """The mesh axes that an array differs over, inside of a manual region."""
    return jax.typeof(array).manual_axis_type.varying


def run(
    kernel: Callable[..., None], grid: Sequence[int], operands: Any, results: Sequence[Any], axes: Iterable[str]
) -> list[jax.Array]:
    """Runs `kernel(program's place, operands, *results)` for the whole grid; see `pallas_kernels.flash.operands.run`.

    The results differ over the mesh axes `axes`.
    """
    made = [_varied(jnp.zeros(result.array.shape, result.array.dtype), axes) for result in results]

    def program(number: jax.Array, made: list[jax.Array]) -> list[jax.Array]:
        place = jnp.unravel_index(number, tuple(grid))
        memories = [PlainMemory(_block(result, array, place)) for result, array in zip(results, made, strict=True)]
        kernel(place[0], jax.tree.map(lambda one: PlainMemory(_block(one, one.array, place)), operands), *memories)
        return [
            lax.dynamic_update_slice(array, memory.array.reshape(_sizes(result)), _starts(result, place))
            for result, array, memory in zip(results, made, memories, strict=True)
        ]

    return lax.fori_loop(0, math.prod(grid), program, made)


def _varied(array: jax.Array, axes: Iterable[str]) -> jax.Array:
    """As an array that differs over mesh axes."""
    return lax.pcast(array, tuple(axes), to="varying") if axes else array


def _block(operand: Any, array: jax.Array, place: Sequence[Any]) -> jax.Array:
    block = lax.dynamic_slice(array, _starts(operand, place), _sizes(operand))
    return block.reshape([size for size in operand.block if size is not None])


def _sizes(operand: Any) -> list[int]:
    return [size or 1 for size in operand.block]


def _starts(operand: Any, place: Sequence[Any]) -> list[Any]:
    return [index * size for index, size in zip(operand.place(*place), _sizes(operand), strict=True)]


def _places(index: Sequence[Any]) -> tuple[Any, ...]:
    """The indices of a block's elements, that broadcast to its shape."""
    rank, dim, places = sum(isinstance(part, Span) for part in index), 0, []
    for part in index:
        if isinstance(part, Span):
            shape = [part.size if d == dim else 1 for d in range(rank)]
            part, dim = part.start + lax.broadcasted_iota(jnp.int32, shape, dim), dim + 1
        places.append(part)
    return tuple(places)
