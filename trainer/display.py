"""What a run shows while it trains: a live panel on a terminal, aligned lines when piped.

All displays are told the same things, and one table says how every number is written.
Knows nothing of training: numbers come as StepMetrics, memory as a function.
"""

from __future__ import annotations

import datetime
import math
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self, TextIO, cast

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trainer.metrics import StepMetrics
from trainer.streams import Shown, make_console

Memory = Callable[[], Mapping[str, int]]
"""Where -> bytes in use now, such as {"host": ..., "device": ...}."""

_SPARKS = "▁▂▃▄▅▆▇█"
_HISTORY = 40


class Display:
    """Shows nothing. `with` it around the training."""

    def say(self, text: str) -> None:
        """A line for the user to keep."""

    def step(self, metrics: StepMetrics) -> None:
        """A step that is due to be logged."""

    def evaluation(self, values: Mapping[str, int | float]) -> None:
        """Numbers on held-out text, by name."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


def make_display(title: str, total_steps: int, memory: Memory, console: Console | None = None) -> Display:
    """A live panel where `console` (standard output unless given) is a terminal, plain lines elsewhere."""
    console = console or make_console()
    return (LiveDisplay if console.is_terminal else PlainDisplay)(title, total_steps, memory, console)


# Heading -> how a step's number is written. "-" stands for what is not known.
_COLUMNS: dict[str, Callable[[StepMetrics], str]] = {
    "loss": lambda step: f"{step.loss:.4f}",
    "grad norm": lambda step: f"{step.grad_norm:.3g}",
    "lr": lambda step: f"{step.learning_rate:.2e}",
    "tokens/s": lambda step: f"{step.tokens_per_second:,.0f}",
    "model TFLOP/s": lambda step: f"{step.model_flops_per_second / 1e12:.3g}",
    "MFU": lambda step: "-" if step.mfu is None else f"{step.mfu:.1%}",
}


def _remaining(metrics: StepMetrics, total_steps: int) -> str:
    """Time to the last step at the speed of the latest ones, as d days, h:mm:ss."""
    seconds = max(total_steps - metrics.step, 0) * metrics.step_seconds
    return str(datetime.timedelta(seconds=round(seconds))) if math.isfinite(seconds) else "-"


def _memory(memory: Memory) -> str:
    return ", ".join(f"{size / 2**30:.2f} GiB {where}" for where, size in memory().items())


def _remarks(metrics: StepMetrics) -> str:
    """What is worth a word only when it is there."""
    words = []
    if metrics.loss_scale != 1:
        words.append(f"loss scale {metrics.loss_scale:g}")
    if metrics.skipped_steps:
        words.append(f"{metrics.skipped_steps} skipped (gradient not finite, or a spike)")
    return ", ".join(words)


def _evaluation(values: Mapping[str, int | float]) -> str:
    return "evaluation  " + "  ".join(
        f"{name} {value:,}" if isinstance(value, int) else f"{name} {value:.4f}" for name, value in values.items()
    )


class Lines(Display):
    """Only what is said."""

    def say(self, text: str) -> None:
        print(text, file=cast(TextIO, Shown(sys.stdout)), flush=True)


class PlainDisplay(Display):
    """One aligned line per logged step, for pipes, log files and batch systems."""

    def __init__(self, title: str, total_steps: int, memory: Memory, console: Console) -> None:
        self._total_steps = total_steps
        self._memory = memory
        self._console = console
        self._step_width = max(len(f"{total_steps:,}"), len("step"))
        self._headed = False
        self.say(title)

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def step(self, metrics: StepMetrics) -> None:
        if not self._headed:
            self.say(self._line("step", list(_COLUMNS), "left", "memory"))
            self._headed = True
        numbers = [write(metrics) for write in _COLUMNS.values()]
        rest = "  ".join(part for part in (_memory(self._memory), _remarks(metrics)) if part)
        self.say(self._line(f"{metrics.step:,}", numbers, _remaining(metrics, self._total_steps), rest))

    def evaluation(self, values: Mapping[str, int | float]) -> None:
        self.say(_evaluation(values))

    def _line(self, step: str, numbers: Sequence[str], left: str, rest: str) -> str:
        columns = [f"{text:>{max(len(heading), 9)}}" for heading, text in zip(_COLUMNS, numbers, strict=True)]
        return "  ".join([f"{step:>{self._step_width}}", *columns, f"{left:>9}", rest])


class LiveDisplay(Display):
    """A panel at the foot of the terminal; what is said scrolls by above it and stays."""

    def __init__(self, title: str, total_steps: int, memory: Memory, console: Console) -> None:
        self._title = title
        self._total_steps = total_steps
        self._memory = memory
        self._latest: StepMetrics | None = None
        self._losses: deque[float] = deque(maxlen=_HISTORY)
        self._live = Live(self._panel(), console=console, auto_refresh=False)

    def say(self, text: str) -> None:
        self._live.console.print(text, markup=False, highlight=False)

    def step(self, metrics: StepMetrics) -> None:
        self._latest = metrics
        self._losses.append(metrics.loss)
        self._live.update(self._panel(), refresh=True)

    def evaluation(self, values: Mapping[str, int | float]) -> None:
        self.say(_evaluation(values))

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def _panel(self) -> Panel:
        parts: list[RenderableType] = [self._progress()]
        if self._latest is not None:
            parts.append(self._numbers(self._latest))
            parts.append(Text(f"{_sparkline(self._losses)}  {_memory(self._memory)}", style="dim"))
            remarks = _remarks(self._latest)
            if remarks:
                parts.append(Text(remarks, style="yellow"))
        return Panel(Group(*parts), title=Text(self._title, style="bold"), title_align="left", border_style="dim")

    def _progress(self) -> Table:
        step = self._latest.step if self._latest else 0
        left = f"{_remaining(self._latest, self._total_steps)} left" if self._latest else "compiling"
        row = Table.grid(expand=True, padding=(0, 2))
        row.add_column(no_wrap=True)
        row.add_column(ratio=1)
        row.add_column(no_wrap=True, justify="right")
        row.add_row(
            f"step {step:,} of {self._total_steps:,}",
            ProgressBar(total=max(self._total_steps, 1), completed=step),
            left,
        )
        return row

    def _numbers(self, metrics: StepMetrics) -> Table:
        table = Table.grid(expand=True, padding=(0, 2))
        for _ in _COLUMNS:
            table.add_column(no_wrap=True)
        table.add_row(*(Text(heading, style="dim") for heading in _COLUMNS))
        table.add_row(*(Text(write(metrics), style="bold") for write in _COLUMNS.values()))
        return table


def _sparkline(values: Sequence[float]) -> str:
    """The course of the loss in one line, scaled to the values shown; × where it was not finite."""
    finite = [value for value in values if math.isfinite(value)]
    low, span = (min(finite), max(finite) - min(finite)) if finite else (0.0, 0.0)
    top = len(_SPARKS) - 1

    def spark(value: float) -> str:
        if not math.isfinite(value):
            return "×"
        return _SPARKS[round((value - low) / span * top)] if span else _SPARKS[0]

    return "".join(map(spark, values))
