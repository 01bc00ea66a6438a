"""How much of what a compiled step sends is hidden, and what XLA was told: for people as a table, or as plain data.

The facts are those of `trainer.planner.overlap` and `trainer.gpu_settings`; see `trainer.planner.show_plan`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from rich.table import Table

from trainer.planner.compiled import CompiledStep
from trainer.planner.hlo import HloError
from trainer.planner.links import Cluster
from trainer.planner.overlap import step_overlap
from trainer.tables import make_table
from trainer.units import GIB


def overlapped(step: CompiledStep, cluster: Cluster) -> dict[str, Any]:
    """Plain data: of a GPU in a step, on the pipeline stage that sends most."""
    settings = step.program.gpu_settings
    told = {"xla": settings.options, "notes": list(settings.notes)}
    try:
        found = step_overlap(step, cluster)
    except HloError as error:
        return told | {"not_read": str(error)}
    sent = [dataclasses.asdict(one) | {"share": one.share} for one in found.sent]
    return told | {"share": found.share, "work": found.work, "waiting": found.waiting, "sent": sent}


def overlap_table(found: dict[str, Any]) -> Table:
    """Of what `overlapped` found."""
    if "not_read" in found:
        table = make_table("Hidden behind work", [""])
        table.add_row(f"not read: {found['not_read']}", style="bold red")
        return table
    waits = f"a GPU works {found['work']:.3g} s and waits {found['waiting']:.3g} s"
    title = f"Hidden behind work, by XLA's schedule: {found['share']:.0%} of what is sent; {waits}"
    table = make_table(title, ["collective", "axes"], ["messages", "GiB on the link", "hidden", "seconds", "waiting"])
    for one in found["sent"]:
        table.add_row(
            one["kind"],
            " x ".join(one["axes"]),
            f"{one['messages']:,}",
            f"{one['link_bytes'] / GIB:.2f}",
            f"{one['share']:.0%}",
            f"{one['seconds']:.3g}",
            f"{one['waiting']:.3g}",
        )
    told = [f"{name}={value}" for name, value in found["xla"].items()]
    table.caption = "\n".join([f"XLA is told: {', '.join(told) or 'nothing'}", *found["notes"]])
    table.caption_justify = "left"
    return table
