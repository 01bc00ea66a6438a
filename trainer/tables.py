"""Tables on the terminal: one look for all commands, and a width that a pipe does not have by itself."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from trainer.streams import make_console

PIPE_WIDTH = 160
"""Columns where no terminal says how many: rich would wrap at 80."""


def wide_console() -> Console:
    """Standard output, as wide as its terminal."""
    console = make_console(markup=False)  # names that users give may hold brackets
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def make_table(title: str | None, texts: Sequence[str], numbers: Sequence[str] = ()) -> Table:
    """Columns of texts, then columns of numbers. Names and numbers are never wrapped. Without headings, no header."""
    table = Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_header=any([*texts, *numbers])
    )
    for i, heading in enumerate(texts):
        table.add_column(heading, no_wrap=i == 0, overflow="fold")
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table
