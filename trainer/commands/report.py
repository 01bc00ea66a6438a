"""`meshwright report`: what a run's folder tells, as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainer.commands.arguments import RunFolder
from trainer.paths import argument


def report(
    run: RunFolder,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="Where to write it; RUN/report.html unless given.", callback=argument
        ),
    ] = None,
) -> None:
    """Show a run as a page of HTML: its curves, its time, its data.

    At any time: while it trains, when it is done, after it was killed. The page needs nothing but itself.

    Example: meshwright report runs/quickstart --out quickstart.html
    """
    from trainer.report import write_report

    typer.echo(f"written to {write_report(run, out)}")
