"""What a user sees of a run: aligned lines in a pipe, a panel on a terminal, and the same numbers in both."""

import io
import math

import pytest
from rich.console import Console

from trainer.display import Display, LiveDisplay, PlainDisplay, make_display
from trainer.metrics import StepMetrics


def metrics(step: int, **changes: float) -> StepMetrics:
    numbers: dict[str, float] = {
        "loss": 8.5,
        "grad_norm": 1.25,
        "learning_rate": 3e-4,
        "tokens": step * 8192,
        "tokens_per_second": 12345.0,
        "step_seconds": 2.0,
        "model_flops_per_second": 4.5e12,
    }
    return StepMetrics(step=step, **(numbers | changes))  # type: ignore[arg-type]


def memory() -> dict[str, int]:
    return {"host": 3 * 2**29}


def show(terminal: bool, *steps: StepMetrics) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, color_system=None, width=100)
    with make_display("runs/a", 1000, memory, console) as display:
        display.say("resumed at step 5 [of run a]")
        for step in steps:
            display.step(step)
        display.evaluation({"step": 1000, "loss": 2.5})
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_terminal_decides() -> None:
    assert isinstance(make_display("a", 1, memory, Console(force_terminal=True)), LiveDisplay)
    assert isinstance(make_display("a", 1, memory, Console(file=io.StringIO())), PlainDisplay)


@pytest.mark.parametrize("terminal", [True, False])
def test_every_number_is_shown(terminal: bool) -> None:
    shown = show(terminal, metrics(100, mfu=0.415, skipped_steps=2, loss_scale=1024.0))
    for text in ("8.5000", "1.25", "3.00e-04", "12,345", "4.5", "41.5%", "1.50 GiB host", "0:30:00"):
        assert text in shown
    assert "2 skipped" in shown
    assert "loss scale 1024" in shown
    assert "resumed at step 5 [of run a]" in shown
    assert "evaluation  step 1,000  loss 2.5000" in shown


@pytest.mark.parametrize("terminal", [True, False])
def test_a_loss_that_is_not_finite_is_shown(terminal: bool) -> None:
    shown = show(terminal, metrics(1), metrics(2, loss=math.nan, grad_norm=math.inf, step_seconds=math.nan))
    assert "nan" in shown
    assert "inf" in shown


def test_piped_lines_stand_in_columns_under_one_heading() -> None:
    lines = show(False, metrics(10), metrics(1000, loss=10.25, tokens_per_second=1.5e6)).splitlines()
    heading, first, second = [line for line in lines if "GiB" in line or "grad norm" in line]
    columns = [("loss", "8.5000", "10.2500"), ("tokens/s", "12,345", "1,500,000"), ("left", ":00", ":00")]
    for name, a, b in columns:
        end = heading.index(name) + len(name)
        assert first[:end].endswith(a)
        assert second[:end].endswith(b)
    assert all("\x1b" not in line for line in lines)


def test_a_long_line_is_not_broken() -> None:
    console = Console(file=io.StringIO(), width=40)
    with make_display("a", 10, memory, console) as display:
        display.step(metrics(1, skipped_steps=1))
    assert len(console.file.getvalue().splitlines()) == 3  # type: ignore[attr-defined]


def test_the_panel_grows_with_the_run() -> None:
    shown = show(True, metrics(250), metrics(500, loss=7.0), metrics(750, loss=6.0))
    assert "compiling" in shown
    assert shown.index("step 250 of 1,000") < shown.index("step 750 of 1,000")
    assert "█▄▁" in shown or "█▃▁" in shown


def test_other_processes_are_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with Display() as display:
        display.say("text")
        display.step(metrics(1))
        display.evaluation({"loss": 1.0})
    assert capsys.readouterr() == ("", "")
