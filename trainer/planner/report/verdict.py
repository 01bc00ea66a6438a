"""What a plan comes to, in words: one sentence, and the facts that it rests on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from trainer.page import numbers
from trainer.page.facts import Fact
from trainer.planner.plan import Plan
from trainer.planner.words import fullest
from trainer.units import DAY, GIB

BANDWIDTHS = (1e9, 10e9, 100e9)
"""Bytes/s at which a checkpoint is said to be saved, where nobody says at which it is."""


def verdict(name: str, made: Plan) -> str:
    """Whether it fits and why, with the stage that decides it."""
    total, have = made.memory.total, made.limit_bytes
    where = f"{made.gpus:,} × {made.gpu}"
    stages = f"; {fullest(made)}" if len(made.stages) > 1 else ""
    if made.fits:
        fits = "fits" if made.fits_surely else "barely fits"
        return f"{name} {fits} on {where}: it needs {total / GIB:.1f} of the {have / GIB:.1f} GiB of each{stages}."
    kind, most = max(asdict(made.memory).items(), key=lambda part: part[1])
    return (
        f"{name} does not fit on {where}: it needs {total / GIB:.1f} of the {have / GIB:.1f} GiB of each, "
        f"{(total - have) / GIB:.1f} GiB too much, and most of it, {most / GIB:.1f} GiB, for {kind}{stages}."
    )


def facts(made: Plan, tokens: float | None, storage: float | None) -> Iterator[Fact]:
    """Speed, how much of the peak is used, what training takes, and checkpoints."""
    per_gpu = made.tokens_per_second_per_gpu
    yield Fact("a step", numbers.seconds(made.seconds_per_step), f"{made.tokens_per_step:,} tokens")
    yield Fact("tokens/s per GPU", f"{per_gpu:,.0f}", f"{per_gpu * made.gpus:,.0f} tokens/s in all")
    yield Fact(
        "MFU",
        numbers.percent(made.mfu),
        "FLOPs of the model, causal attention halved, recomputation not counted, over the dense 16-bit peak",
    )
    yield Fact("HFU", numbers.percent(made.hfu), "FLOPs that are executed, recomputation included, over the same peak")
    if made.mesh["pipeline"] > 1:
        yield Fact("bubble", numbers.percent(made.bubble), "of the step, spent waiting for other stages")
    if tokens is not None:
        note = f"{made.gpu_hours(tokens):,.0f} GPU-hours, for {numbers.count(tokens)} tokens"
        yield Fact("training", numbers.duration(DAY * made.days(tokens)), note)
    yield Fact("checkpoint", f"{made.checkpoint_bytes / 1e9:,.1f} GB", f"saved in {_saved(made, storage)}")
    yield Fact(
        "micro batch",
        f"{made.micro_batch}",
        f"{made.accumulation:,} of them in a step; largest that fits: {made.largest_micro_batch or 'none'}",
    )


def _saved(made: Plan, storage: float | None) -> str:
    """How long it takes, at the bandwidth that is given or at some."""
    return ", ".join(
        f"{numbers.duration(made.checkpoint_seconds(bandwidth))} at {bandwidth / 1e9:g} GB/s"
        for bandwidth in ([storage] if storage else BANDWIDTHS)
    )
