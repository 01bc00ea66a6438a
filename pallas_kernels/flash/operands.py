"""What the three kernels are given, and which part of it each program sees.

Whole rows are handed over, and kernels load blocks of them: a block that Pallas cuts itself would not be guarded at a
ragged edge. Every grid is (blocks of rows, heads, samples). `R` = H / G query heads share a key head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jax.experimental import pallas as pl

from pallas_kernels import plain, triton
from pallas_kernels.flash.live_tiles import live_tiles
from pallas_kernels.flash.spec import Arrays, Spec, Tile


@dataclass(frozen=True)
class Operand:
    """An array, or the type of a result, and the block of it that a program sees; dims of None one at a time."""

    array: Any
    block: tuple[int | None, ...]
    place: Callable[[Any, Any, Any], tuple[Any, ...]]
    """(block of rows, head, sample) -> index of the block."""

    @property
    def spec(self) -> pl.BlockSpec:
        return pl.BlockSpec(self.block, self.place)


class Operands(NamedTuple):
    """In a kernel, as `triton.Memory`."""

    table: Any
    """[4], of this block of rows."""
    offset: Any
    """[1]"""
    queries: Any
    """[S, K]; for gradients of keys [S, R, K]."""
    keys: Any
    """[T, K]"""
    values: Any
    query_ids: Any
    """[S], or None without segments."""
    key_ids: Any
    """[T]"""
    slopes: Any
    """[] or [R], or None without ALiBi."""
    d_out: Any = None
    """As the queries."""
    lse: Any = None
    """[S] or [R, S]"""
    delta: Any = None
    """Likewise."""


def of_block(table_BN4: Any) -> Operand:
    """The row of a table of live tiles; a table that is the same for the whole batch is there once."""
    alike = table_BN4.shape[0] == 1
    return Operand(table_BN4, (None, None, 4), lambda i, h, b: (0 if alike else b, i, 0))


def of_head(array_BNHK: Any, sharing: int = 1) -> Operand:
    """All rows of a head; of one of the array's heads for `sharing` of the grid's."""
    _, rows, _, size = array_BNHK.shape
    return Operand(array_BNHK, (None, rows, None, size), lambda i, h, b: (b, 0, h // sharing, 0))


def of_group(array_BNHK: Any, size: int) -> Operand:
    """All rows of the `size` heads that share a key head."""
    _, rows, _, dim = array_BNHK.shape
    return Operand(array_BNHK, (None, rows, size, dim), lambda i, g, b: (b, 0, g, 0))


def per_query(array_BHS: Any, size: int | None = None) -> Operand:
    """A number for each query, of a head or of the `size` heads that share a key head."""
    return Operand(array_BHS, (None, size, array_BHS.shape[-1]), lambda i, h, b: (b, h, 0))


def per_head(array_H: Any, size: int | None = None) -> Operand | None:
    """A head's number, or those of the `size` heads that share a key head."""
    return None if array_H is None else Operand(array_H, (size,), lambda i, h, b: (h,))


def of_sample(ids_BN: Any) -> Operand | None:
    return None if ids_BN is None else Operand(ids_BN, (None, ids_BN.shape[1]), lambda i, h, b: (b, 0))


def of_all(array_N: Any) -> Operand:
    return Operand(array_N, array_N.shape, lambda i, h, b: (0,))


def along_keys(spec: Spec, tile: Tile, arrays: Arrays, **gradients: Operand) -> Operands:
    """For a kernel that takes a block of the queries of one head along their keys."""
    q, k = arrays.queries, arrays.keys
    sharing = q.shape[2] // k.shape[2]
    query_ids, key_ids = arrays.segments or (None, None)
    return Operands(
        table=of_block(live_tiles(spec, tile, q.shape[1], k.shape[1], arrays.offset, arrays.segments)),
        offset=of_all(arrays.offset[None]),
        queries=of_head(q),
        keys=of_head(k, sharing),
        values=of_head(arrays.values, sharing),
        query_ids=of_sample(query_ids),
        key_ids=of_sample(key_ids),
        slopes=per_head(arrays.slopes),
        **gradients,
    )


def run(
    name: str,
    kernel: Callable[..., None],
    tile: Tile,
    grid: tuple[int, int, int],
    operands: Operands,
    results: Sequence[Operand],
    cost: pl.CostEstimate,
    interpret: bool,
) -> list[jax.Array]:
    """Runs `kernel(block of rows, operands, *results)` over the grid, arrays as `triton.Memory`.

    Inside of a manual region results differ over the mesh axes that the queries differ over.
    """
    axes = plain.varying(operands.queries.array)
    if interpret and axes:
        return plain.run(kernel, grid, operands, results, axes)
    manual: Any = jax.typeof(operands.queries.array).manual_axis_type
    types = [
        jax.ShapeDtypeStruct(result.array.shape, result.array.dtype, manual_axis_type=manual) for result in results
    ]

    def with_memory(*refs: Any) -> None:
        kernel(pl.program_id(0), *jax.tree.map(triton.Memory, refs))

    call = pl.pallas_call(
        with_memory,
        out_shape=types,
        grid=grid,
        in_specs=[jax.tree.map(lambda operand: operand.spec, operands)],
        out_specs=[result.spec for result in results],
        compiler_params=triton.compiler_params(tile.warps, tile.stages),
        cost_estimate=cost,
        interpret=interpret,
        name=name,
    )
    return call(jax.tree.map(lambda operand: operand.array, operands))
