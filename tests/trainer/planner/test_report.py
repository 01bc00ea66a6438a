"""The plan as a page: all of its numbers are the plan's, it needs nothing but itself, and a browser finds no fault."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict, replace
from functools import cache
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sharding.mesh import AXES
from tests.trainer.page.reader import BROWSER, Page, browse, images
from tests.trainer.planner.arrangements import tiny
from trainer.cli import app
from trainer.config import Config
from trainer.page import numbers
from trainer.picture import Label, Rect
from trainer.planner import Plan, plan
from trainer.planner.arrangement import Arrangement
from trainer.planner.gpu import load
from trainer.planner.plan import on
from trainer.planner.practice import MEGATRON_CORE
from trainer.planner.report import alternatives, fragment, nodes, page, roofline
from trainer.planner.show_plan import show_plan
from trainer.tables import make_table
from trainer.units import GIB

ROOT = Path(__file__).parents[3]
STAGES = ("mesh={pipeline: 2, data: 4, tensor: 2}", "zero.stage=1")
TOO_LARGE = ("attention.implementation=reference", "mesh={data: 8}", "recompute=none")
ASKED: dict[str, tuple[str, tuple[str, ...]]] = {"bloom-176b": ("a100", ()), "llama3-8b": ("h100", TOO_LARGE)}


@cache
def made(name: str) -> tuple[Plan, str]:
    """A plan, and its page."""
    gpu, overrides = ASKED[name]
    config = Config.load(ROOT / "configs" / f"{name}.yaml", overrides)
    planned = plan(config, gpu)
    return planned, page(planned, on(config, None)[0], load(gpu), tokens=366e9, storage=50e9)


@cache
def small() -> Plan:
    return plan(tiny(*STAGES))


def page_of_small(**options: Any) -> str:
    return page(small(), tiny(*STAGES), load("h100"), **options)


@pytest.mark.parametrize("name", ASKED)
def test_a_page_needs_nothing_but_itself(name: str) -> None:
    _, text = made(name)
    read = Page(text)
    assert not read.tags & {"script", "link", "iframe", "object", "embed", "base", "form"}
    assert read.addresses
    assert all(address.startswith("data:image/svg+xml;base64,") for address in read.addresses)
    assert not re.search(r"https?:|@import|url\(|\son\w+=", text)
    for picture in images(text):
        assert not re.search(r"href|<image|<script|@import|url\(", picture)
        ElementTree.fromstring(picture)


@pytest.mark.parametrize("name", ASKED)
def test_the_numbers_are_those_of_the_plan(name: str) -> None:
    planned, text = made(name)
    read = Page(text)
    sizes = {kind: row[0] for kind, row in read.table("kind").items()}
    expected = asdict(planned.memory) | {"total": planned.memory.total}
    assert sizes == {kind: f"{size / GIB:,.2f} GiB" for kind, size in expected.items()}
    times = {kind: row[0] for kind, row in read.table("goes into").items()}
    spent = asdict(planned.seconds) | {"total": planned.seconds_per_step}
    assert times == {kind: numbers.seconds(seconds) for kind, seconds in spent.items()}
    wire = next(table.rows[1:] for table in read.tables if table.rows[0][0] == "collective")
    assert [(row[0], row[1], row[3]) for row in wire] == [
        (sent.kind, " × ".join(sent.axes), f"{sent.messages:,}") for sent in planned.wire
    ]
    for fact in (
        f"{planned.tokens_per_second_per_gpu:,.0f}",
        f"{planned.mfu:.1%}",
        f"{planned.hfu:.1%}",
        f"{planned.days(366e9):,.1f} days",
        f"{planned.gpu_hours(366e9):,.0f} GPU-hours, for 366 billion tokens",
        f"{planned.checkpoint_bytes / 1e9:,.1f} GB",
        f"saved in {numbers.duration(planned.checkpoint_seconds(50e9))} at 50 GB/s",
    ):
        assert f">{fact}<" in text, fact


@pytest.mark.parametrize("name", ASKED)
def test_every_stage_has_a_bar_as_long_as_what_it_needs(name: str) -> None:
    planned, text = made(name)
    read = Page(text)
    *stages, seconds = read.bars
    assert len(stages) == len(planned.stages)
    for stage, bar in zip(planned.stages, stages, strict=True):
        *parts, (kind, limit) = bar
        assert kind == "left"
        assert len(parts) == sum(size > 0 for size in asdict(stage).values())
        filled = sum(width for _, width in parts)
        assert filled / limit == pytest.approx(stage.total / planned.limit_bytes, rel=1e-4)
        assert max(filled, limit) <= 100
    assert sum(width for _, width in seconds) == pytest.approx(100, abs=1e-2)


def test_the_fullest_stage_is_marked_where_stages_differ() -> None:
    planned = small()
    assert "(fullest)" not in fragment(planned)
    first = planned.stages[0]
    larger = replace(first, activations=2 * first.activations)
    text = fragment(replace(planned, stages=(first, larger), worst_stage=1))
    assert list(Page(text).table("stage")) == ["0", "1 (fullest)"]
    assert "stage 1 of 2 is the fullest" in text


def test_what_does_not_fit_says_by_how_much_and_what_helps() -> None:
    planned, text = made("llama3-8b")
    over = (planned.memory.total - planned.limit_bytes) / GIB
    assert f"llama3-8b does not fit on 8 × h100: it needs {planned.memory.total / GIB:.1f} of the" in text
    assert f"{over:.1f} GiB too much, and most of it, {planned.memory.activations / GIB:.1f} GiB, for activ" in text
    assert re.findall(r"<li><code>(.*?)</code>", text) == list(planned.helps)
    assert "recompute=selective" in planned.helps


def test_tables_and_pictures_can_be_heard() -> None:
    for table in (read := Page(made("bloom-176b")[1])).tables:
        assert table.caption.strip()
        assert set(table.scopes) == {"col", "row"}
        assert {len(row) for row in table.rows} == {len(table.rows[0])}, table.caption
    assert len(read.alts) == len(images(made("bloom-176b")[1])) == 3
    assert all(read.alts)


def test_what_users_name_is_no_markup() -> None:
    hostile = '<script>alert("1")</script>'
    config, gpu = tiny(*STAGES), replace(load("h100"), name=hostile)
    planned = replace(small(), gpu=hostile, fits=False, helps={hostile: 1.0}, assumed=hostile)
    for text in (page(planned, config, gpu), fragment(planned)):
        assert "<script" not in text
        assert text.count(escape(hostile).replace("&quot;", "&#34;")) >= 3
    assert hostile in unescape(re.findall(r"<title>(.*?)</title>", page(planned, config, gpu))[0])


def test_tables_of_the_terminal_are_shown() -> None:
    table = make_table("Compiled by XLA: ", ["bytes"], ["GiB"])
    table.add_row("state\n[bold]twice[/]", "0.17")
    text = page_of_small(compiled=[table])
    assert Page(text).table("bytes") == {"state\ntwice": ["0.17"]}
    assert "Compiled by XLA." in text


def test_a_fragment_styles_nothing_else() -> None:
    text = small()._repr_html_()
    assert not Page(text).tags & {"html", "head", "body", "title", "meta", "script", "link"}
    style = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)[0]
    rules = re.findall(r"([^{}]+)\{[^{}]*\}", re.sub(r"@media[^{]*\{", "", style))
    assert len(rules) > 20
    for selector in ",".join(rules).split(","):
        assert selector.strip().startswith(".meshwright-page"), selector


@pytest.mark.parametrize(
    ("overrides", "gpus_per_node"),
    [
        (("mesh={data: 8, tensor: 2}",), 8),
        (("mesh={data: 4, tensor: 2}",), 2),
        (("mesh={pipeline: 2, data: 2, tensor: 2}",), 4),
    ],
)
def test_axes_run_over_the_links_that_the_plan_has(overrides: tuple[str, ...], gpus_per_node: int) -> None:
    planned = plan(tiny(*overrides), gpus_per_node=gpus_per_node)
    sent = {one.axes[0]: one.link for one in planned.wire if len(one.axes) == 1}
    assert {axis.name: axis.link for axis in nodes.axes(planned.mesh, gpus_per_node)} == sent


def places(svg: str) -> list[list[str]]:
    """What stands in each row of GPUs, node by node."""
    return re.findall(r">([a-z]\d+)<", svg)


def test_every_gpu_of_a_node_has_its_place() -> None:
    mesh = {"pipeline": 2, "replica": 1, "data": 2, "expert": 1, "context": 1, "tensor": 2}
    drawn = nodes.picture(mesh, 4).svg()
    assert places(drawn) == 2 * ["d0", "t0", "d0", "t1", "d1", "t0", "d1", "t1"]
    assert ">node 0: pipeline 0<" in drawn
    assert ">node 1: pipeline 1<" in drawn


def test_titles_of_nodes_are_whole() -> None:
    """Of nodes with one GPU, too, whose boxes would be small."""
    shown = nodes.picture(dict.fromkeys(AXES, 1) | {"pipeline": 12, "replica": 16, "data": 100}, 1)
    titles = [shape for shape in shown.shapes if isinstance(shape, Label) and "pipeline" in shape.text]
    boxes = [shape for shape in shown.shapes if isinstance(shape, Rect) and shape.colour == "idle"]
    assert len(titles) == len(boxes) == nodes.MOST_NODES
    for title, box in zip(titles, boxes, strict=True):
        assert title.x + 7.5 * len(title.text) < box.x + box.width


def test_why_there_are_two_bubbles_is_said() -> None:
    _, page = made("bloom-176b")
    assert "Its bubble is a part of the time that a stage is at work" in page


@pytest.mark.parametrize(("gpus_per_node", "more"), [(8, "and 277 more nodes"), (72, "and 8 more GPUs"), (5000, "")])
def test_many_gpus_stay_legible(gpus_per_node: int, more: str) -> None:
    mesh = {"pipeline": 35, "replica": 1, "data": 8, "expert": 1, "context": 1, "tensor": 8}
    picture = nodes.picture(mesh, gpus_per_node)
    assert len(picture.shapes) < 1000
    assert picture.width < 1000
    assert more in picture.svg()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("gpu", ["a100", "b200"])
def test_no_work_is_above_the_roof(dtype: str, gpu: str) -> None:
    arrangement, kind = Arrangement.of(tiny(*STAGES, f"precision.compute={dtype}")), load(gpu)
    reached, peak = (roof(kind, arrangement.itemsize) for roof in (roofline.reached, roofline.peak))
    found = roofline.parts(arrangement, kind, 8)
    assert [work.name for work in found] == ["matmul", "attention", "elementwise", "optimizer"]
    for work in found:
        assert work.speed <= reached.at(work.intensity) * (1 + 1e-9) <= peak.at(work.intensity)


def test_large_matmuls_and_attention_on_the_chip_are_under_the_flat_roof() -> None:
    arrangement, kind = Arrangement.of(Config.load(ROOT / "configs/bloom-176b.yaml"), MEGATRON_CORE), load("a100")
    matmul, attention, *_ = roofline.parts(arrangement, kind, 8)
    reached = roofline.reached(kind, arrangement.itemsize)
    assert min(matmul.intensity, attention.intensity) > reached.ridge
    assert 0.9 < matmul.speed / reached.flops < 1
    assert 0.4 < attention.speed / reached.flops < kind.efficiency.attention


def test_the_config_stands_among_its_alternatives() -> None:
    asked, gpu = Config.load(ROOT / "configs/gpt2-124m.yaml"), load("a100")
    planned = plan(asked, "a100")
    for found in (alternatives.micro_batches(asked, gpu, 8), alternatives.meshes(asked, gpu, 8)):
        (own,) = (layout for layout in found if layout.own)
        assert own.estimate.seconds == planned.seconds
        assert len(found) > 3
    seconds = [layout.estimate.seconds.total for layout in alternatives.meshes(asked, gpu, 8)]
    assert seconds == sorted(seconds)
    micros = [layout.estimate.arrangement.micro_batch for layout in alternatives.micro_batches(asked, gpu, 8)]
    assert micros == [2, 4, 8, 16, 32, 64]


def test_the_same_plan_is_the_same_page_beside_what_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.html"
    show_plan(tiny(*STAGES), "h100", None, 8, html=file)
    assert f"written to {file}" in capsys.readouterr().out
    assert file.read_bytes() == page_of_small().encode()


@pytest.mark.parametrize("place", ["none/plan.html", "folder.html"])
def test_where_it_cannot_be_written_is_said_before_the_work(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.planner.show_plan.plan", lambda *_: pytest.fail("work was done"))
    (tmp_path / "folder.html").mkdir()
    result = CliRunner().invoke(app, ["plan", str(ROOT / "configs/quickstart.yaml"), "--html", str(tmp_path / place)])
    assert result.exit_code == 2
    assert re.fullmatch(
        r"error: --html .* cannot be written \(.*\); name a file in a folder that is there\n", result.stderr
    )
    assert [found.name for found in tmp_path.iterdir()] == ["folder.html"]


def test_a_page_overwrites_no_file_of_another_kind(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("model: {layers: 2}\n")
    result = CliRunner().invoke(app, ["plan", str(config), "--html", str(config)])
    assert (result.exit_code, "name a file that ends in .html or .htm" in result.stderr) == (2, True)
    assert config.read_text() == "model: {layers: 2}\n"


def test_published_runs_have_no_page(tmp_path: Path) -> None:
    runs = str(ROOT / "trainer/planner/published_runs.csv")
    result = CliRunner().invoke(app, ["plan", "--published", runs, "--html", str(tmp_path / "a.html")])
    assert (result.exit_code, "--html: of a CONFIG; leave it out with --published" in result.stderr) == (2, True)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
@pytest.mark.parametrize("name", ASKED)
def test_a_browser_finds_no_fault_on_a_desk_and_on_a_phone(name: str, tmp_path: Path) -> None:
    _, text = made(name)
    title, console = browse(tmp_path, text)
    pictures = len(images(text))
    assert title == f"1200 1200 {pictures} {pictures};400 400 {pictures} {pictures}"
    assert console == ""


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_a_browser_would_find_faults(tmp_path: Path) -> None:
    _, text = made("llama3-8b")
    wide = '<div style="width:2000px">-</div><img src="https://example.invalid/a.png" alt="-">'
    title, console = browse(tmp_path, text.replace("<footer>", f"{wide}<footer>"))
    pictures = len(images(text))
    assert re.fullmatch(rf"1200 2\d+ {pictures + 1} {pictures};400 2\d+ {pictures + 1} {pictures}", title)
    assert "Content Security Policy" in console
