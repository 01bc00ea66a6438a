"""Activations on the host: what leaves a GPU's memory, what comes into the host's, and what crosses the link for it.

    python -m benchmarks.offload_activations    needs what `pip install -e '.[plan]'` adds, and no GPU

Llama 3.2 1B, one sequence of 8,192 tokens on each GPU, with the kernels of attention, compiled for H100s that are not
there. Exits with 1 where the host holds other than planned, or the GPU is relieved of less than nine tenths of it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax

from benchmarks.common import show
from trainer.config import Config
from trainer.planner.compiled import compile_step
from trainer.planner.gpu import load
from trainer.planner.plan import plan
from trainer.units import GIB

CONFIG = Path(__file__).parents[1] / "configs" / "llama3.2-1b.yaml"
GPUS = {"1": 0, "8": 3}
"""How many, and the stage of ZeRO."""
POLICIES = ("none", "selective", "full")
LEAST = 0.9


def config(gpus: str, recompute: str, tier: str) -> Config:
    """Of one sequence for each GPU."""
    overrides = [
        f"mesh={{data: {gpus}}}",
        f"batch={{global: {gpus}, micro: 1, sequence: 8192}}",
        "attention.implementation=pallas",
        f"zero.stage={GPUS[gpus]}",
        f"recompute={recompute}",
        f"offload.activations={tier}",
    ]
    return Config.load(CONFIG, overrides)


def main() -> int:
    """Prints the table; how many lines of it are not as they should be."""
    jax.config.update("jax_platforms", "cpu")
    h100 = load("h100")
    rows, wrong = [], 0
    for gpus in GPUS:
        for recompute in POLICIES:
            kept, moved = (compile_step(config(gpus, recompute, tier), h100) for tier in ("none", "host"))
            planned = plan(config(gpus, recompute, "host"))
            once = planned.host_bytes / h100.host_bandwidth
            relief = kept.temporary - moved.temporary
            wrong += abs(moved.host / planned.host_bytes - 1) > 0.01 or relief < LEAST * moved.host or kept.host > 0
            sizes = (kept.temporary, moved.temporary, relief, moved.host, planned.host_bytes)
            seconds = (once, planned.seconds_per_step - planned.seconds.host, planned.seconds_per_step)
            cells = [*(f"{size / GIB:.2f}" for size in sizes), *(f"{second:.3f}" for second in seconds)]
            rows.append([f"{gpus}, ZeRO {GPUS[gpus]}, {recompute}", *cells])
    columns = ["temporary GiB", "offloaded", "less", "on the host", "planned"]
    columns += ["s one way", "step s, planned", "offloaded"]
    show("Llama 3.2 1B, 8,192 tokens a GPU, H100", ["GPUs, recompute", *columns], rows)
    return wrong


if __name__ == "__main__":
    sys.exit(main() > 0)
