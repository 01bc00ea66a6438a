"""`meshwright plan`: prints a plan, for people or as JSON, beside what XLA makes of it if asked.

The facts are those of `trainer.planner.plan`; what XLA makes of it is printed by `trainer.planner.show_compiled`.
"""

from __future__ import annotations

import dataclasses
import json as json_format
from dataclasses import fields
from typing import Any

import jax
from rich import box
from rich.console import Console
from rich.table import Table

from trainer.config import Config
from trainer.planner.compiled import check_installed, compile_step
from trainer.planner.gpu import load
from trainer.planner.plan import Plan, on, plan
from trainer.planner.show_compiled import compared, compiled_tables

GIB = 2**30
# What each kind of bytes is, as `trainer.planner.memory` counts it.
MEMORY = {
    "weights": "copies that layers compute with",
    "gradients": "their sum, float32",
    "master": "float32 weights",
    "optimizer": "moments",
    "activations": "kept for backward, and those of the layer at work",
    "logits": "a chunk of tokens' logits and their gradient",
    "gathered": "weights of the part at work, under ZeRO 3",
    "pipeline": "messages between stages",
    "collectives": "copies of what is reduced or gathered",
    "overhead": "driver, libraries, NCCL, what the allocator wastes",
}
SECONDS = {
    "matmul": "matrices of layers and head",
    "attention": "scores and their sums of values",
    "elementwise": "norms, activation functions, residuals",
    "accumulation": "adding up gradients of micro-batches",
    "optimizer": "the update",
    "tensor": "tensor parallelism's exchanges, not hidden",
    "stages": "activations between stages, not hidden",
    "data": "weights and gradients over data and replica, not hidden",
    "bubble": "waiting for other stages",
}


def show_plan(
    config: Config,
    gpu: str,
    gpus: int | None,
    gpus_per_node: int,
    tokens: float | None,
    json: bool,
    compiled: bool = False,
) -> None:
    """Prints `plan(...)`; with `tokens`, also what training on so many takes; with `compiled`, what XLA sets aside.

    Raises:
        ConfigError: see `trainer.planner.plan.plan` and `trainer.planner.compiled.absent_gpus`.
    """
    if compiled:
        check_installed()
        jax.config.update("jax_platforms", "cpu")  # or jax would look for a driver
    made = plan(config, gpu, gpus, gpus_per_node)
    step = compile_step(on(config, gpus)[0], load(gpu), gpus_per_node) if compiled else None
    if json:
        tree = as_dict(made, tokens) | ({"compiled": compared(made, step)} if step else {})
        print(json_format.dumps(tree, indent=2))
    else:
        tables = [_summary(made, tokens), _memory(made), _seconds(made), _wire(made)]
        _print([*tables, *(compiled_tables(compared(made, step)) if step else [])], Console())


def as_dict(made: Plan, tokens: float | None) -> dict[str, Any]:
    """Plain data, with totals."""
    tree = dataclasses.asdict(made) | {"bytes_per_gpu": made.memory.total}
    if tokens is not None:
        tree |= {"tokens": tokens, "days": made.days(tokens), "gpu_hours": made.gpu_hours(tokens)}
    return tree


def _print(tables: list[Table], console: Console) -> None:
    if not console.is_terminal:
        console.width = 120  # a pipe has no width, and rich would wrap at 80
    for table in tables:
        console.print(table)


def _table(title: str, texts: list[str], numbers: list[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_header=any(texts))
    for heading in texts:
        table.add_column(heading)
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _summary(made: Plan, tokens: float | None) -> Table:
    table = _table("Plan", ["", ""], [])
    mesh = " x ".join(f"{axis} {size}" for axis, size in made.mesh.items() if size > 1) or "one device"
    table.add_row("GPUs", f"{made.gpus:,} x {made.gpu}, {made.gpus_per_node} to a node: {mesh}")
    if made.assumed:
        table.add_row("", made.assumed)
    verdict = "fits" if made.fits else "does not fit"
    over = made.memory.total - made.memory_bytes
    more = "" if made.fits else f", {over / GIB:.1f} GiB too much"
    table.add_row("memory", f"{verdict}: {made.memory.total / GIB:.1f} of {made.memory_bytes / GIB:.1f} GiB{more}")
    if not made.fits:
        table.add_row("would fit with", "\n".join(made.helps) or "larger GPUs, or many more")
    table.add_row("micro batch", f"{made.micro_batch}; largest that fits: {made.largest_micro_batch or 'none'}")
    table.add_row("a step", f"{made.seconds_per_step:.3g} s, {made.tokens_per_step:,} tokens")
    table.add_row(
        "speed", f"{made.tokens_per_second_per_gpu:,.0f} tokens/s per GPU; bubble {made.bubble:.1%} of the step"
    )
    table.add_row("of the peak", f"MFU {made.mfu:.1%} (causal attention halved, no recompute), HFU {made.hfu:.1%}")
    table.add_row("checkpoint", f"{made.checkpoint_bytes / 1e9:,.1f} GB")
    if tokens is not None:
        table.add_row(
            "training", f"{tokens:.3g} tokens: {made.days(tokens):,.1f} days, {made.gpu_hours(tokens):,.0f} GPU-hours"
        )
    return table


def _memory(made: Plan) -> Table:
    table = _table("Memory of each GPU", ["", ""], ["GiB"])
    for field in fields(made.memory):
        table.add_row(field.name, MEMORY[field.name], f"{getattr(made.memory, field.name) / GIB:.2f}")
    table.add_row("total", "", f"{made.memory.total / GIB:.2f}", style="bold")
    return table


def _seconds(made: Plan) -> Table:
    table = _table("Time of a step", ["", ""], ["seconds", "part"])
    for field in fields(made.seconds):
        seconds = getattr(made.seconds, field.name)
        table.add_row(field.name, SECONDS[field.name], f"{seconds:.3f}", f"{seconds / made.seconds.total:.0%}")
    table.add_row("total", "", f"{made.seconds.total:.3f}", "", style="bold")
    return table


def _wire(made: Plan) -> Table:
    title = "On the wire: each GPU in a step; seconds if nothing else happened"
    table = _table(title, ["collective", "axes", "link"], ["messages", "largest MiB", "GiB on the link", "seconds"])
    for sent in made.wire:
        table.add_row(
            sent.kind,
            " x ".join(sent.axes),
            sent.link,
            f"{sent.messages:,}",
            f"{sent.largest / 2**20:.2f}",
            f"{sent.link_bytes / GIB:.2f}",
            f"{sent.seconds:.3f}",
        )
    return table
