"""What XLA makes of a step, beside its plan: for people as a table, or as plain data.

The facts are those of `trainer.planner.compiled` and `trainer.planner.plan`; see `trainer.planner.show_plan`.
"""

from __future__ import annotations

from typing import Any

from rich import box
from rich.table import Table

from trainer.planner.compiled import CompiledStep
from trainer.planner.plan import Plan

GIB = 2**30
COMPILED = {
    "state": "master weights and moments; compiled, with the batch",
    "temporary": "all else that a step needs",
    "total": "without overhead",
}


def compared(made: Plan, step: CompiledStep) -> dict[str, Any]:
    """What XLA sets aside, in bytes of a GPU, beside the plan without its overhead, which XLA does not know."""
    state = made.memory.master + made.memory.optimizer
    total = made.memory.total - made.memory.overhead
    return {
        "seconds": step.seconds,
        "state": {"planned": state, "compiled": step.state},
        "temporary": {"planned": total - state, "compiled": step.temporary},
        "total": {"planned": total, "compiled": step.total},
        "difference": total / step.total - 1,
    }


def compiled_tables(found: dict[str, Any]) -> list[Table]:
    """Tables of what `compared` found."""
    seconds = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in found["seconds"].items())
    table = Table(
        "bytes", "", title=f"Compiled by XLA: {seconds}", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD
    )
    for heading in ("planned GiB", "compiled GiB", "planned is off by"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, meaning in COMPILED.items():
        planned, compiled = found[name]["planned"], found[name]["compiled"]
        table.add_row(name, meaning, f"{planned / GIB:.2f}", f"{compiled / GIB:.2f}", f"{planned / compiled - 1:+.1%}")
    return [table]
