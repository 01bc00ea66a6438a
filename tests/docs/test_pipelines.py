"""docs/pipelines.md shows what is printed, and its table of one's own is one."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sharding.pipeline.makers import make
from tests.trainer.layouts import ROWS
from trainer.cli import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/pipelines.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"```\n\$ meshwright (.*)\n((?:.*\n)+?)```", PAGE)
TABLE = re.findall(r"```csv\n(.*?)```", PAGE, re.DOTALL)[0]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the page's commands are run: the configs are there, and the page's tables."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "mine.csv").write_text(TABLE, encoding="utf-8")
    lines = TABLE.splitlines()
    assert lines[5].startswith("2,")
    lines[5] = "1" + lines[5][1:]
    (tmp_path / "early.csv").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(("command", "expected"), SHOWN, ids=[command for command, _ in SHOWN])
def test_what_is_shown_is_printed(command: str, expected: str) -> None:
    result = CliRunner().invoke(app, shlex.split(command))
    assert expected in result.output


def test_the_table_is_what_the_command_above_it_writes(folder: Path) -> None:
    (command,) = re.findall(r"^meshwright (.* --out mine.csv)$", PAGE, re.MULTILINE)
    (folder / "mine.csv").unlink()
    assert CliRunner().invoke(app, shlex.split(command)).exit_code == 0
    assert (folder / "mine.csv").read_text(encoding="utf-8") == TABLE
    result = CliRunner().invoke(app, [*shlex.split(command)[:-2], "pipeline.schedule=mine.csv"])
    assert result.stdout.startswith("mine: stages 2, chunks 1, micro-batches 2\n")


@pytest.mark.parametrize(("stages", "chunks", "micro_batches"), [(4, 2, 8), (3, 3, 12), (12, 1, 128)])
def test_bubbles_and_peaks_are_as_the_formulas_say(stages: int, chunks: int, micro_batches: int) -> None:
    whole = {name: make(name, stages, 1, micro_batches) for name in ("gpipe", "1f1b")}
    parts = make("interleaved_1f1b", stages, chunks, micro_batches)
    assert whole["gpipe"].bubble() == whole["1f1b"].bubble() == pytest.approx((stages - 1) / micro_batches)
    assert parts.bubble() == pytest.approx((stages - 1) / (chunks * micro_batches))
    assert whole["gpipe"].peak_live == micro_batches
    assert whole["1f1b"].peak_live == min(micro_batches, 2 * stages - 1)
    assert parts.peak_live == chunks * stages + stages - 1


def test_as_many_layouts_are_compared_as_it_says() -> None:
    (said,) = re.findall(r"(\d+) layouts with stages", PAGE)
    assert int(said) == sum(row.pipeline > 1 for row in ROWS)


@pytest.mark.parametrize("name", ["bloom-176b", "mt-nlg-530b"])
def test_a_config_says_its_bubble(name: str) -> None:
    text = (ROOT / f"configs/{name}.yaml").read_text(encoding="utf-8")
    sections = [None, *re.findall(r"# +pipeline: (\{.*\})", text)]
    bubbles = re.findall(r"([\d.]+%)", text)
    assert len(bubbles) == len(sections)
    for section, bubble in zip(sections, bubbles, strict=True):
        overrides = [f"pipeline={section}"] if section else []
        result = CliRunner().invoke(app, ["schedule", f"configs/{name}.yaml", *overrides])
        assert f"bubble     {bubble} of the time at work" in result.stdout
