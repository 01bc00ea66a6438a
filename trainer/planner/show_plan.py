"""`meshwright plan`: prints a plan, for people or as JSON, beside what XLA makes of it if asked.

The facts are those of `trainer.planner.plan`; what XLA makes of it is printed by `trainer.planner.show_compiled`.
"""

from __future__ import annotations

import dataclasses
import json as json_format
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import jax
from rich.table import Table

from trainer.config import Config
from trainer.output_file import check_output, write_output
from trainer.planner import report
from trainer.planner.auto import fill_in
from trainer.planner.compiled import check_installed, compile_step
from trainer.planner.gpu import load
from trainer.planner.links import Cluster
from trainer.planner.plan import Plan, on, plan
from trainer.planner.show_compiled import compared, compiled_tables
from trainer.planner.show_overlap import overlap_table, overlapped
from trainer.planner.words import ASSUMED, HOST_UPDATE, MEMORY, SECONDS, fullest, near, room
from trainer.show import OFF_DEVICE
from trainer.tables import make_table, wide_console
from trainer.units import GIB


def show_plan(
    config: Config,
    gpu: str,
    gpus: int | None,
    gpus_per_node: int,
    *,
    tokens: float | None = None,
    storage: float | None = None,
    json: bool = False,
    compiled: bool = False,
    html: Path | None = None,
) -> None:
    """Prints `plan(...)`; with `tokens`, also what training on so many takes; with `compiled`, what XLA sets aside.

    With `storage`, bytes/s that the file system takes in from all GPUs together, how long a checkpoint takes to save.
    All of it is written to `html` as a page, too, where that is given.

    Raises:
        ConfigError: see `trainer.planner.plan.plan` and `trainer.planner.compiled.absent_gpus`; or `html` cannot be
            written.
    """
    if html is not None:
        check_output("--html", html, (".html", ".htm"))
    if compiled:
        check_installed()
        jax.config.update("jax_platforms", "cpu")  # or jax would look for a driver
    kind = load(gpu)
    config, taken = fill_in(config, kind, gpus, gpus_per_node)  # here, so that a mesh is searched once
    made = plan(config, gpu, gpus, gpus_per_node)
    made = dataclasses.replace(made, assumed=taken or made.assumed)
    laid_out = on(config, gpus)[0]
    found = None
    if compiled:
        step = compile_step(laid_out, kind, gpus_per_node)
        found = compared(made, step) | {"overlap": overlapped(step, Cluster(kind, gpus_per_node))}
    if html is not None:
        beside = _compiled(found | {"seconds": {}}) if found else []  # a page has no clock
        page = report.page(made, laid_out, kind, tokens=tokens, storage=storage, compiled=beside)
        write_output("--html", html, page)
    if json:
        tree = as_dict(made, tokens, storage) | ({"compiled": found} if found else {})
        print(json_format.dumps(tree, indent=2))
        return
    tables = [_summary(made, tokens, storage), _memory(made), *_off_device(made), _seconds(made), _wire(made)]
    for table in [*tables, *(_compiled(found) if found else [])]:
        wide_console().print(table)
    if html is not None:
        wide_console().print(f"written to {html}", highlight=False, markup=False, soft_wrap=True)


def _compiled(found: dict[str, Any]) -> list[Table]:
    return [*compiled_tables(found), overlap_table(found["overlap"])]


def as_dict(made: Plan, tokens: float | None = None, storage: float | None = None) -> dict[str, Any]:
    """Plain data, with totals."""
    totals = {"memory": dataclasses.asdict(made.memory), "bytes_per_gpu": made.memory.total}
    totals |= {"host_bytes": made.host_bytes}
    tree = dataclasses.asdict(made) | totals
    if storage is not None:
        tree |= {"checkpoint_seconds": made.checkpoint_seconds(storage)}
    if tokens is not None:
        tree |= {"tokens": tokens, "days": made.days(tokens), "gpu_hours": made.gpu_hours(tokens)}
    return tree


def _summary(made: Plan, tokens: float | None, storage: float | None) -> Table:
    table = make_table("Plan", ["", ""])
    mesh = " x ".join(f"{axis} {size}" for axis, size in made.mesh.items() if size > 1) or "one device"
    table.add_row("GPUs", f"{made.gpus:,} x {made.gpu}, {made.gpus_per_node} to a node: {mesh}")
    if made.assumed:
        table.add_row("", made.assumed)
    table.add_row("attention", made.attention)
    verdict = "fits" if made.fits else "does not fit"
    over = made.memory.total - made.limit_bytes
    more = "" if made.fits else f", {over / GIB:.1f} GiB too much"
    table.add_row("memory", f"{verdict}: {made.memory.total / GIB:.1f} of {made.limit_bytes / GIB:.1f} GiB{more}")
    table.add_row("", room(made))
    if warning := near(made):
        table.add_row("", f"NEAR: {warning}")
    if len(made.stages) > 1:
        table.add_row("", fullest(made))
    if made.host_bytes:
        table.add_row("", f"and {made.host_bytes / GIB:.1f} GiB of host memory for each GPU")
    if made.off_device.nvme:
        table.add_row("", f"and {made.off_device.nvme / GIB:.1f} GiB of NVMe for each GPU")
    if not made.fits:
        ways = (f"{overrides}  ({seconds:.3g} s a step)" for overrides, seconds in made.helps.items())
        table.add_row("would fit with", "\n".join(ways) or "larger GPUs, or many more")
    table.add_row("micro batch", f"{made.micro_batch}; largest that fits: {made.largest_micro_batch or 'none'}")
    table.add_row("a step", f"{made.seconds_per_step:.3g} s, {made.tokens_per_step:,} tokens")
    table.add_row(
        "speed", f"{made.tokens_per_second_per_gpu:,.0f} tokens/s per GPU; bubble {made.bubble:.1%} of the step"
    )
    table.add_row("of the peak", f"MFU {made.mfu:.1%} (causal attention halved, no recompute), HFU {made.hfu:.1%}")
    saving = (
        "" if storage is None else f", saved in {made.checkpoint_seconds(storage):,.1f} s at {storage / 1e9:g} GB/s"
    )
    table.add_row("checkpoint", f"{made.checkpoint_bytes / 1e9:,.1f} GB{saving}")
    if tokens is not None:
        table.add_row(
            "training", f"{tokens:.3g} tokens: {made.days(tokens):,.1f} days, {made.gpu_hours(tokens):,.0f} GPU-hours"
        )
    return table


def _memory(made: Plan) -> Table:
    table = make_table("Memory of each GPU", ["", ""], ["GiB"])
    for field in fields(made.memory):
        table.add_row(field.name, MEMORY[field.name], f"{getattr(made.memory, field.name) / GIB:.2f}")
    table.add_row("total", "", f"{made.memory.total / GIB:.2f}", style="bold")
    return table


def _off_device(made: Plan) -> Iterator[Table]:
    """What is elsewhere, and what its update takes, if there is any."""
    if kept := {name: size for name, size in dataclasses.asdict(made.off_device).items() if size}:
        table = make_table("Off the GPU, for each GPU", ["", ""], ["GiB"])
        for name, size in kept.items():
            table.add_row(name, OFF_DEVICE[name], f"{size / GIB:.2f}")
        yield table
    if lanes := made.host_update.lanes:
        title = "The update on the host: lanes side by side, the slowest counts"
        table = make_table(title, ["lane", "what"], ["GB", "GB/s", "seconds"])
        for name, lane in lanes.items():
            rate = f"{lane.bandwidth / 1e9:.1f}"
            table.add_row(name, HOST_UPDATE[name], f"{lane.bytes / 1e9:.2f}", rate, f"{lane.seconds:.3f}")
        table.caption = ASSUMED
        table.caption_justify = "left"
        yield table


def _seconds(made: Plan) -> Table:
    table = make_table("Time of a step", ["", ""], ["seconds", "part"])
    for field in fields(made.seconds):
        seconds = getattr(made.seconds, field.name)
        table.add_row(field.name, SECONDS[field.name], f"{seconds:.3f}", f"{seconds / made.seconds.total:.0%}")
    table.add_row("total", "", f"{made.seconds.total:.3f}", "", style="bold")
    return table


def _wire(made: Plan) -> Table:
    title = "On the wire: each GPU in a step; seconds if nothing else happened"
    table = make_table(
        title, ["collective", "axes", "link"], ["messages", "largest\nMiB", "GiB on\nthe link", "seconds"]
    )
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
