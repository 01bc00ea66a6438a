"""What XLA makes of a step, beside its plan and its ledger: for people as tables, or as plain data.

The facts are those of `trainer.planner.compiled`, `trainer.planner.plan` and `trainer.planner.ledger`; see
`trainer.planner.show_plan`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from trainer.planner.comparison import Line
from trainer.planner.compiled import CompiledStep
from trainer.planner.hlo import HloError
from trainer.planner.ledger import Ledger, compare
from trainer.planner.plan import Plan
from trainer.tables import make_table
from trainer.units import GIB

COMPILED = {
    "state": "given and given back: masters, moments, or what is there instead; compiled, with the batch",
    "temporary": "all else that a step needs",
    "total": "without overhead",
    "host": "in host memory during a step",
}
Units = tuple[tuple[str, float], ...]
"""From the largest to the smallest."""
SIZES: Units = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))
OPERATIONS: Units = (("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6), ("FLOP", 1))
RUNS: Units = (("", 1),)
UNITS = {"wire": SIZES, "flops": OPERATIONS, "kernels": RUNS, "bytes": SIZES}
"""Of the lines of a ledger."""
WORTH_SAYING = 1e-3
"""The part of a number from which on a difference is told as a part of it, too."""


def compared(made: Plan, step: CompiledStep) -> dict[str, Any]:
    """What XLA sets aside, in bytes of a GPU, beside the plan without its overhead, which XLA does not know; and the
    ledger of the traced step beside the compiled one."""
    state = made.state_bytes
    total = made.memory.total - made.memory.overhead
    return {
        "seconds": step.seconds,
        "state": {"planned": state, "compiled": step.state},
        "temporary": {"planned": total - state, "compiled": step.temporary},
        "total": {"planned": total, "compiled": step.total},
        "host": {"planned": made.off_device.in_step, "compiled": step.host},
        "difference": total / step.total - 1,
        "ledger": _ledger(step),
    }


def compiled_tables(found: dict[str, Any]) -> list[Table]:
    """Tables of what `compared` found."""
    return [_bytes(found), _lines(found["ledger"])]


def _ledger(step: CompiledStep) -> dict[str, Any]:
    try:
        ledger = compare(step)
    except (HloError, NotImplementedError) as error:
        return {"not_compared": str(error)}
    return {"stages": ledger.stages, "equal": not ledger.unexplained, **_groups(ledger)}


def _groups(ledger: Ledger) -> dict[str, list[dict[str, Any]]]:
    """Lines as plain data, each with what is unexplained of it."""
    work = ledger.work
    groups: dict[str, Sequence[Line]] = {
        "wire": work.wire,
        "flops": [work.flops],
        "kernels": work.kernels,
        "bytes": ledger.held,
    }
    return {
        name: [dataclasses.asdict(line) | {"unexplained": line.unexplained} for line in lines]
        for name, lines in groups.items()
    }


def _bytes(found: dict[str, Any]) -> Table:
    seconds = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in found["seconds"].items())
    numbers = ["planned GiB", "compiled GiB", "planned is off by"]
    table = make_table(f"Compiled by XLA: {seconds}", ["bytes", ""], numbers)
    for name, meaning in COMPILED.items():
        planned, compiled = found[name]["planned"], found[name]["compiled"]
        if not compiled:  # nothing waits on the host
            continue
        table.add_row(name, meaning, f"{planned / GIB:.2f}", f"{compiled / GIB:.2f}", f"{planned / compiled - 1:+.1%}")
    return table


def _lines(ledger: dict[str, Any]) -> Table:
    title = "The traced step beside the compiled one: each GPU in a step, exactly"
    if "not_compared" in ledger:
        table = make_table(title, [""])
        table.add_row(f"not compared: {ledger['not_compared']}", style="bold red")
        return table
    table = make_table(title, ["", "compiled"], ["traced", "collectives", "messages"])
    for group, units in UNITS.items():
        for line in ledger[group]:
            counts = [f"{line[count]:,}" if count in line else "" for count in ("collectives", "messages")]
            table.add_row(line["name"], verdict(line, units), amount(line["traced"], units), *counts)
    table.caption = "A message may hold the arrays of several collectives."
    table.caption_justify = "left"
    return table


def verdict(line: dict[str, Any], units: Units) -> str:
    """Equal, or by how much not, and why."""
    reasons = [(cause["amount"], cause["name"]) for cause in line["causes"]]
    if line["unexplained"]:
        reasons.append((line["unexplained"], "[bold red]UNEXPLAINED[/]"))
    return "\n".join(f"{amount(size, units, '+')}{_part(size, line)}: {name}" for size, name in reasons) or "equal"


def _part(size: int, line: dict[str, Any]) -> str:
    """Of what was traced, where it is worth saying."""
    part = size / (line["traced"] or size)
    return f" ({part:+.1%})" if abs(part) >= WORTH_SAYING else ""


def amount(number: float, units: Units, sign: str = "") -> str:
    """In the largest unit that leaves at least 1."""
    name, size = next((unit for unit in units if abs(number) >= unit[1]), units[-1])
    return f"{number / size:{sign},.{0 if size == 1 else 2}f} {name}".rstrip()
