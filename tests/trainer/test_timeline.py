"""The picture of a schedule: every unit is there once, time is as long as it is, and the same picture comes again."""

from __future__ import annotations

import io
import itertools
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from sharding.pipeline import schedule_file
from sharding.pipeline.makers import SCHEDULES, make
from sharding.pipeline.schedule import IDLE, Schedule
from trainer.errors import ConfigError
from trainer.picture import Label, Rect
from trainer.timeline import DURATION, draw, picture, save

SVG = "{http://www.w3.org/2000/svg}"
WIDE = 7.5
"""Pixels of a letter, in a wide font."""


def drawn(schedule: Schedule, width: int = 80, *, colours: bool = False) -> str:
    console = Console(
        file=io.StringIO(), width=width, force_terminal=colours, color_system="truecolor" if colours else None
    )
    draw(schedule, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_as_a_terminal_shows_it() -> None:
    assert [line.rstrip() for line in drawn(make("1f1b", 3, 1, 4)).splitlines()] == [
        "1f1b: stages 3, chunks 1, micro-batches 4",
        "tick    0                     5",
        "stage 0 0>1>2>·   3>·   · 0<  · 1<  2<  3<",
        "stage 1 · 0>1>·   2>0<  3>1<  · 2<  3<  ·",
        "stage 2 · · 0>0<  1>1<  2>2<  3>3<  ·   ·",
        "forward> of chunk  0   backward< of chunk  0   · idle",
        "",
        "live chunk activations",
        "stage 0 1 2 3     4     4     3     2   1",
        "stage 1 · 1 2     3     3     2     1   ·",
        "stage 2 · · 1     1     1     1     ·   ·",
        "",
        "ticks      8: warm-up 2, steady 4, drain 2",
        "bubble     50.0% of the time at work; a backward takes 2 forwards",
        "peak live  4 (chunk activations of one stage)",
    ]


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_unit_is_shown_once(name: str) -> None:
    schedule = make(name, 4, 1, 12)
    shown = Counter(re.findall(r"\d+[<>]", drawn(schedule, 400)))
    assert shown == {f"{micro_batch}{way}": 4 for micro_batch in range(12) for way in "<>"}


@pytest.mark.parametrize("width", [20, 40, 79, 80, 200])
@pytest.mark.parametrize("colours", [False, True])
def test_no_line_is_wider_than_the_console(width: int, colours: bool) -> None:
    text = re.sub(r"\x1b\[[\d;]*m", "", drawn(make("interleaved_1f1b", 12, 3, 128), width, colours=colours))
    assert max(map(len, text.splitlines())) <= width


def test_what_does_not_fit_is_counted() -> None:
    schedule = make("1f1b", 3, 1, 4)
    assert "left out" not in drawn(schedule, 8 + 6 * (2 + 4))  # the margin, then 6 forwards and 6 backwards
    assert "\nticks left out, for lack of width: 1\n" in drawn(schedule, 43)
    narrow = drawn(schedule, 39)
    assert "\nstage 2 · · 0>0<  1>1<  2>2<  3>3<  \n" in narrow
    assert "\nticks left out, for lack of width: 2\n" in narrow


def test_a_tick_without_units_has_no_width() -> None:
    schedule = make("1f1b", 3, 1, 4)
    waiting = Schedule("1f1b", np.insert(schedule.units, 3, IDLE, axis=0))
    lines = drawn(waiting).splitlines()
    assert "stage 1 · 0>1>·   2>0<  3>1<  · 2<  3<  ·   " in lines
    assert "stage 1 · 1 2     3     3     2     1   ·" in lines


def test_each_chunk_and_direction_has_a_colour() -> None:
    text = drawn(make("interleaved_1f1b", 2, 3, 4), 200, colours=True)
    assert len(set(re.findall(r"48;2;(\d+;\d+;\d+)", text))) == 2 * 3


def boxes(path: Path) -> list[tuple[str, float, float, float]]:
    """(colour, x, y, width) of every unit in the picture at `path`; the key is below them."""
    root = ElementTree.parse(path).getroot()
    rects = [(r.get("fill"), *(float(r.attrib[a]) for a in ("x", "y", "width"))) for r in root.iter(f"{SVG}rect")]
    return [(fill, x, y, width) for fill, x, y, width in rects if fill and y < float(root.attrib["height"]) - 40]


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_picture_has_every_unit_and_is_as_long_as_the_step(tmp_path: Path, name: str) -> None:
    schedule = make(name, 4, 1, 6)
    save(schedule, tmp_path / "a.svg")
    units = boxes(tmp_path / "a.svg")
    assert len(units) == 4 * 2 * 6
    assert len({y for _, _, y, _ in units}) == 4, "a row for each stage"
    narrow, wide = sorted({width + 1 for _, _, _, width in units})
    assert wide / narrow == DURATION[1] / DURATION[0]
    span = max(x + width + 1 for _, x, _, width in units) - min(x for _, x, _, _ in units)
    assert span / (6 * (narrow + wide)) == pytest.approx(1 + schedule.bubble(*DURATION))


def test_no_unit_lies_on_another(tmp_path: Path) -> None:
    save(make("interleaved_1f1b", 4, 3, 10), tmp_path / "a.svg")
    units = boxes(tmp_path / "a.svg")
    assert len({colour for colour, *_ in units}) == 2 * 3
    for row in {y for _, _, y, _ in units}:
        spans = sorted((x, x + width) for _, x, y, width in units if y == row)
        assert all(end < begin for (_, end), (begin, _) in itertools.pairwise(spans))


def test_a_picture_is_the_same_again(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        save(make("interleaved_1f1b", 4, 2, 6), tmp_path / name)
    picture = (tmp_path / "a.svg").read_bytes()
    assert picture == (tmp_path / "b.svg").read_bytes()
    assert b"interleaved_1f1b: stages 4, chunks 2, micro-batches 6" in picture


def test_schedules_of_the_same_work_are_drawn_to_one_scale(tmp_path: Path) -> None:
    """A chunk of two is half as wide as the whole stage, so that the eye can compare the bubbles."""
    widths = []
    for name, chunks in (("1f1b", 1), ("interleaved_1f1b", 2)):
        save(make(name, 4, chunks, 8), tmp_path / "a.svg")
        widths.append(max(width for _, _, _, width in boxes(tmp_path / "a.svg")) + 1)
    assert widths[0] == 2 * widths[1]


def test_large_schedules_stay_drawable(tmp_path: Path) -> None:
    """35 stages and 280 micro-batches: narrower units, and no numbers that would run into each other."""
    save(make("1f1b", 35, 1, 280), tmp_path / "a.svg")
    root = ElementTree.parse(tmp_path / "a.svg").getroot()
    assert 10_000 < float(root.attrib["width"]) < 20_000
    narrowest = min(width for _, _, _, width in boxes(tmp_path / "a.svg"))
    numbers = [text.text for text in root.iter(f"{SVG}text") if text.get("class") == "number middle"]
    assert narrowest < 7 * 3
    assert numbers.count("7") > numbers.count("123") > 0, "only a backward has room for three digits"


def test_the_middle_can_be_left_out_and_is_counted(tmp_path: Path) -> None:
    schedule = make("1f1b", 4, 1, 20)
    picture(schedule, ends=8).write_svg(tmp_path / "ends.svg")
    save(schedule, tmp_path / "all.svg")
    ends, whole = boxes(tmp_path / "ends.svg"), boxes(tmp_path / "all.svg")
    runs = schedule.runs.sum(axis=(1, 2))
    assert len(ends) == runs[:8].sum() + runs[-8:].sum()
    assert len(set(ends) & set(whole)) == runs[:8].sum(), "the first ticks are where they are in the whole"
    text = (tmp_path / "ends.svg").read_text(encoding="utf-8")
    assert f">{schedule.num_ticks - 16} ticks left out<" in text
    assert re.findall(r"\d+ live", text) == re.findall(r"\d+ live", (tmp_path / "all.svg").read_text(encoding="utf-8"))
    assert picture(schedule, ends=schedule.num_ticks // 2 + 1).svg() == picture(schedule).svg()


def test_names_of_stages_are_whole(tmp_path: Path) -> None:
    """However many digits they have: none runs into its bar, and none of the right side out of the picture."""
    shown = picture(make("gpipe", 105, 1, 2000), 2)
    bars = [shape for shape in shown.shapes if isinstance(shape, Rect) and shape.colour == "idle" and shape.width > 100]
    names = [shape for shape in shown.shapes if isinstance(shape, Label) and shape.text.startswith("stage ")]
    peaks = [shape for shape in shown.shapes if isinstance(shape, Label) and shape.text.endswith(" live")]
    assert (len(names), len(peaks)) == (105, 105)
    assert max(name.x + WIDE * len(name.text) for name in names) < min(bar.x for bar in bars)
    assert max(peak.x + WIDE * len(peak.text) for peak in peaks) < shown.width


def test_a_table_can_be_written(tmp_path: Path) -> None:
    schedule = make("interleaved_1f1b", 2, 2, 3)
    save(schedule, tmp_path / "a.csv")
    np.testing.assert_array_equal(schedule_file.read(tmp_path / "a.csv", 2, 2, 3).units, schedule.units)


@pytest.mark.parametrize("name", ["a.pdf", "a", "svg"])
def test_other_files_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}: a schedule is written as a file that ends in .svg, .png, .csv"):
        save(make("1f1b", 2, 1, 3), tmp_path / name)
    assert not list(tmp_path.iterdir())
