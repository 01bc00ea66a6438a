"""Flash attention's kernels, compiled with the tiles that they have on each GPU: registers, memory, tensor cores.

    nice python -m benchmarks.kernel_compile [--golden] [WORD...]    needs what `.[plan]` installs, and no GPU

Of all kernels, or of those that have every WORD in their names, as in `h100 d_keys`; with every option on (for what
models ask for, see kernel_presets). Exits with 1 where a kernel does not compile, keeps registers in memory, has more
threads than a program may, multiplies 16-bit numbers without tensor cores, or has a write to memory without a predicate
that ragged lengths need. Where all is well, `--golden` writes what tests/pallas_kernels/test_compiled.py compares with,
for this version of jax.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import jax

from benchmarks.common import show
from pallas_kernels.flash.tiles import tiles_for
from trainer.bench.probe import FEATURES, KERNELS, Job, Report, probe
from trainer.errors import ConfigError
from trainer.planner.compiled import check_installed

ALL = " ".join(FEATURES)
# GPUs, head dims, dtype, features
SETS: list[tuple[Sequence[str], Sequence[int], str, str]] = [
    (("a100", "h100", "b200", "sm_86", "sm_89"), (128, 256, 64), "bfloat16", ALL),
    (("h200", "sm_120"), (128,), "bfloat16", ALL),
    (("h100",), (80,), "bfloat16", ALL),
    (("a100",), (96,), "bfloat16", ALL),
    (("h100",), (128,), "float16", ALL),
    (("h100",), (64,), "float32", ALL),
]
MOST_THREADS = 1024
FOLDER = Path(__file__).parents[1] / "tests" / "golden"


def jobs() -> dict[str, Job]:
    """By the name that each has in the golden file."""
    found = {}
    for gpus, head_dims, dtype, features in SETS:
        for gpu, head_dim, kernel in product(gpus, head_dims, KERNELS):
            tile = getattr(tiles_for(gpu, head_dim, dtype), kernel)
            job = Job(gpu, kernel, tile, head_dim, dtype, features, spills=False)
            found[f"{gpu} {kernel} {head_dim} {dtype} {features}"] = job
    return found


def require_compiler() -> None:
    """Ends the program, in one line, where XLA cannot compile for GPUs."""
    try:
        check_installed("this benchmark")
    except ConfigError as error:
        sys.exit(f"error: {error}")


def having(words: Sequence[str], named: Mapping[str, Job]) -> dict[str, Job]:
    """Those that have every word in their names; ends the program, in one line, where there is none."""
    found = {name: job for name, job in named.items() if set(words) <= set(name.replace(",", "").split())}
    if not found:
        sys.exit(f"error: no kernel has all of these in its name: {' '.join(words)}; one is {next(iter(named))!r}")
    return found


def wrong(job: Job, report: Report) -> list[str]:
    """What is not as it should be."""
    if report.error:
        return [report.error]
    found = {
        f"{report.spilled} bytes spilled": report.spilled > 0,
        f"{report.threads} threads": report.threads > MOST_THREADS,
        "no tensor cores": job.dtype != "float32" and not report.tensor_cores,
        "no writes": report.stores == 0,
        f"{report.bare_stores} unguarded writes": report.bare_stores > 0,
    }
    return [what for what, is_so in found.items() if is_so]


def golden_path() -> Path:
    """For this version of jax: what a compiler makes of a kernel changes with it."""
    return FOLDER / f"kernels_jax{'.'.join(jax.__version__.split('.')[:2])}.json"


def golden() -> dict[str, dict[str, Any]]:
    """What this version of jax made of each job when it was last looked at.

    Raises:
        ConfigError: nobody has looked at this version yet.
    """
    if not golden_path().exists():
        raise ConfigError(
            f"no golden numbers of kernels for jax {jax.__version__}: write tests/golden/{golden_path().name} with "
            "`python -m benchmarks.kernel_compile --golden`, which does so where no kernel is wrong"
        )
    return dict(json.loads(golden_path().read_text()))


def taken(job: Job, report: Report) -> dict[str, Any]:
    """The golden numbers of a job."""
    return {
        "tile": list(job.tile),
        "registers": report.registers,
        "shared_memory": report.shared_memory,
        "tensor_cores": report.tensor_cores,
    }


def write_golden(numbers: Mapping[str, dict[str, Any]]) -> None:
    """Beside those that the file has of other kernels."""
    known = (golden() if golden_path().exists() else {}) | numbers
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(known[name])}" for name in jobs() if name in known)
    golden_path().write_text("{\n" + lines + "\n}\n")


def compile_all(title: str, named: Mapping[str, Job]) -> dict[str, Report]:
    """Compiles one after the other; prints a table, and what is wrong."""
    jax.config.update("jax_platforms", "cpu")
    reports = {}
    for name, job in named.items():
        reports[name] = probe(job)
        print(name, *wrong(job, reports[name]), file=sys.stderr, sep=": ", flush=True)
    columns = ["GPU", "dim", "heads", "features", "kernel", "tile", "tensor cores"]
    numbers = ["registers", "spilled", "shared", "threads", "guarded", "seconds"]
    rows = [_row(job, reports[name]) for name, job in named.items()]
    show(f"{title}, in bfloat16; assembled by ptxas {version('nvidia-cuda-nvcc')}", [*columns, *numbers], rows)
    bad, number = all_wrong(named, reports), len(named)
    print(*bad, sep="\n")
    print(f"{len(bad)} of {number} are not as they should be." if bad else f"All {number} are as they should be.")
    return reports


def all_wrong(named: Mapping[str, Job], reports: Mapping[str, Report]) -> list[str]:
    """A line for each kernel that is not as it should be."""
    found = {name: wrong(job, reports[name]) for name, job in named.items()}
    return [f"{name}: {', '.join(what)}" for name, what in found.items() if what]


def _row(job: Job, report: Report) -> list[str]:
    features = "all" if job.features == ALL else job.features
    of = features if job.dtype == "bfloat16" else f"{features}, {job.dtype}"
    tensor_cores = ", ".join(f"{n} {name}" for name, n in report.tensor_cores.items()) or "-"
    numbers = [report.registers, report.spilled, report.shared_memory, report.threads]
    tile = f"{job.tile.queries} x {job.tile.keys}, {job.tile.warps} warps"
    stores = f"{report.stores - report.bare_stores} of {report.stores}"
    heads = f"{job.heads}, {job.kv_heads}"
    texts = [job.gpu, str(job.head_dim), heads, of, job.kernel, tile, tensor_cores]
    return [*texts, *(f"{number:,}" for number in numbers), stores, f"{report.seconds:.1f}"]


def main(arguments: Sequence[str]) -> int:
    """How many kernels are not as they should be."""
    named = having([word for word in arguments if word != "--golden"], jobs())
    reports = compile_all("Kernels of flash attention", named)
    bad = all_wrong(named, reports)
    if "--golden" in arguments and not bad:
        write_golden({name: taken(job, reports[name]) for name, job in named.items()})
    return len(bad)


if __name__ == "__main__":
    require_compiler()
    sys.exit(main(sys.argv[1:]) > 0)
