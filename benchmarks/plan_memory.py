"""The memory of plans beside what XLA sets aside for the same steps, compiled for H100s that are not there.

    python -m benchmarks.plan_memory [NAME...]    of RUNS; all take some five minutes on 2 cores

GiB of a GPU, without what the driver and libraries hold, which XLA does not know. Exits with 1 where a total is off by
more than 8 %. Needs no GPU, but what `pip install -e '.[plan]'` adds.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax

from benchmarks.common import show
from trainer.config import Config
from trainer.description import resolve
from trainer.planner import load, plan
from trainer.planner.compiled import compile_step
from trainer.planner.show_compiled import compared

CONFIGS = Path(__file__).parents[1] / "configs"
RUNS = {
    "gpt2-124m on one": ("gpt2-124m", ["mesh={data: 1}", "batch.global=64"]),
    "gpt2-124m": ("gpt2-124m", []),
    "llama3.2-1b": ("llama3.2-1b", []),
    "llama3-8b ZeRO 3": ("llama3-8b", ["mesh={data: 8}", "batch.global=16"]),
    "llama3-8b recompute full": ("llama3-8b", ["mesh={data: 8}", "batch.global=16", "recompute=full"]),
    "llama3-8b tensor 8": ("llama3-8b", ["mesh={tensor: 8}", "batch.global=4", "zero.stage=1"]),
    "bloom-176b": ("bloom-176b", []),
    "bloom-176b, 72 layers": ("bloom-176b", ["model.layers=72", f"pipeline.layers={[6] * 12}"]),
    "mt-nlg-530b": ("mt-nlg-530b", []),
    "mt-nlg-530b, 104 layers": ("mt-nlg-530b", ["model.layers=104"]),
}
ALLOWED = 0.08
GIB = 2**30


def main(names: list[str]) -> int:
    """Prints the table; how many totals are off by more than is allowed."""
    jax.config.update("jax_platforms", "cpu")
    rows, off = [], 0
    for name in names or RUNS:
        file, overrides = RUNS[name]
        config, _ = resolve(Config.load(CONFIGS / f"{file}.yaml", overrides))
        found = compared(plan(config, "h100"), compile_step(config, load("h100")))
        sizes = [found[kind][whose] for kind in ("state", "temporary", "total") for whose in ("planned", "compiled")]
        seconds = sum(found["seconds"].values())
        rows.append([name, *(f"{size / GIB:.2f}" for size in sizes), f"{found['difference']:+.1%}", f"{seconds:.0f}"])
        off += abs(found["difference"]) > ALLOWED
    columns = ["state", "compiled", "temporary", "compiled", "total", "compiled", "off by", "seconds"]
    show("Planned and compiled, GiB of an H100", ["config", *columns], rows)
    print(f"{off} off by more than {ALLOWED:.0%}." if off else f"All within {ALLOWED:.0%}.")
    return off


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
