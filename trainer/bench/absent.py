"""What flash attention's kernels take of a GPU that is not there: compiled, counted, and timed by the roofline alone.

Registers, memory and instructions are the compilers'; FLOPs and bytes are those that each kernel tells XLA of itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
from rich.table import Table

from pallas_kernels.flash import flash_attention
from pallas_kernels.flash.tiles import tiles_for
from trainer.bench.occupancy import occupancy
from trainer.bench.probe import BATCH, HEADS, KERNELS, KV_HEADS, Job, Report, probe
from trainer.bench.shapes import Shape, Work
from trainer.planner.gpu import Gpu
from trainer.tables import make_table
from trainer.trace import KERNEL, visits


class Compiled(NamedTuple):
    """One kernel."""

    job: Job
    report: Report


def compiled_kernels(
    name: str, gpu: Gpu, head_dims: Iterable[int], length: int, say: Callable[[str], None]
) -> Iterator[Compiled]:
    """Of causal attention in bfloat16, with the tiles of that GPU.

    Args:
        name: of `gpu`, as `Job.gpu` has it.
        say: is told what comes next.
    """
    for head_dim in head_dims:
        tiles = tiles_for(gpu.device_kind, head_dim, "bfloat16")
        for kernel in KERNELS:
            say(f"compiling {kernel}, head dim {head_dim}")
            job = Job(name, kernel, getattr(tiles, kernel), head_dim, features="causal", lengths=(length, length))
            yield Compiled(job, probe(job))


def kernel_work(shape: Shape) -> dict[str, Work]:
    """Kernel -> what it says of itself: scores that are seen, each time that they are computed; every array once."""
    array = jax.ShapeDtypeStruct(shape.dims, shape.dtype)

    def gradients(q: jax.Array, k: jax.Array, v: jax.Array, d_out: jax.Array) -> Any:
        (_, lse), pull = jax.vjp(flash_attention, q, k, v)
        return pull((d_out, lse))

    program = jax.make_jaxpr(gradients)(array, array, array, array)
    costs = {
        equation.params["name"].removeprefix("flash_"): equation.params["cost_estimate"]
        for equation, _, _ in visits(program, {})
        if equation.primitive.name == KERNEL
    }
    return {kernel: Work(costs[kernel].flops, costs[kernel].bytes_accessed) for kernel in KERNELS}


def compiled_table(gpu: Gpu, kernels: Iterable[Compiled], length: int) -> Table:
    """What each kernel takes. A kernel that did not compile has only its reason."""
    numbers = ["registers", "spilled", "shared memory", "threads", "programs", "occupancy"]
    title = f"Flash attention, causal, bfloat16, compiled for {gpu.name}"
    table = make_table(title, ["kernel", "head dim", "tile", "tensor cores"], numbers)
    table.caption_justify = "left"
    table.caption = (
        f"Batch {BATCH}, {length:,} tokens, {HEADS} query heads, {KV_HEADS} key heads. Registers are a thread's, and "
        "bytes of them are spilled; shared memory is bytes of a program. A multiprocessor holds so many programs at a "
        "time; occupancy is their part of its warps."
    )
    for job, report in kernels:
        named = [job.kernel, str(job.head_dim), f"{job.tile.queries} x {job.tile.keys}, {job.tile.warps} warps"]
        if report.error:
            table.add_row(*named, report.error)
            continue
        there = occupancy(gpu, report.registers, report.shared_memory, report.threads)
        taken = report.registers, report.spilled, report.shared_memory, report.threads, there.programs
        tensor_cores = ", ".join(f"{number} {name}" for name, number in report.tensor_cores.items()) or "none"
        table.add_row(*named, tensor_cores, *(f"{number:,}" for number in taken), f"{there.warps:.1%}")
    return table


def roofline_table(gpu: Gpu, shapes: Iterable[Shape]) -> Table:
    """The least time of each kernel for each shape."""
    numbers = ["GFLOP", "MB", "FLOP/byte", "ms at least"]
    table = make_table(f"Rooflines of {gpu.name}", ["kernel", "head dim", "B x S x H", "bound by"], numbers)
    table.caption_justify = "left"
    table.caption = (
        f"By the data sheet: {gpu.peak_flops / 1e12:,.0f} TFLOP/s, {gpu.memory_bandwidth / 1e12:.3g} TB/s. FLOPs are "
        "of the scores that are seen, each time that they are computed: 7 products in backward, where models count 5."
    )
    for shape in shapes:
        for kernel, work in kernel_work(shape).items():
            bound = "memory" if work.is_bound_by_memory(gpu) else "tensor cores"
            sizes = f"{shape.batch} x {shape.sequence:,} x {shape.heads}"
            counted = f"{work.flops / 1e9:,.0f}", f"{work.num_bytes / 1e6:,.0f}", f"{work.flops / work.num_bytes:,.0f}"
            table.add_row(kernel, str(shape.head_dim), sizes, bound, *counted, f"{work.seconds(gpu) * 1e3:.3f}")
    return table
