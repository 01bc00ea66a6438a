"""Tiles that keep every number of a program in registers: the search that pallas_kernels/flash/tiles.py comes from.

    nice python -m benchmarks.kernel_search [GPU...]

The first that fits, of a list from large to small, with every feature on at once and as packed documents alone: what
takes fewer registers may be given fewer. Of as many scores, 128 keys come first: a warp multiplies 16 rows at a time,
and 8 of them make some scores of fewer keys twice. The list ends where 128 x 128 would begin: what of it fits has
no register left for another version's compiler. What is found depends on jax: tiles.py has what fits with each version
that has golden numbers. Prints what was tried, and rows for tiles.py. Needs no GPU, so nothing is timed: see
trainer.bench.probe.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import product

from benchmarks.kernel_compile import require_compiler
from pallas_kernels.flash.spec import Tile
from trainer.bench.probe import FEATURES, KERNELS, Job, Report, probe

TARGETS = [(gpu, "bfloat16") for gpu in ("h100", "a100", "b200", "sm_86")] + [("sm_86", "float32")]
"""An H200 is compiled for as an H100 is; sm_86 stands for all with as little shared memory. float32 has one row for
all, as no tensor core multiplies it."""
HEAD_DIMS = (64, 128, 256)
FEATURE_SETS = (" ".join(FEATURES), "causal segments")
STAGES = 2
CANDIDATES = {
    "forward": [
        (128, 64, 8),
        (64, 64, 8),
        (64, 64, 4),
        (64, 32, 4),
        (32, 32, 8),
        (32, 32, 4),
        (16, 32, 4),
        (16, 16, 8),
    ],
    "d_queries": [(128, 64, 8), (64, 64, 8), (64, 32, 8), (32, 32, 8), (32, 32, 4), (16, 32, 4)],
    "d_keys": [
        (32, 128, 8),
        (64, 64, 8),
        (16, 128, 8),
        (32, 64, 8),
        (64, 32, 8),
        (32, 32, 8),
        (32, 32, 4),
        (32, 16, 8),
        (32, 16, 4),
    ],
}
"""Queries, keys and warps. A sum of [128, 256] in float32 alone would take half of all registers."""
LARGEST = {("bfloat16", 64): 8192, ("bfloat16", 128): 8192, ("bfloat16", 256): 4096}
"""Scores of a tile; 1024 in float32, where larger ones take minutes to compile."""


def search(gpu: str, head_dim: int, dtype: str, kernel: str) -> Tile | None:
    """The tile that is taken; prints all that were tried."""
    for queries, keys, warps in CANDIDATES[kernel]:
        if queries * keys > LARGEST.get((dtype, head_dim), 1024):
            continue
        tile = Tile(queries, keys, warps, STAGES)
        if all(fits(Job(gpu, kernel, tile, head_dim, dtype, features)) for features in FEATURE_SETS):
            return tile
    return None


def fits(job: Job) -> bool:
    """Whether all numbers are in registers; prints what was taken."""
    report = probe(job)
    what = f"{job.gpu} {job.dtype} {job.head_dim} {job.kernel} {tuple(job.tile)} {job.features}"
    print(f"# {what}: {told(report)}", flush=True)
    return not report.error and not report.spilled


def told(report: Report) -> str:
    return report.error or (
        f"{report.registers} registers, {report.spilled} bytes spilled, {report.shared_memory} bytes shared"
    )


def main(gpus: Sequence[str]) -> None:
    for (gpu, dtype), head_dim in product(TARGETS, HEAD_DIMS):
        if not gpus or gpu in gpus:
            tiles = [search(gpu, head_dim, dtype, kernel) for kernel in KERNELS]
            told = ", ".join(str(tuple(tile)) if tile else "None" for tile in tiles)
            print(f'("{gpu}", {head_dim}, "{dtype}"): Tiles({told}),', flush=True)


if __name__ == "__main__":
    require_compiler()
    main(sys.argv[1:])
