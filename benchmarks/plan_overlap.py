"""How much of what a step sends is hidden behind work, as XLA schedules it for GPUs that are not there.

    python -m benchmarks.plan_overlap [NAME...]    of RUNS; all take a quarter of an hour on 2 cores

Llama 3 8B on one node of 8 GPUs: by XLA's own defaults, as `trainer/gpu_settings.py` has them set, and with
micro-batches in parts. `hidden` is of bytes; seconds are those of one step, by a roofline, and tell what waits for
what, not how fast a GPU is. Exits with 1 where a goal on H100s is not reached. Needs no GPU, but what
`pip install -e '.[plan]'` adds. Scores are in memory, but with flash attention, whose FLOPs are as its kernels tell.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import jax

from benchmarks.common import show
from trainer.config import Config
from trainer.description import resolve
from trainer.planner import load
from trainer.planner.compiled import CompiledStep, compile_step
from trainer.planner.links import Cluster
from trainer.planner.overlap import Overlap, step_overlap
from trainer.units import GIB

CONFIG = Path(__file__).parents[1] / "configs/llama3-8b.yaml"
GPUS = ("h100", "a100")
DEFAULTS: Mapping[str, bool | str] = {
    "xla_gpu_enable_latency_hiding_scheduler": False,
    "xla_gpu_experimental_parallel_collective_overlap_limit": "1",
}
"""What XLA takes where nobody says otherwise. On Hopper and Blackwell it schedules for overlap even so."""


class Run(NamedTuple):
    overrides: list[str]
    defaults: bool = False
    """XLA is told nothing."""
    goal: float | None = None
    """The part of the bytes that is to be hidden on H100s."""


_ZERO = ["mesh={data: 8}", "batch={global: 16, micro: 1, sequence: 8192}"]
_TENSOR = ["mesh={tensor: 8}", "zero.stage=1"]
_ONE, _TWO = "batch={global: 4, micro: 1, sequence: 8192}", "batch={global: 4, micro: 2, sequence: 8192}"
_PARTS = "batch={global: 4, micro: 2, parts: 2, sequence: 8192}"
_FLASH, _REFERENCE = "attention.implementation=pallas", "attention.implementation=reference"
RUNS = {
    "ZeRO 3, told nothing": Run(_ZERO, defaults=True),
    "ZeRO 3": Run(_ZERO, goal=0.9),
    "tensor, told nothing": Run([*_TENSOR, _ONE], defaults=True),
    "tensor": Run([*_TENSOR, _ONE]),
    "tensor, micro 2": Run([*_TENSOR, _TWO]),
    "tensor, micro 2 in 2 parts": Run([*_TENSOR, _PARTS], goal=0.5),
    "ZeRO 3, flash attention": Run([*_ZERO, _FLASH], goal=0.9),
    "tensor, micro 2, flash": Run([*_TENSOR, _TWO, _FLASH]),
    "the same in 2 parts": Run([*_TENSOR, _PARTS, _FLASH], goal=0.5),
}


def main(names: list[str]) -> int:
    """Prints the table; how many goals are not reached."""
    jax.config.update("jax_platforms", "cpu")
    rows, missed = [], []
    for gpu in GPUS:
        for name in names or RUNS:
            run, cluster = RUNS[name], Cluster(load(gpu), 8)
            attention = () if _FLASH in run.overrides else (_REFERENCE,)
            config, _ = resolve(Config.load(CONFIG, [*attention, *run.overrides]))
            step = compile_step(config, cluster.gpu, options=DEFAULTS if run.defaults else None)
            found = step_overlap(step, cluster)
            rows.append([gpu, name, *_row(step, found)])
            if gpu == "h100" and run.goal and found.share < run.goal:
                missed.append(f"{name}: {found.share:.0%} of {run.goal:.0%}")
    columns = ["GPU", "step", "hidden", "all-gather", "reduce-scatter", "sending s", "waiting s", "work s", "GiB"]
    show("Hidden behind work, of what Llama 3 8B sends on 8 GPUs", columns, rows)
    print(f"Goals not reached: {', '.join(missed) or 'none'}.")
    return len(missed)


def _row(step: CompiledStep, found: Overlap) -> Iterator[str]:
    yield f"{found.share:.1%}"
    for kind in ("all_gather", "reduce_scatter"):
        sent = [one for one in found.sent if one.kind == kind]
        yield f"{sum(one.hidden_bytes for one in sent) / sum(one.link_bytes for one in sent):.1%}"
    yield from (f"{seconds:.3f}" for seconds in (found.seconds, found.waiting, found.work))
    yield f"{step.total / GIB:.2f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
