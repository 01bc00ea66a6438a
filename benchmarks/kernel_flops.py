"""Scores that the kernels of flash attention compute, against those that are seen: what a tile of both costs.

    python -m benchmarks.kernel_flops    exits with 1 where more is computed than is allowed

Executed is counted from the very table of live tiles that the kernels follow, with the tiles of `tiles_for`. Causal
attention at 8,192 tokens may compute 2 % more than what is seen. Packed documents may visit 2 % more tiles than hold
something: how much of these is seen depends on the documents.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.common import show
from pallas_kernels.flash.live_tiles import live_tiles
from pallas_kernels.flash.spec import Spec, Tile, Tiles
from pallas_kernels.flash.tiles import tiles_for

ALLOWED = 1.02


@dataclass(frozen=True)
class Work:
    """Of one head of one sample, in one kernel."""

    visited: int
    """Tiles that are computed."""
    masked: int
    """Those of them that are computed with a mask."""
    live: int
    """Tiles that hold anything that is seen."""
    executed: int
    """Scores of the visited tiles."""
    useful: int
    """Scores that are seen."""


def work(tile: Tile, length: int, window: int | None, ids: np.ndarray | None, by_keys: bool) -> Work:
    """Of causal attention of a sequence to itself.

    Args:
        ids: of its documents, int32 [S].
    """
    spec = Spec(1.0, True, window, None, Tiles(tile, tile, tile), False)
    segments = None if ids is None else (jnp.asarray(ids[None]), jnp.asarray(ids[None]))
    table = np.asarray(live_tiles(spec, tile, length, length, jnp.int32(0), segments, by_keys=by_keys))[0].astype(int)
    first, full_first, full_end, end = table.T
    visited, whole = int((end - first).sum()), int((full_end - full_first).sum())
    live, useful = seen(tile, length, window, ids)
    return Work(visited, visited - whole, live, visited * tile.queries * tile.keys, useful)


def seen(tile: Tile, length: int, window: int | None, ids: np.ndarray | None) -> tuple[int, int]:
    """How many tiles hold something that is seen, and how many scores are; a block of queries at a time."""
    place, live, useful = np.arange(length), 0, 0
    for start in range(0, length, tile.queries):
        distance = place[start : start + tile.queries, None] - place
        pairs = distance >= 0
        if window is not None:
            pairs &= distance < window
        if ids is not None:
            pairs &= ids[start : start + tile.queries, None] == ids
        live += int(np.logical_or.reduceat(pairs.any(0), np.arange(0, length, tile.keys)).sum())
        useful += int(pairs.sum())
    return live, useful


def documents(length: int, shortest: int, longest: int, seed: int = 0) -> np.ndarray:
    """Ids of documents of random lengths, one after the other; the last one is cut."""
    lengths = np.random.default_rng(seed).integers(shortest, longest, endpoint=True, size=length // shortest + 1)
    return np.repeat(np.arange(len(lengths)), lengths)[:length].astype(np.int32)


def main() -> int:
    """Prints the table; how many rows are beyond what is allowed."""
    jax.config.update("jax_platforms", "cpu")
    rows, beyond = [], 0
    kinds: dict[str, tuple[int, int | None, np.ndarray | None]] = {
        "causal": (8192, None, None),
        "window of 1,024": (8192, 1024, None),
        "documents of 256 to 2,048": (8192, None, documents(8192, 256, 2048)),
        "documents of 16 to 512": (8192, None, documents(8192, 16, 512)),
    }
    for gpu in ("A100", "H100", "B200"):
        for name, (length, window, ids) in kinds.items():
            for kernel, tile in tiles_for(gpu, 128, jnp.bfloat16)._asdict().items():
                found = work(tile, length, window, ids, by_keys=kernel == "d_keys")
                visits, scores = found.visited / found.live, found.executed / found.useful
                beyond += visits > ALLOWED or (name == "causal" and scores > ALLOWED)
                cells = f"{found.visited:,}", f"{found.masked:,}", f"{visits:.3f}", f"{scores:.3f}"
                rows.append([gpu, name, kernel, f"{tile.queries} x {tile.keys}", *cells])
    columns = ["GPU", "8,192 tokens", "kernel", "tile", "visited", "masked", "visited / live", "executed / useful"]
    show("Tiles of one head of dim 128, and their scores", columns, rows)
    print(f"{beyond} rows are beyond what is allowed." if beyond else "All are within what is allowed.")
    return beyond


if __name__ == "__main__":
    sys.exit(main() > 0)
