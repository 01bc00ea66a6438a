"""The ledger of the traced step against the compiled one: equal, or different for causes that account for all of it."""

from __future__ import annotations

import dataclasses
import io
import re
from typing import Any

import pytest
from rich.console import Console

from tests.trainer.planner.on_cpu import LAYERED, PIPELINED, step_on_cpu
from trainer.planner.comparison import Cause
from trainer.planner.compiled import CompiledStep
from trainer.planner.hlo import read
from trainer.planner.ledger import COUNTER, compare
from trainer.planner.ledger_wire import FOLDED, HOISTED, WireLine, folded
from trainer.planner.plan import plan
from trainer.planner.show_compiled import compared, compiled_tables


@pytest.mark.parametrize("layout", [LAYERED, PIPELINED], ids=" ".join)
def test_a_compiled_step_does_what_the_traced_one_does(layout: tuple[str, ...]) -> None:
    ledger = compare(step_on_cpu(*layout))
    assert not ledger.unexplained
    assert (ledger.work.flops.causes, ledger.work.kernels) == ((), [])
    held = {line.name: line.causes for line in ledger.held}
    assert held["master weights"] == held["gradients, summed"] == ()
    assert held["moments"] == (Cause(COUNTER, 4),)
    assert {cause.name for line in ledger.work.wire for cause in line.causes} <= {HOISTED, FOLDED}
    assert sum(line.traced for line in ledger.work.wire) > 1e6


def test_stages_that_differ_are_all_compared() -> None:
    """Of two, the last has the head alone."""
    assert compare(step_on_cpu(*PIPELINED)).stages == 2
    assert compare(step_on_cpu(*LAYERED)).stages == 1


def test_what_is_sent_before_a_loop_and_not_in_it_is_told() -> None:
    """XLA gathers embedding, head and last norm once for the four micro-batches, on CPU."""
    (line,) = [line for line in compare(step_on_cpu(*LAYERED)).work.wire if line.causes]
    vocab, hidden, tensor, float32 = 320, 64, 2, 4
    gathered = 2 * vocab // tensor * hidden + hidden
    assert (line.kind, line.axes, line.causes) == ("all_gather", ("data",), (Cause(HOISTED, -3 * gathered * float32),))


def edited(step: CompiledStep, pattern: str, new: str) -> CompiledStep:
    """With other scheduled text."""
    text, times = re.subn(pattern, new, step.compiled.as_text() or "")
    assert times
    other = dataclasses.replace(step)
    other.__dict__["module"] = read(text)
    return other


@pytest.mark.parametrize(
    ("pattern", "new", "lines"),
    [
        ('"known_trip_count":{"n":"4"}', '"known_trip_count":{"n":"5"}', ["FLOPs of matmuls", "all_gather over data"]),
        (r"(f32\[\d+,)64(\]\S* dot\()", r"\g<1>65\2", ["FLOPs of matmuls"]),
        ('op_name="state.parameters', 'op_name="lost', ["master weights"]),
        (r"f32\[160,16\]", "f32[160,15]", ["gradients, summed", "master weights"]),
    ],
)
def test_what_has_no_cause_is_in_plain_view(pattern: str, new: str, lines: list[str]) -> None:
    step = edited(step_on_cpu(*LAYERED), pattern, new)
    odd = [line.name for line in compare(step).unexplained]
    assert all(any(line in name for name in odd) for line in lines)
    assert tables(step).count("UNEXPLAINED") == len(odd)


def tables(step: CompiledStep) -> str:
    """As they are printed."""
    console = Console(width=200, record=True, file=io.StringIO())
    for table in compiled_tables(compared(plan(step.program.config), step)):
        console.print(table)
    return console.export_text()


def test_what_is_equal_is_said_to_be() -> None:
    shown = tables(step_on_cpu(*LAYERED))
    assert re.search(r"FLOPs of matmuls +equal +163.58 MFLOP", shown)
    assert re.search(r"all_gather over data, float32 +-240.75 KiB \(-8.5%\): the same in each round of a loop", shown)
    assert "UNEXPLAINED" not in shown


def test_a_program_that_cannot_be_read_is_not_compared() -> None:
    step = edited(
        step_on_cpu(*LAYERED), r"channel_id=1, replica_groups=[^\n]*?, use_global_device_ids=true", "channel_id=1"
    )
    assert "not compared: " in tables(step)
    assert compared(plan(step.program.config), step)["ledger"].keys() == {"not_compared"}


def summed(axes: tuple[str, ...], traced: int, compiled: int) -> WireLine:
    names: dict[str, Any] = {"name": " ".join(axes), "kind": "all_reduce", "axes": axes, "dtype": "float32"}
    return WireLine(traced=traced, compiled=compiled, collectives=1, messages=1, **names)


def test_two_sums_that_became_one_are_told() -> None:
    one, other, both = folded([summed(("a",), 8, 4), summed(("b",), 4, 0), summed(("a", "b"), 0, 4)])
    assert one.causes == other.causes == (Cause(FOLDED, -4),)
    assert both.causes == (Cause(FOLDED, 4),)


@pytest.mark.parametrize("both", [0, 8])
def test_sums_that_went_elsewhere_are_not(both: int) -> None:
    lines = folded([summed(("a",), 8, 8), summed(("b",), 4, 0), summed(("a", "b"), 0, both)])
    assert any(line.unexplained for line in lines)
    assert not any(line.causes for line in lines)
