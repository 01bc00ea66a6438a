"""The `pipeline` section: what cannot be is refused at its place when the config is read; what waits is no weight."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sharding.pipeline.makers import make
from sharding.pipeline.schedule_file import write
from tests.sharding.regions import equations
from tests.trainer.layouts import LLAMA_DEEP, SEQUENCE, Row
from trainer.config import Config
from trainer.errors import ConfigError
from trainer.pipeline import make_pipeline
from trainer.program import plan_layouts
from trainer.trace import scan_carry, trace_step

# Four layers, two stages, four micro-batches.
TREE = """\
model: {layers: 4}
batch: {global: 8, micro: 2, sequence: 16}
mesh: {pipeline: 2}
"""
# What is written below, from line 4 on, and the overrides -> what is said, from its place on.
REFUSED: dict[str, tuple[str, list[str], str]] = {
    "more stages than layers": (
        "",
        ["mesh.pipeline=8"],
        "command line: mesh.pipeline=8: mesh.pipeline=8 x pipeline.virtual_stages=1 = 8 stages are more than the 4 "
        "layers of the model (model.layers); use at most 4 in all",
    ),
    "more virtual stages than layers": (
        "pipeline:\n  schedule: interleaved_1f1b\n  virtual_stages: 3",
        [],
        "x.yaml:3: mesh.pipeline=2 x pipeline.virtual_stages=3 = 6 stages are more than the 4 layers",
    ),
    "a split that does not add up": (
        "pipeline:\n  keep: inputs\n  layers: [1, 2]",
        [],
        "x.yaml:6: pipeline.layers adds up to 3, and the model has 4 layers; add 1",
    ),
    "a split of another length": (
        "pipeline:\n  layers: [1, 2, 1]",
        [],
        "x.yaml:5: pipeline.layers has 3 numbers, and there are 2 virtual stages: mesh.pipeline=2 x "
        "pipeline.virtual_stages=1; give one number for each",
    ),
    "an empty stage": (
        "",
        ["pipeline.layers=[4, 0]"],
        "command line: pipeline.layers=[4, 0]: pipeline.layers gives 0 layers to virtual stage 1; each has 1 at least",
    ),
    "no list": (
        "pipeline:\n  layers: 2",
        [],
        "x.yaml:5: pipeline.layers: expected a list or null, got 2",
    ),
    "1f1b of several chunks": (
        "pipeline:\n  schedule: 1f1b\n  virtual_stages: 2",
        [],
        "x.yaml:5: pipeline.schedule: schedule 1f1b has one chunk (virtual stage) on each stage, not 2; use "
        "interleaved_1f1b, or 1f1b with 1",
    ),
    "several chunks of the default": (
        "pipeline:\n  virtual_stages: 2",
        [],
        "x.yaml:5: pipeline.schedule: schedule 1f1b has one chunk",
    ),
    "no such schedule": (
        "pipeline: {schedule: interleaved}",
        [],
        "x.yaml:4: pipeline.schedule: there is no schedule 'interleaved'; did you mean 'interleaved_1f1b'?",
    ),
    "a schedule in capitals": (
        "pipeline: {schedule: GPipe}",
        [],
        "x.yaml:4: pipeline.schedule: there is no schedule 'GPipe'; did you mean 'gpipe'?",
    ),
    "a table of another kind of file": (
        "pipeline: {schedule: mine.txt}",
        [],
        "x.yaml:4: pipeline.schedule: there is no schedule 'mine.txt'; there are gpipe, 1f1b, interleaved_1f1b, and "
        "files ending in .csv",
    ),
    "no such choice": (
        "pipeline:\n  head: first",
        [],
        'x.yaml:5: pipeline.head: expected one of spread, last, got "first"',
    ),
    "a layer that would be run three times": (
        "recompute: full\npipeline:\n  keep: inputs",
        ["mesh.pipeline=4"],
        "x.yaml:6: pipeline.keep=inputs runs a stage of one layer again for its backward pass, and recompute=full "
        "would run that layer once more and save nothing; leave one of them out",
    ),
    "no file": (
        "pipeline: {schedule: none.csv}",
        [],
        "x.yaml:4: pipeline.schedule: none.csv: there is no such file in",
    ),
}

# A line of the table of 1f1b, what it is replaced by, and what is said. The lines of the file:
#  1 tick,stage,...      2 0,0,forward,0,0,0    3 1,0,forward,0,1,1    4 1,1,forward,0,0,0    5 1,1,backward,0,0,0
#  6 2,0,forward,0,2,2   ...
TABLES: dict[str, tuple[str, str, str]] = {
    "deadlock": (
        "1,1,forward,0,0,0",
        "0,1,forward,0,0,0",
        "mine.csv, line 4: tick 0, stage 1: the forward of chunk 0 for micro-batch 0 is a deadlock: it waits for the "
        "forward of chunk 0 for micro-batch 0 on stage 0, which runs at tick 0; run it at tick 1 or later",
    ),
    "overwritten": (
        "2,0,forward,0,2,2",
        "2,0,forward,0,2,0",
        "mine.csv, line 6: tick 2, stage 0: the forward of chunk 0 for micro-batch 2 overwrites slot 0, which keeps "
        "the forward of chunk 0 for micro-batch 0 until its backward; use another slot, or this one from tick 3 on",
    ),
}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Config]:
    """The config with what is written below it, and overrides."""
    monkeypatch.chdir(tmp_path)

    def load(below: str, *overrides: str) -> Config:
        Path("x.yaml").write_text(TREE + below)
        return Config.load("x.yaml", overrides)

    return load


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_at_its_place(config: Callable[..., Config], case: str) -> None:
    below, overrides, message = REFUSED[case]
    with pytest.raises(ConfigError) as error:
        config(below, *overrides)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("case", TABLES)
def test_a_table_that_cannot_be_run_is_refused_at_its_row(config: Callable[..., Config], case: str) -> None:
    line, instead, message = TABLES[case]
    write(make("1f1b", 2, 1, 4), "mine.csv")
    text = Path("mine.csv").read_text()
    assert f"\n{line}\n" in text
    Path("mine.csv").write_text(text.replace(f"\n{line}\n", f"\n{instead}\n"))
    with pytest.raises(ConfigError) as error:
        config("pipeline: {schedule: mine.csv}")
    assert str(error.value) == f"x.yaml:4: pipeline.schedule: {message}"


@pytest.mark.parametrize(
    ("table", "held"),
    [
        ((3, 1, 4), "stages=3, chunks=1 and micro_batches=4"),
        ((2, 2, 4), "stages=2, chunks=2 and micro_batches=4"),
        ((2, 1, 3), "stages=2, chunks=1 and micro_batches=3"),
    ],
)
def test_a_table_of_other_numbers_is_refused(
    config: Callable[..., Config], table: tuple[int, int, int], held: str
) -> None:
    write(make("interleaved_1f1b", *table), "mine.csv")
    with pytest.raises(ConfigError) as error:
        config("pipeline: {schedule: mine.csv}")
    assert str(error.value).startswith("x.yaml:4: pipeline.schedule: mine.csv")
    asked = "stages=2, chunks=1 and micro_batches=4"
    fits = "use a table for these, or change the mesh, pipeline.virtual_stages or the batch"
    assert str(error.value).endswith(f"it is a schedule of {held}, and is to be one of {asked}; {fits}")


def test_a_table_of_ones_own_is_what_is_run(config: Callable[..., Config]) -> None:
    schedule = make("interleaved_1f1b", 2, 2, 4)
    write(schedule, "mine.csv")
    loaded = config("pipeline: {schedule: mine.csv, virtual_stages: 2, head: last}")
    pipeline = make_pipeline(loaded, loaded.mesh.sizes)
    assert pipeline is not None
    np.testing.assert_array_equal(pipeline.schedule.units, schedule.units)
    assert pipeline.stages.num_layers == (1, 1, 1, 1)
    assert (pipeline.keep, pipeline.head) == ("residuals", "last")


def test_what_the_devices_decide_is_checked_when_they_are_known(config: Callable[..., Config]) -> None:
    """`data: -1` leaves the number of micro-batches open, `pipeline: -1` the number of stages."""
    write(make("1f1b", 2, 1, 4), "mine.csv")
    by_data = config("pipeline: {schedule: mine.csv}", "mesh={pipeline: 2, data: -1}")
    assert by_data.resolve(2).mesh.data == 1
    with pytest.raises(ConfigError, match=r"micro_batches=4, and is to be one of .* micro_batches=2;"):
        by_data.resolve(4)
    by_stages = config("pipeline: {layers: [3, 1]}", "mesh={pipeline: -1}")
    assert by_stages.resolve(2).mesh.pipeline == 2
    with pytest.raises(ConfigError, match=r"pipeline.layers has 2 numbers, and there are 4 virtual stages"):
        by_stages.resolve(4)


def test_one_stage_needs_no_pipeline(config: Callable[..., Config]) -> None:
    alone = config("pipeline: {layers: [1, 3]}", "mesh.pipeline=1")
    assert make_pipeline(alone, alone.mesh.sizes) is None


@pytest.mark.parametrize(("recompute", "scan"), [("none", True), ("selective", False), ("full", True)])
def test_what_waits_for_its_backward_holds_no_weight(recompute: str, scan: bool) -> None:
    """Nor a cast of one, nor what ZeRO-3 gathered of it. Sizes tell: those of activations divide by the sequence's."""
    row = Row(LLAMA_DEEP, zero=3, pipeline=2, data=2, layers=(7, 1), accumulation=4, recompute=recompute, scan=scan)
    config = Config.from_dict(row.config.to_dict(), {"precision.compute": "bfloat16"})
    pipeline = make_pipeline(config, config.mesh.sizes)
    assert pipeline is not None
    layouts = plan_layouts(config, config.mesh.sizes).values()
    assert not any(math.prod(layout.block_shape) % SEQUENCE == 0 for layout in layouts)

    slots = []
    for equation in equations(trace_step(config).program):
        if equation.primitive.name != "scan":
            continue
        first, num_carry = scan_carry(equation)
        if num_carry > len(layouts):  # the gradients of all, and so a scan over ticks
            carry = [x.aval.shape for x in equation.invars[first:][:num_carry]]
            slots += [shape[1:] for shape in carry if shape[:1] == (pipeline.schedule.num_slots,)]
    assert slots
    assert [shape for shape in slots if math.prod(shape) % SEQUENCE] == []
