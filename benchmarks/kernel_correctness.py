"""Flash attention's kernels, interpreted, in hundreds of random attentions against float64: the worst errors.

    nice python -m benchmarks.kernel_correctness [NUMBER]    exits with 1 where an error is beyond what is allowed

Programs are drawn so that every value of every option comes up equally often; each is compiled once and run on several
offsets, segments and sizes of values. An error is the largest of an array over the array's largest value. What is
allowed is what tests/pallas_kernels/cases.py says: of the second table, that of each attention.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from benchmarks.common import show
from pallas_kernels.flash.spec import Tile, Tiles
from tests.pallas_kernels.cases import TOLERANCES, Case, allowed, draw, errors, expected, run
from tests.pallas_kernels.oracle import Results

NUMBER, RUNS = 320, 8
OPTIONS: dict[str, list[Any]] = {
    "queries": [40, 64, 70, 97],
    "keys": [33, 70, 96, 130],
    "sharing": [1, 2, 4],
    "head_dim": [16, 24, 64, 80, 96, 128, 256],
    "dtype": ["float32", "bfloat16", "float16"],
    "causal": [True, True, False],
    "packing": [None, "documents", "shuffled", "strangers"],
    "alibi": [False, True],
    "window": [None, None, 1, 17, 50],
    "soft_cap": [None, None, 1.0, 30.0],
    "scale": [None, None, 0.1],
    "tiles": [
        Tiles(*[Tile(32, 32, 4, 2)] * 3),
        Tiles(*[Tile(16, 64, 4, 2)] * 3),
        Tiles(Tile(64, 16, 4, 2), Tile(32, 16, 4, 2), Tile(16, 32, 4, 2)),
    ],
}


def programs(number: int, rng: np.random.Generator) -> Iterator[Case]:
    """Each option goes through a shuffle of its own, again and again."""
    columns = {name: rng.permutation(np.arange(number) % len(values)) for name, values in OPTIONS.items()}
    for i in range(number):
        chosen = {name: OPTIONS[name][columns[name][i]] for name in OPTIONS}
        sharing = chosen.pop("sharing")
        yield Case(heads=sharing * 2, kv_heads=2, batch=2, **chosen)


def variants(case: Case, number: int, rng: np.random.Generator) -> Iterator[Case]:
    """Of one program: what is traced."""
    packings = [None] if case.packing is None else ["documents", "shuffled", "strangers"]
    for _ in range(number):
        yield replace(
            case,
            offset=int(rng.choice([0, case.keys - case.queries, rng.integers(-80, 140)])),
            norm=float(rng.choice([0.01, 1.0, 2.0, 4.0])),
            packing=packings[rng.integers(len(packings))],
        )


def kinds(case: Case) -> Iterator[str]:
    """What a case has of each option, as rows of a table."""
    yield "causal" if case.causal else "bidirectional"
    yield "one segment" if case.packing is None else f"packed: {case.packing}"
    yield "window" if case.window else "no window"
    yield "soft cap" if case.soft_cap else "no soft cap"
    yield "ALiBi" if case.alibi else "no ALiBi"
    yield f"{case.heads // case.kv_heads} query heads to a key head"
    yield f"head dim {case.head_dim}"
    yield f"standard deviation {case.norm}"
    yield "offset 0" if case.offset == 0 else f"offset {'above' if case.offset > 0 else 'below'} 0"


def main(number: int) -> int:
    """Prints the tables; how many results were beyond what is allowed."""
    jax.config.update("jax_platforms", "cpu")
    rng = np.random.default_rng(29)
    worst: dict[tuple[str, str], float] = {}
    by_kind: dict[str, list[float]] = {}
    beyond = []
    cases = [case for program in programs(-(-number // RUNS), rng) for case in variants(program, RUNS, rng)]
    for seed, case in enumerate(cases):
        arrays = draw(case, seed)
        wanted = expected(case, arrays)
        found, limits = errors(run(case, arrays), wanted), allowed(case, arrays, wanted)
        for result, error in found.items():
            worst[case.dtype, result] = max(worst.get((case.dtype, result), 0), error)
        highest = max(found[result] / limits[result] for result in found)
        for kind in kinds(case):
            by_kind.setdefault(kind, []).append(highest)
        if highest > 1:
            beyond.append(f"seed {seed}: {case}: {found}")
    rows = [
        [dtype, *(f"{worst[dtype, result]:.1e} ({limit:.0e})" for result, limit in limits.items())]
        for dtype, limits in TOLERANCES.items()
    ]
    show(
        f"{len(cases)} attentions: the worst error (and what ordinary scores are allowed)",
        ["dtype", *Results._fields],
        rows,
    )
    show(
        "The worst error, in parts of what is allowed",
        ["attentions with", "number", "worst"],
        [[kind, str(len(found)), f"{max(found):.2f}"] for kind, found in sorted(by_kind.items())],
    )
    print(*beyond, sep="\n")
    print(f"{len(beyond)} were beyond what is allowed." if beyond else "All were within what is allowed.")
    return len(beyond)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if sys.argv[1:] else NUMBER) > 0)
