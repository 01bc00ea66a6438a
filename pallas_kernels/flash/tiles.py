"""Tiles for each kind of GPU: the largest, of a short list, that keep all of a program's numbers in its registers; of
as many scores, those that take the fewest instructions of tensor cores.

Found by compiling (kernel_search in benchmarks); proved with every option on by jax 0.10 and 0.12 (kernel_compile), and
as presets ask for them (kernel_presets). Nobody has timed them. An entry is queries x keys, warps, and stages of the
loop's pipeline.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.flash.spec import Tile, Tiles

TILES: dict[str, dict[int, Tiles]] = {
    "A100": {
        64: Tiles(Tile(128, 64, 8, 2), Tile(128, 64, 8, 2), Tile(32, 128, 8, 2)),
        128: Tiles(Tile(128, 64, 8, 2), Tile(64, 64, 8, 2), Tile(16, 128, 8, 2)),
        256: Tiles(Tile(64, 64, 8, 2), Tile(64, 64, 8, 2), Tile(64, 32, 8, 2)),
    },
    "H100": {
        64: Tiles(Tile(128, 64, 8, 2), Tile(128, 64, 8, 2), Tile(32, 128, 8, 2)),
        128: Tiles(Tile(128, 64, 8, 2), Tile(128, 64, 8, 2), Tile(16, 128, 8, 2)),
        256: Tiles(Tile(64, 64, 8, 2), Tile(64, 32, 8, 2), Tile(64, 32, 8, 2)),
    },
    "B200": {
        64: Tiles(Tile(128, 64, 8, 2), Tile(128, 64, 8, 2), Tile(64, 64, 8, 2)),
        128: Tiles(Tile(128, 64, 8, 2), Tile(128, 64, 8, 2), Tile(32, 64, 8, 2)),
        256: Tiles(Tile(64, 64, 8, 2), Tile(64, 32, 8, 2), Tile(64, 32, 8, 2)),
    },
}
"""For bfloat16 and float16, by the largest head dim."""
TILES["H200"] = TILES["H100"]
OTHERS: dict[int, Tiles] = {
    64: Tiles(Tile(128, 64, 8, 2), Tile(128, 64, 8, 2), Tile(32, 128, 8, 2)),
    128: Tiles(Tile(64, 64, 8, 2), Tile(64, 64, 8, 2), Tile(32, 64, 8, 2)),
    256: Tiles(Tile(32, 32, 4, 2), Tile(32, 32, 8, 2), Tile(32, 32, 8, 2)),
}
"""On GPUs that TILES does not name: compiled for those with the least shared memory, 99 KiB."""
FLOAT32: dict[int, Tiles] = {
    64: Tiles(Tile(32, 32, 8, 2), Tile(32, 32, 8, 2), Tile(32, 16, 4, 2)),
    128: Tiles(Tile(16, 16, 8, 2), Tile(32, 32, 8, 2), Tile(32, 32, 8, 2)),
    256: Tiles(Tile(16, 16, 8, 2), Tile(16, 32, 4, 2), Tile(16, 16, 4, 2)),
}
"""On every GPU. It is multiplied exactly, without tensor cores, with whole rows in registers: for tests, not for
speed."""


def tiles_for(gpu: str, head_dim: int, dtype: DTypeLike) -> Tiles:
    """Tiles of the three kernels.

    Args:
        gpu: what `jax.Device.device_kind` says, as "NVIDIA H100 80GB HBM3"; only the part that TILES has counts. Any
            other name gets what fits on every GPU.

    Raises:
        ValueError: `head_dim` is more than 256; use the reference.
    """
    name = next((name for name in TILES if name in gpu.upper()), None)
    table = FLOAT32 if jnp.dtype(dtype).itemsize > 2 else OTHERS if name is None else TILES[name]
    for largest, tiles in table.items():
        if head_dim <= largest:
            return tiles
    raise ValueError(
        f"flash attention has tiles for head dims of up to {max(table)}, not {head_dim}: use the reference"
    )
