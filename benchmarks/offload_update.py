"""The optimizer's update in host memory: parameters a second, against DeepSpeed's CPU Adam and what memory can give.

    python -m benchmarks.offload_update [--deepspeed PYTHON] [--threads 2] [--rounds 10] [--sizes 100000 ...]

AdamW, clipped and with weight decay, on float32 masters, moments and gradients; `weights` are the new masters, written
in the same pass, for the devices. PYTHON is an interpreter with torch and deepspeed, whose update is then compiled and
takes turns with ours, but does not clip, and copies its masters to the weights in a pass of its own.
Of memory's: the bytes that an update must read and write in a second, over those of `a += 3 b` by as many threads on
80 MB each; more than 100 % is the cache's. Medians over the rounds, in which everything takes its turn; `best` is of
the fastest round on either side, which matters where a machine has other work.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import llvmlite.binding
import ml_dtypes
import numba
import numpy as np

from benchmarks.common import ratio, show
from trainer.huge_pages import restart_with_huge_pages
from trainer.offload.update import HostUpdate
from trainer.optimizer import make_optimizer
from trainer.settings import OptimizerConfig

SIZES = (100_000, 1_000_000, 10_000_000, 100_000_000)
DTYPES = {"none": None, "float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
RATE, FACTOR = np.float32(1e-3), np.float32(0.5)
CONFIG = OptimizerConfig()
TURN = 2e7
"""Parameters that a variant updates in a turn, at least."""
BYTES = 7 * 4
"""Bytes for each parameter: master and two moments are read and written, the gradient is read."""
ADD, ADDED = "a += 3 b", 12 * 20_000_000

Seconds = Callable[[int], float]
"""(steps) -> seconds per step, after one that is not timed."""


def timed(step: Callable[[], object]) -> Seconds:
    def seconds(steps: int) -> float:
        step()
        start = time.perf_counter()
        for _ in range(steps):
            step()
        return (time.perf_counter() - start) / steps

    return seconds


class DeepSpeed:
    """The server of bare_deepspeed.py. Its first start compiles, for minutes."""

    def __init__(self, python: str) -> None:
        script = Path(__file__).with_name("bare_deepspeed.py")
        path = f"{Path(python).absolute().parent}{os.pathsep}{os.environ['PATH']}"  # where ninja is
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen([python, script], text=True, env=os.environ | {"PATH": path}, **pipes)
        while not (line := self._read()).startswith("torch "):
            pass  # what its build says
        self.description = line.strip()

    def seconds(self, threads: int, size: int, dtype: str) -> Seconds:
        def ask(steps: int) -> float:
            assert self.process.stdin is not None
            print(threads, size, dtype, steps, file=self.process.stdin, flush=True)
            return float(self._read())

        return ask

    def _read(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "DeepSpeed's side ended; run benchmarks/bare_deepspeed.py by hand to see why"
        return line


def aligned(size: int, dtype: np.dtype) -> np.ndarray:
    """Zeros that start a cache line, as torch's and XLA's do, and a trainer's buffers."""
    memory = np.empty(size * dtype.itemsize + 64, np.uint8)
    start = -memory.ctypes.data % 64
    array = memory[start : start + size * dtype.itemsize].view(dtype)
    array[:] = 0
    return array


class Arrays:
    """Master, moments and gradient of `size` parameters, float32."""

    def __init__(self, size: int) -> None:
        self.master, self.gradient, *self.moments = (aligned(size, np.dtype(np.float32)) for _ in range(4))
        np.random.default_rng(0).standard_normal(out=self.master, dtype=np.float32)
        self.gradient[:] = self.master[::-1]


def ours(size: int, dtype: np.dtype | None, threads: int) -> Seconds:
    arrays, update = Arrays(size), HostUpdate(CONFIG, threads)
    weights = None if dtype is None else aligned(size, dtype)

    def step() -> None:
        update(arrays.master, arrays.moments, arrays.gradient, weights, decays=True, count=9, rate=RATE, factor=FACTOR)

    return timed(step)


def jitted(size: int) -> Seconds:
    """The train step's own update as a program for the CPU, in place."""
    optimizer = make_optimizer(CONFIG, {"w": True})

    def update(weights: Any, state: Any, gradient: Any) -> Any:
        updates, state = optimizer.update({"w": gradient["w"] * FACTOR}, state, weights)
        return {"w": weights["w"] - RATE * updates["w"]}, state

    program = jax.jit(update, donate_argnums=(0, 1))
    arrays = Arrays(size)
    gradient = {"w": jnp.asarray(arrays.gradient)}
    held = {"w": jnp.array(arrays.master)}
    state = [held, optimizer.init(held)]

    def step() -> None:
        state[:] = jax.block_until_ready(program(*state, gradient))

    return timed(step)


def plain_numpy(size: int) -> Seconds:
    arrays, c = Arrays(size), CONFIG
    (mu, nu), master = arrays.moments, arrays.master

    def step() -> None:
        gradient = arrays.gradient * FACTOR
        mu[:] = c.beta1 * mu + (1 - c.beta1) * gradient
        nu[:] = c.beta2 * nu + (1 - c.beta2) * gradient * gradient
        direction = (mu / (1 - c.beta1**10)) / (np.sqrt(nu / (1 - c.beta2**10)) + c.epsilon)
        master[:] -= RATE * (direction + c.weight_decay * master)

    return timed(step)


@numba.njit(nogil=True, cache=True)
def _add(a, b):
    for i in range(a.size):
        a[i] += np.float32(3) * b[i]


def scaled_add(threads: int) -> Seconds:
    """`a += 3 b`, which reads a and b and writes a: ADDED bytes."""
    a, b = (np.ones(ADDED // 12, np.float32) for _ in range(2))
    parts = list(zip(np.array_split(a, threads), np.array_split(b, threads), strict=True))
    pool = ThreadPoolExecutor(threads)
    return timed(lambda: list(pool.map(lambda part: _add(*part), parts)))


def first_call() -> float:
    """Seconds of the first update of a process, compiled unless numba's cache has it."""
    arrays, update = Arrays(16), HostUpdate(CONFIG, 1)
    weights = np.zeros(16, ml_dtypes.bfloat16)
    start = time.perf_counter()
    update(arrays.master, arrays.moments, arrays.gradient, weights, decays=True, count=0, rate=RATE, factor=FACTOR)
    return time.perf_counter() - start


def measured(variants: Mapping[str, Seconds], steps: int, rounds: int) -> dict[str, list[float]]:
    """Seconds per step by variant, an entry for every round."""
    found: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, seconds in variants.items():
            found[name].append(seconds(1 if name == ADD else steps))
    return found


def rows(size: int, threads: int, rounds: int, deepspeed: DeepSpeed | None) -> list[list[str]]:
    variants = {f"ours, weights {name}": ours(size, dtype, threads) for name, dtype in DTYPES.items()}
    if deepspeed is not None:
        variants |= {f"DeepSpeed, weights {name}": deepspeed.seconds(threads, size, name) for name in DTYPES}
    variants |= {"optax, jitted": jitted(size), "numpy, one thread": plain_numpy(size), ADD: scaled_add(threads)}
    found = measured(variants, max(1, int(TURN / size)), rounds)
    table = []
    for name, times in found.items():
        cells = [f"{size:.0e}", name, *(f"{size / s / 1e6:,.0f}" for s in (statistics.median(times), min(times)))]
        if name == ADD:
            cells[2:] = [f"{ADDED / s / 1e9:.1f} GB/s" for s in (statistics.median(times), min(times))]
        kind, _, dtype = name.partition(", weights ")
        if kind == "ours":
            num_bytes = size * (BYTES + (0 if DTYPES[dtype] is None else DTYPES[dtype].itemsize))
            cells.append(f"{ratio(found[ADD], times) * num_bytes / ADDED:.0%}")
            if deepspeed is not None:
                theirs = found[f"DeepSpeed, weights {dtype}"]
                cells += [f"{ratio(theirs, times):.2f}", f"{min(theirs) / min(times):.2f}"]
        table.append(cells)
    return table


def main(sizes: list[int], threads: int, rounds: int, python: str | None) -> None:
    print(f"numba {numba.__version__} for {llvmlite.binding.get_host_cpu_name()}")
    deepspeed = None
    if python is None:
        print("without DeepSpeed: --deepspeed names no interpreter that has it")
    else:
        deepspeed = DeepSpeed(python)
        print(deepspeed.description)
    print(f"the first call took {first_call():.1f} s; it compiles, unless an earlier run has")
    table = [row for size in sizes for row in rows(size, threads, rounds, deepspeed)]
    title = f"Million parameters a second, {threads} threads, {rounds} rounds"
    show(title, ["parameters", "", "million/s", "best", "of memory's", "over DeepSpeed", "best"], table)


if __name__ == "__main__":
    restart_with_huge_pages()  # as `meshwright train` does
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deepspeed", metavar="PYTHON")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    arguments = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    main(arguments.sizes, arguments.threads, arguments.rounds, arguments.deepspeed)
