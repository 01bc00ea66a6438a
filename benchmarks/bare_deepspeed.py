"""DeepSpeed's AdamW in host memory, as a server for `offload_update`, run by an interpreter with torch and deepspeed.

A line `THREADS SIZE DTYPE STEPS` is answered with the seconds per step on SIZE float32 parameters. With a DTYPE other
than `none` the masters are then copied to it, as DeepSpeed does for the weights of the next forward pass.
Knows nothing of meshwright, which its interpreter need not have.
"""

from __future__ import annotations

import sys
import time

import deepspeed
import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam
from deepspeed.ops.op_builder import CPUAdamBuilder


class Optimizer:
    """Masters and moments of `size` parameters."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.master = torch.nn.Parameter(torch.randn(size))
        self.master.grad = torch.randn(size)
        options = {"betas": (0.9, 0.95), "weight_decay": 0.1, "adamw_mode": True}
        self.adam = DeepSpeedCPUAdam([self.master], lr=1e-3, **options)
        self.weights = {name: torch.zeros(size, dtype=getattr(torch, name)) for name in ("float32", "bfloat16")}

    def step(self, dtype: str) -> None:
        self.adam.step()
        if dtype != "none":
            self.weights[dtype].copy_(self.master.data)

    def seconds(self, dtype: str, steps: int) -> float:
        self.step(dtype)  # the threads are up again, after the other side's turn
        start = time.perf_counter()
        for _ in range(steps):
            self.step(dtype)
        return (time.perf_counter() - start) / steps


def main() -> None:
    optimizer = Optimizer(16)
    width = CPUAdamBuilder().simd_width()
    print(f"torch {torch.__version__}, deepspeed {deepspeed.__version__} built with {width.strip()}", flush=True)
    for line in sys.stdin:
        threads, size, dtype, steps = line.split()
        torch.set_num_threads(int(threads))
        if optimizer.size != int(size):
            optimizer = Optimizer(int(size))
        print(optimizer.seconds(dtype, int(steps)), flush=True)


if __name__ == "__main__":
    main()
