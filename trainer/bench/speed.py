"""How long attention takes on the device that is there, by each of its implementations.

Forward and backward are programs of their own, as they are in FlashAttention's benchmark. Runs are queued one after the
other, so that the host's part is hidden as in training.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
from rich.table import Table

from pallas_kernels.attention import IMPLEMENTATIONS, Attend, Wanted, able
from trainer.bench.shapes import CONVENTION, Shape, Work
from trainer.planner.gpu import Gpu
from trainer.tables import make_table

ROUNDS = 5
SECONDS = 0.2
"""Of a round, at least."""
OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True)
class Speed:
    """Of one implementation; `problem` alone where it did not run."""

    implementation: str
    shape: Shape
    forward: float = math.nan
    """Seconds."""
    backward: float = math.nan
    problem: str = ""


def attention_speeds(
    device: jax.Device, shapes: Iterable[Shape], least: float = SECONDS, say: Callable[[str], None] = lambda _: None
) -> Iterator[Speed]:
    """Of every implementation that can do a shape. What fails is told in its own row.

    Args:
        least: seconds of a round.
        say: is told what comes next.
    """
    kind = None if device.platform == "cpu" else device.device_kind
    for shape in shapes:
        wanted = Wanted(shape.head_dim, shape.dtype, kind)
        for name in able(wanted):
            say(f"{name}, head dim {shape.head_dim}, {shape.sequence:,} tokens")
            try:
                with jax.default_device(device):
                    speed = Speed(name, shape, *_measured(IMPLEMENTATIONS[name].make(wanted), shape, least))
            except Exception as error:  # whatever a compiler or a driver raises: the others are measured all the same
                speed = Speed(name, shape, problem=problem_of(error))
            yield speed


def seconds(call: Callable[[], Any], least: float = SECONDS) -> float:
    """Of one call, the median of `ROUNDS` rounds. The first, which compiles, does not count."""
    jax.block_until_ready(call())
    number = math.ceil(least / _timed(call, 1))
    return statistics.median(_timed(call, max(number, 1)) for _ in range(ROUNDS))


def problem_of(error: Exception) -> str:
    """In one line."""
    first = (str(error).splitlines() or [""])[0]
    device_memory = "RESOURCE_EXHAUSTED" in first and "Shared memory" not in first  # which a kernel takes too much of
    return OUT_OF_MEMORY if device_memory else f"{type(error).__name__}: {first}"


def speed_table(speeds: Iterable[Speed], gpu: Gpu | None) -> Table:
    """TFLOP/s, and the part of the roofline that they are, where the GPU is known."""
    numbers = ["forward ms", "TFLOP/s", "of roofline", "backward ms", "TFLOP/s", "of roofline"]
    table = make_table("Attention, causal", ["implementation", "head dim", "B x S x H"], numbers)
    table.caption, table.caption_justify = CONVENTION, "left"
    for speed in speeds:
        shape = speed.shape
        named = [speed.implementation, str(shape.head_dim), f"{shape.batch} x {shape.sequence:,} x {shape.heads}"]
        if speed.problem:
            table.add_row(*named, speed.problem)
            continue
        parts = (shape.forward, speed.forward), (shape.backward, speed.backward)
        table.add_row(*named, *(cell for work, took in parts for cell in _cells(work, took, gpu)))
    return table


def _cells(work: Work, took: float, gpu: Gpu | None) -> tuple[str, str, str]:
    part = "-" if gpu is None else f"{work.seconds(gpu) / took:.1%}"
    return f"{took * 1e3:.3f}", f"{work.flops / took / 1e12:.4g}", part


def _measured(attend: Attend, shape: Shape, least: float) -> tuple[float, float]:
    """Seconds of the forward and of the backward pass. Inputs are drawn on the device: the host would take longer."""
    keys = jax.random.split(jax.random.key(0), 4)
    q, k, v, d_out = (jax.random.normal(key, shape.dims, shape.dtype) for key in keys)
    forward = jax.jit(attend)
    _, pull = jax.jit(lambda *inputs: jax.vjp(attend, *inputs))(q, k, v)
    backward = jax.jit(lambda pull, d_out: pull(d_out))
    return seconds(lambda: forward(q, k, v), least), seconds(lambda: backward(pull, d_out), least)


def _timed(call: Callable[[], Any], number: int) -> float:
    """Seconds of one of so many calls."""
    start = time.perf_counter()
    for _ in range(number):
        result = call()
    jax.block_until_ready(result)
    return (time.perf_counter() - start) / number
