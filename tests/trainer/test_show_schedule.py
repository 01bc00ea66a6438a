"""`meshwright schedule`: the timeline of a config, what can be written of it, and what is refused in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from sharding.pipeline import schedule_file
from trainer.cli import app

ROOT = Path(__file__).parents[2]
STAGES = ("mesh={pipeline: 4, data: 2}", "batch={global: 16, micro: 1}")


def schedule(*args: str) -> Result:
    return CliRunner().invoke(app, ["schedule", str(ROOT / "configs/quickstart.yaml"), *args])


def test_the_timeline_of_a_config_is_drawn_with_what_it_costs() -> None:
    result = schedule(*STAGES, "model.layers=9")
    assert result.exit_code == 0, result.output
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert lines[0] == "1f1b: stages 4, chunks 1, micro-batches 8"
    assert lines[2].startswith("stage 0 0>1>2>3>")
    assert lines[-4:] == [
        "ticks      14: warm-up 3, steady 8, drain 3",
        "bubble     37.5% of the time at work; a backward takes 2 forwards",
        "peak live  7 (chunk activations of one stage)",
        "layers     3, 2 x3 (stages in the order of the model)",
    ]


def test_it_is_the_schedule_that_would_train() -> None:
    result = schedule(*STAGES, "model.layers=8", "pipeline={schedule: interleaved_1f1b, virtual_stages: 2}")
    assert result.stdout.startswith("interleaved_1f1b: stages 4, chunks 2, micro-batches 8\n")
    assert "layers     1 x8 (virtual stages in the order of the model)" in result.stdout
    assert schedule("mesh={pipeline: 2}", "batch={global: 6, micro: 2}").stdout.startswith(
        "1f1b: stages 2, chunks 1, micro-batches 3\n"
    )


def test_an_axis_that_is_left_open_is_taken_as_show_takes_it() -> None:
    result = schedule("mesh={pipeline: 2, data: -1}", "batch={global: 6, micro: 1}")
    assert "micro-batches 6\n" in result.stdout
    assert "mesh.data=-1 takes what is left and is shown as 1" in result.stdout
    result = schedule("mesh={pipeline: 2, data: -1, virtual_devices: 6}", "batch={global: 6, micro: 1}")
    assert "micro-batches 2\n" in result.stdout


def test_its_table_is_a_start_for_one_of_your_own(tmp_path: Path) -> None:
    table = tmp_path / "mine.csv"
    written = schedule(*STAGES, "--out", str(table))
    assert written.stdout.endswith(f"written to {table}\n")
    again = schedule(*STAGES, f"pipeline.schedule={table}")
    assert again.exit_code == 0, again.output
    assert again.stdout.splitlines()[1:] == written.stdout.splitlines()[1:-1]
    assert schedule_file.read(table, 4, 1, 8).peak_live == 7


def test_its_picture_is_written(tmp_path: Path) -> None:
    assert schedule(*STAGES, "--out", str(tmp_path / "a.svg")).exit_code == 0
    assert "1f1b: stages 4, chunks 1, micro-batches 8" in (tmp_path / "a.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ("mesh={data: 1}",),
            "mesh.pipeline is 1, so there is no schedule; set it to a number of stages: mesh.pipeline=4",
        ),
        (
            ("mesh={pipeline: -1}",),
            "mesh.pipeline takes what is left, which is not known here, so there is no schedule",
        ),
        (("mesh={pipeline: 5}",), "5 stages are more than the 4 layers of the model"),
        (
            ("mesh={pipeline: 2, data: -1}", "pipeline.virtual_stages=2"),
            "schedule 1f1b has one chunk (virtual stage) on each stage, not 2; use interleaved_1f1b",
        ),
        (("mesh={pipeline: 2, data: -1}", "pipeline.schedule=1f1"), "there is no schedule '1f1'; did you mean '1f1b'?"),
        (("mesh={pipeline: 2, data: -1}", "pipeline.schedule=no.csv"), "pipeline.schedule: no.csv: there is no such"),
        ((*STAGES, "--out", "no/such/a.csv"), "no/such/a.csv cannot be written (No such file or directory)"),
        (
            ("mesh={pipeline: 2}", "batch={global: 100000000, micro: 1}"),
            "makes 100,000,000 micro-batches, more than a schedule is made for",
        ),
        ((*STAGES, "--out", "a.pdf"), "a.pdf: a schedule is written as a file that ends in .svg, .png, .csv"),
    ],
    ids=[
        "no stages",
        "stages left open",
        "too many stages",
        "too many chunks",
        "no such name",
        "no file",
        "no folder",
        "too long",
        "pdf",
    ],
)
def test_what_cannot_be_drawn_is_said_in_one_line(args: tuple[str, ...], message: str) -> None:
    result = schedule(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("error: ")
    assert message in result.stderr


def test_it_needs_no_device() -> None:
    code = (
        "from pathlib import Path; from trainer.config import Config; from trainer.show_schedule import show_schedule;"
        "show_schedule(Config.load('configs/bloom-176b.yaml'), None);"
        "from jax._src import xla_bridge; print(xla_bridge.backends_are_initialized())"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.endswith("\nFalse\n")
