"""Memory of a train step against the length of its sequences: linear with flash attention, square without.

    python -m benchmarks.kernel_memory    needs what `pip install -e '.[plan]'` adds, and no GPU

Llama 3.2 1B, one sequence at a time, compiled for an H100 that is not there. Exits with 1 where a token of the longest
sequence takes more than one of the shortest.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax

from benchmarks.common import show
from trainer.config import Config
from trainer.planner.compiled import compile_step
from trainer.planner.gpu import load
from trainer.units import GIB

CONFIG = Path(__file__).parents[1] / "configs" / "llama3.2-1b.yaml"
LENGTHS = {"pallas": (8_192, 32_768, 131_072), "reference": (8_192, 32_768)}
ALLOWED = 1.02


def temporary(implementation: str, length: int) -> int:
    """Bytes that XLA sets aside during a step, beside the state."""
    overrides = [
        "mesh={data: 1}",
        f"batch={{global: 1, micro: 1, sequence: {length}}}",
        f"model.context={length}",
        f"attention.implementation={implementation}",
        "recompute=selective",
        "zero.stage=0",
    ]
    return compile_step(Config.load(CONFIG, overrides), load("h100")).temporary


def main() -> int:
    """Prints the table; how many times memory grows faster than it may."""
    jax.config.update("jax_platforms", "cpu")
    rows, worse = [], 0
    for implementation, lengths in LENGTHS.items():
        found = {length: temporary(implementation, length) for length in lengths}
        first = found[lengths[0]] / lengths[0]
        for length, size in found.items():
            rows.append([implementation, f"{length:,}", f"{size / GIB:.2f}", f"{size / length / 1024:,.0f}"])
            worse += implementation == "pallas" and size / length > ALLOWED * first
    show("Llama 3.2 1B, one sequence", ["attention", "tokens", "temporary GiB", "KiB a token"], rows)
    return worse


if __name__ == "__main__":
    sys.exit(main() > 0)
