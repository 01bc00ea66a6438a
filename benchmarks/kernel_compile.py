"""Flash attention's kernels, compiled with the tiles that they have on each GPU: registers, memory, tensor cores.

    nice python -m benchmarks.kernel_compile [--golden]    needs what `pip install -e '.[plan]'` adds, and no GPU

Exits with 1 where a kernel does not compile, keeps registers in memory, has more threads than a program may, multiplies
16-bit numbers without tensor cores, or has a write to memory without a predicate, which ragged lengths need. `--golden`
writes what tests/pallas_kernels/test_compiled.py compares with.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import jax

from benchmarks.common import show
from pallas_kernels.flash.tiles import tiles_for
from trainer.bench.probe import FEATURES, KERNELS, Job, Report, probe

ALL = " ".join(FEATURES)
# GPUs, head dims, dtype, features
SETS: list[tuple[Sequence[str], Sequence[int], str, str]] = [
    (("a100", "h100", "b200", "sm_86"), (128, 256, 64), "bfloat16", ALL),
    (("h200", "sm_120"), (128,), "bfloat16", ALL),
    (("a100", "h100", "b200"), (128,), "bfloat16", "causal"),
    (("h100",), (80,), "bfloat16", ALL),
    (("a100",), (96,), "bfloat16", ALL),
    (("h100",), (128,), "float16", ALL),
    (("h100",), (64,), "float32", ALL),
]
MOST_THREADS = 1024


def jobs() -> Iterator[Job]:
    for gpus, head_dims, dtype, features in SETS:
        for gpu, head_dim, kernel in product(gpus, head_dims, KERNELS):
            tile = getattr(tiles_for(gpu, head_dim, dtype), kernel)
            yield Job(gpu, kernel, tile, head_dim, dtype, features)


def wrong(job: Job, report: Report) -> list[str]:
    """What is not as it should be."""
    if report.error:
        return [report.error]
    found = {
        f"{report.spilled} bytes spilled": report.spilled > 0,
        f"{report.threads} threads": report.threads > MOST_THREADS,
        "no tensor cores": job.dtype != "float32" and not report.tensor_cores,
        f"{report.bare_stores} unguarded writes": report.bare_stores > 0,
    }
    return [what for what, is_so in found.items() if is_so]


def key(job: Job) -> str:
    """Of a job in the golden file."""
    return f"{job.gpu} {job.kernel} {job.head_dim} {job.dtype} {job.features}".strip()


def golden_path() -> Path:
    """For this version of jax: what a compiler makes of a kernel changes with it."""
    version = ".".join(jax.__version__.split(".")[:2])
    return Path(__file__).parents[1] / "tests" / "golden" / f"kernels_jax{version}.json"


def _row(job: Job, report: Report) -> list[str]:
    features = "all" if job.features == ALL else job.features or "none"
    tensor_cores = ", ".join(f"{n} {name}" for name, n in report.tensor_cores.items()) or "-"
    numbers = [report.registers, report.spilled, report.shared_memory, report.threads]
    tile = f"{job.tile.queries} x {job.tile.keys}, {job.tile.warps} warps"
    stores = f"{report.stores - report.bare_stores} of {report.stores}"
    texts = [job.gpu, str(job.head_dim), job.dtype, features, job.kernel, tile, tensor_cores]
    return [*texts, *(f"{number:,}" for number in numbers), stores, f"{report.seconds:.1f}"]


def main(arguments: Sequence[str]) -> int:
    """Prints the table; how many kernels are not as they should be."""
    jax.config.update("jax_platforms", "cpu")
    done = []
    for job in jobs():
        done.append((job, probe(job)))
        print(key(job), *wrong(*done[-1]), file=sys.stderr, sep=": ", flush=True)
    columns = ["GPU", "head dim", "dtype", "features", "kernel", "tile", "tensor cores"]
    numbers = ["registers", "spilled", "shared", "threads", "guarded", "seconds"]
    show("Kernels of flash attention", [*columns, *numbers], [_row(*one) for one in done])
    if "--golden" in arguments:
        made = {
            key(job): {"tile": job.tile, "registers": report.registers, "shared_memory": report.shared_memory}
            for job, report in done
        }
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in made.items())
        golden_path().write_text("{\n" + lines + "\n}\n")
    bad = [f"{key(job)}: {', '.join(found)}" for job, report in done if (found := wrong(job, report))]
    print(*bad, sep="\n")
    print(f"{len(bad)} of {len(done)} are not as they should be." if bad else f"All {len(done)} are as they should be.")
    return len(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
