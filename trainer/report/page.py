"""Puts what a run's folder tells into the templates of this folder.

Reads facts and lays them out; none is made here.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from trainer.config_yaml import dump
from trainer.output_file import check_output, write_output
from trainer.page.bars import Part, stack
from trainer.page.templates import templates
from trainer.report import curves, goodput, story
from trainer.report.folder import Run, read_run
from trainer.secrets import without_secrets


def write_report(folder: Path, out: Path | None) -> Path:
    """Writes the page of a run to `out`, or to report.html in its folder; returns where.

    Raises:
        ConfigError: there is no run, or the page cannot be written.
    """
    run = read_run(folder)
    file = folder / "report.html" if out is None else out
    check_output("--out", file, (".html", ".htm"))
    write_output("--out", file, page(run, time.time()))
    return file


def page(run: Run, now: float) -> str:
    """A whole page on a run, as it stands at `now` (Unix seconds)."""
    return templates("trainer.report").get_template("page.html").render(_context(run, now))


def _bar(spent: goodput.Goodput) -> list[Part]:
    return stack(spent.parts, goodput.MEANINGS, goodput.COLOURS, spent.wall)


def _context(run: Run, now: float) -> dict[str, Any]:
    has_trained = len(run.training) > 0
    spent = goodput.goodput(run)
    return {
        "run": run,
        "now": story.written(now),
        "story": story.story(run, now),
        "facts": list(story.facts(run, spent)) if has_trained else [],
        "losses": list(curves.losses(run)) if has_trained else [],
        "details": list(curves.details(run)) if has_trained else [],
        "progress": curves.progress(run) if has_trained else None,
        "spent": [part for part in _bar(spent) if part.amount] if spent else [],
        "wall": spent.wall if spent else 0.0,
        "starts": story.starts(run),
        "happened": story.happened(run),
        "counted": story.counted(run),
        "data": story.data(run),
        "config": dump(without_secrets(run.config)) if run.config else "",
    }
