"""The page of a run: its numbers are those of the folder, whatever state that is in, and a browser finds no fault."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Callable
from functools import cache
from html import unescape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.trainer.page.reader import BROWSER, Page, browse, images
from tests.trainer.report import made
from trainer.cli import app
from trainer.errors import ConfigError
from trainer.folder_lock import IN_USE, FolderLock
from trainer.report import page, story
from trainer.report.columns import read_columns
from trainer.report.folder import Run, read_run
from trainer.report.goodput import NEW, OTHER, goodput

NOW = made.BEGAN + 1000
KINDS = ["loss", "eval_loss"]


@cache
def whole() -> tuple[Run, str]:
    """A run with all that there can be, and its page."""
    with TemporaryDirectory() as folder:
        run = read_run(made.write(Path(folder, "run")))
        return run, page(run, NOW)


def page_of(folder: Path, now: float = NOW) -> str:
    return page(read_run(folder), now)


def sentence(text: str) -> str:
    (found,) = re.findall(r"<h1[^>]*>(.*?)</h1>", text)
    return unescape(found)


def facts(text: str) -> dict[str, str]:
    return dict(re.findall(r'<dt>(.*?)</dt><dd class="value">(.*?)</dd>', text))


def test_the_facts_are_those_of_the_folder() -> None:
    run, text = whole()
    assert sentence(text) == "made is finished: step 400 of 400, loss 2.040."
    assert facts(text) == {
        "loss": "2.0404",
        "loss on held-out text": "2.5000",
        "tokens trained on": "409,600",
        "tokens per second": "2,048",
        "MFU": "40.0%",
        "goodput": "46.6%",
        "skipped steps": "1",
        "starts": "3",
    }
    assert f"{409_600 / 3_520_323:.3g} times the corpus" in text
    assert "checkpoint at step 400" in text
    data = Page(text).table("what")
    assert {name: data[name] for name in ("documents", "documents held out", "tokens", "hash")} == {
        "documents": ["731"],
        "documents held out": ["15"],
        "tokens": ["3.52 million"],
        "hash": ["5fbfe266b488"],
    }
    assert run.checkpoints == [200, 400]


def test_every_second_is_counted_once() -> None:
    run, text = whole()
    spent = goodput(run)
    assert spent
    steps = (99 + 99 + 199) * made.STEP_SECONDS  # all but the first of each start
    assert spent.parts == {
        NEW: steps - 2 - 0.5,  # the save was within them, and the skipped step
        "starting": 10 + 5 + 1,
        "compiling": 60,
        "evaluation": 10,
        "saving": 2,
        "data": 0,
        "skipped": 0.5,
        "twice": 15,
        "down": (200 - 105) + (300 - 276),
        OTHER: 2,
    }
    assert spent.wall == pytest.approx(420.5)
    table = Page(text).table("goes into")
    assert table[NEW][:2] == ["3.3 min", "46.6%"]
    assert "data" not in table, "what took no time"
    (bar,) = Page(text).bars
    assert sum(width for _, width in bar) == pytest.approx(100, abs=1e-3)


def test_time_that_steps_waited_for_data_is_told(tmp_path: Path) -> None:
    records = [record | {"data_seconds": 1.0} if "loss" in record else record for record in made.metrics()]
    spent, before = goodput(read_run(made.write(tmp_path / "run", records=records))), goodput(whole()[0])
    assert spent
    assert before
    waited = sum("data_seconds" in record for record in records)
    assert spent.parts["data"] == waited
    assert spent.parts[NEW] == before.parts[NEW] - waited


def test_a_step_trained_twice_is_shown_once(tmp_path: Path) -> None:
    first = [{"step": step, "loss": float(step)} for step in range(1, 31)]
    again = [{"step": step, "loss": 100.0 + step} for step in range(21, 41)]
    evaluated = [{"step": 20, "eval_loss": 1.0}, {"step": 30, "eval_loss": 2.0}]
    lines = first[:20] + evaluated[:1] + first[20:] + evaluated[1:] + again[:10] + [{"step": 30, "eval_loss": 3.0}]
    made.write_lines(tmp_path / "a.jsonl", lines + again[10:])
    found = read_columns(tmp_path / "a.jsonl", KINDS)
    np.testing.assert_array_equal(found["loss"].step, np.arange(1, 41))
    np.testing.assert_array_equal(found["loss"]["loss"], [*range(1, 21), *range(121, 141)])
    np.testing.assert_array_equal(found["eval_loss"]["eval_loss"], [1.0, 3.0])


@pytest.mark.parametrize(
    "torn", ['{"step": 410, "lo', "\0\0\0", "{", "[1, 2]\n", '{"loss": 1}\n', '{"step": "x"}\n', "\xff"]
)
def test_a_killed_run_has_its_page(torn: str, tmp_path: Path) -> None:
    folder = made.write(tmp_path / "run")
    for name in ("metrics.jsonl", "events.jsonl"):
        with (folder / name).open("ab") as file:
            file.write(torn.encode("latin-1"))
    assert facts(page_of(folder)) == facts(whole()[1])


def test_numbers_that_are_none_are_gaps(tmp_path: Path) -> None:
    odd = [None, "text", [1], 10**400, True, float("nan")]
    records = [made.training(step, None, loss=value) for step, value in enumerate(odd, 1)]
    made.write_lines(tmp_path / "a.jsonl", [*records, made.training(7, None)])
    column = read_columns(tmp_path / "a.jsonl", KINDS)["loss"]
    assert np.flatnonzero(np.isfinite(column["loss"])).tolist() == [4, 6]
    assert column.last("grad_norm") == pytest.approx(1 + 1 / 7)


def test_a_loss_that_is_not_finite_any_more_is_not_hidden_by_the_last_that_was(tmp_path: Path) -> None:
    records = [*made.metrics(), made.training(401, made.BEGAN + 600, loss=None)]
    text = page_of(made.write(tmp_path / "run", records=records))
    assert sentence(text).endswith("loss not finite.")
    assert facts(text)["loss"] == "not finite"


def test_a_run_that_kept_no_events_has_all_but_its_time(tmp_path: Path) -> None:
    text = page_of(made.write(tmp_path / "run", with_events=False))
    before = facts(whole()[1])
    assert facts(text) == {name: value for name, value in before.items() if name != "goodput"}
    assert "What happened" not in text
    assert not Page(text).bars


@pytest.mark.parametrize("files", [("config.yaml",), ("config.yaml", "environment.json"), ("metrics.jsonl",)])
def test_an_empty_run_is_a_sentence(files: tuple[str, ...], tmp_path: Path) -> None:
    folder = made.write(tmp_path / "run", records=[], with_events=False)
    for file in folder.iterdir():
        if file.is_file() and file.name not in files:
            file.unlink()
    text = page_of(folder)
    assert sentence(text).endswith(" has not trained a step yet.")
    assert not facts(text)


@pytest.mark.parametrize("name", ["config.yaml", "environment.json", "metrics.jsonl", "events.jsonl"])
@pytest.mark.parametrize("content", ["", "{", "[]", "null", "[[1], null, 3]", "a: [1", '{"step": {}}', "\0"])
def test_a_damaged_file_spoils_no_page(name: str, content: str, tmp_path: Path) -> None:
    folder = made.write(tmp_path / "run")
    (folder / name).write_text(content)
    assert "<h1" in page_of(folder)


STANDS: dict[str, tuple[list[dict[str, object]], float, str]] = {
    "trains": ([], 30, "made trains: step 390 of 400, loss 2.046."),
    "silent": ([], 7200, "made was last seen 2.0 h ago: step 390 of 400, loss 2.046."),
    "stopped": (
        [made.event(515, "signal", 390, signal="SIGTERM"), made.event(516, "end", 390, reason="signal")],
        7200,
        "made was ended by SIGTERM: step 390 of 400, loss 2.046.",
    ),
    "hung": (
        [made.event(516, "watchdog", 390, phase="waiting for the devices", process=0)],
        7200,
        "made hung and was ended by its watchdog: step 390 of 400, loss 2.046.",
    ),
    "failed": (
        [made.event(516, "end", 390, reason="the disk is full\nmore")],
        7200,
        "made was ended by an error (the disk is full): step 390 of 400, loss 2.046.",
    ),
}


@pytest.mark.parametrize("stands", STANDS)
def test_the_sentence_says_how_it_stands(stands: str, tmp_path: Path) -> None:
    more, after, expected = STANDS[stands]
    records = [record for record in made.metrics() if record["step"] <= 390]
    folder = made.write(tmp_path / "run", records=records)
    (folder / "checkpoints" / "400").rmdir()
    made.write_lines(folder / "events.jsonl", [*made.EVENTS, *more])
    seen = max(records[-1]["time"], *(event["time"] for event in (*made.EVENTS, *more)))
    assert sentence(page_of(folder, seen + after)) == expected


SEEN = made.BEGAN + 600


def signed(folder: Path, step: int, host: str | None = None) -> Path:
    """A run whose last sign of life came after `step`, at SEEN."""
    records = [record for record in made.metrics() if record["step"] <= 390]
    made.write(folder, records=records)
    (folder / "checkpoints" / "400").rmdir()
    sign = {"step": step, "time": SEEN, "host": host or platform.node()}
    (folder / IN_USE).write_text(json.dumps(sign).ljust(512))
    return folder


@pytest.mark.parametrize("after", [1, 7200])
def test_a_process_that_was_killed_is_told_at_once_with_what_is_lost(tmp_path: Path, after: float) -> None:
    """Nobody has the folder, and no end was told; the last steps were never logged."""
    folder = signed(tmp_path / "run", 397)
    text = page_of(folder, SEEN + after)
    assert sentence(text) == "made was killed, or its machine failed: step 390 of 400, loss 2.046."
    assert facts(text)["lost steps"] == "197"
    assert "of the process that was killed: it goes on from the checkpoint of step 200" in text
    spent = goodput(read_run(folder))
    assert spent
    assert spent.parts["twice"] == 15 + 197 * made.STEP_SECONDS
    assert spent.parts[NEW] == (99 + 99) * made.STEP_SECONDS - 2 - 0.5 - made.STEP_SECONDS, "those that are saved"
    assert ["killed", "397", "lost steps 197, reason no end was told: a process was killed, or a machine failed"] in [
        row[1:] for table in Page(text).tables for row in table.rows
    ]


def test_a_run_that_was_started_again_tells_each_kill() -> None:
    """The first start of three; the second was stopped, and the third is done."""
    killed = [event for event in story.happened(whole()[0]) if event.what == "killed"]
    assert [(event.step, event.when) for event in killed] == [(130, story.written(made.BEGAN + 105))]
    assert story.counted(whole()[0])["killed"] == 1


@pytest.mark.parametrize("stands", ["trains, silent", "another machine"])
def test_only_a_folder_that_is_known_to_be_free_was_left_by_a_kill(stands: str, tmp_path: Path) -> None:
    folder = signed(tmp_path / "run", 397, host="far" if stands == "another machine" else None)
    lock = FolderLock(folder)
    if stands == "trains, silent":
        lock.take()
    text = page_of(folder, SEEN + 7200)
    lock.close()
    assert sentence(text).startswith("made trains" if stands == "trains, silent" else "made was last seen 2.0 h ago")
    assert "lost steps" not in facts(text)


@pytest.mark.parametrize("sign", ["", "{", "[]", '{"step": {}, "time": 0, "host": ""}', '{"step": 1e999}', "\0"])
def test_a_sign_that_cannot_be_read_is_none(sign: str, tmp_path: Path) -> None:
    folder = made.write(tmp_path / "run")
    (folder / IN_USE).write_text(sign)
    assert facts(page_of(folder)) == facts(whole()[1])


def test_what_is_logged_has_its_picture_and_what_is_not_has_none(tmp_path: Path) -> None:
    def titles(records: list[dict[str, Any]], name: str) -> list[str]:
        text = page_of(made.write(tmp_path / name, records=records))
        return [re.findall(r"<title>(.*?)</title>", picture)[0] for picture in images(text)]

    always = ["Loss, nats per token", "Gradient norm, before clipping", "Learning rate", "Tokens per second"]
    steps, over_time = range(1, 50), "Steps over minutes"
    full = [made.training(step, made.BEGAN + step, loss_scale=2.0**step) for step in steps]
    assert titles(full, "full") == [*always, "Memory, GiB", "Loss scale", over_time]
    plain = [{name: x for name, x in made.training(step, None).items() if "bytes" not in name} for step in steps]
    assert titles(plain, "plain") == always
    only = [made.training(step, None, device_bytes=None) for step in steps]
    assert titles(only, "only") == [*always, "Memory of the process, GiB"]
    long = [made.training(step, None) for step in range(1, 200)]
    assert titles(long, "long") == [always[0], "The second half", *always[1:], "Memory, GiB"]


def test_a_long_run_is_a_page_below_a_megabyte(tmp_path: Path) -> None:
    steps = range(1, 50_001)
    folder = made.write(tmp_path / "run", records=[made.training(step, made.BEGAN + step) for step in steps])
    many = [made.event(float(step), "skip", step, loss=None) for step in steps]
    made.write_lines(folder / "events.jsonl", made.EVENTS + many)
    text = page_of(folder)
    assert len(text) < 250_000
    assert "skip: 50,001" in text


HOSTILE = '<script>alert("1")</script>'


def test_what_the_folder_says_is_no_markup(tmp_path: Path) -> None:
    folder = made.write(tmp_path / "run")
    (folder / "config.yaml").write_text(
        f"run: {{name: '{HOSTILE}'}}\ndata: {{path: '{HOSTILE}', tokenizer: '{HOSTILE}'}}\n"
    )
    changes = dict.fromkeys(("start", "python", "host", "data_hash", "git_commit"), HOSTILE)
    start = made.environment(made.BEGAN, devices=[HOSTILE], packages={"jax": HOSTILE}, **changes)
    (folder / "environment.json").write_text(json.dumps([start]))
    event = made.event(600, HOSTILE, 400, **{HOSTILE: HOSTILE})
    made.write_lines(folder / "events.jsonl", [*made.EVENTS, event, made.event(601, "end", 400, reason=HOSTILE)])
    text = page_of(folder)
    assert "<script" not in text
    assert text.count("&lt;script&gt;") >= 12
    assert not any("<script" in picture for picture in images(text))


def test_secrets_of_an_older_run_are_not_shown(tmp_path: Path) -> None:
    secret = "s3cr3t0123456789"
    folder = made.write(tmp_path / "run")
    (folder / "config.yaml").write_text(
        f"run: {{name: a, wandb: {{api_key: {secret}}}}}\ndata: {{path: 's3://me:{secret}@bucket/a'}}\n"
    )
    failed = made.event(600, "failed_save", 400, reason=f"no https://me:{secret}@host/a")
    ended = made.event(601, "end", 400, reason=f"api_key={secret} is wrong")
    made.write_lines(folder / "events.jsonl", [*made.EVENTS, failed, ended])
    assert secret not in page_of(folder)


def test_a_page_needs_nothing_but_itself() -> None:
    _, text = whole()
    read = Page(text)
    assert not read.tags & {"script", "link", "iframe", "object", "embed", "base", "form"}
    assert len(read.addresses) == len(read.alts) == 6
    assert all(address.startswith("data:image/svg+xml;base64,") for address in read.addresses)
    assert not re.search(r"https?:|@import|url\(|\son\w+=", text)
    for table in read.tables:
        assert table.caption.strip()
        assert {len(row) for row in table.rows} == {len(table.rows[0])}, table.caption


def test_the_command_writes_it_into_the_folder_or_where_it_is_told_to(tmp_path: Path) -> None:
    folder = made.write(tmp_path / "run")
    result = CliRunner().invoke(app, ["report", str(folder)])
    assert (result.exit_code, result.output) == (0, f"written to {folder / 'report.html'}\n")
    result = CliRunner().invoke(app, ["report", str(folder), "--out", str(tmp_path / "a.html")])
    assert result.exit_code == 0
    assert "made is finished" in (tmp_path / "a.html").read_text()


Wrong = Callable[[Path], list[str]]
WRONG: dict[str, tuple[Wrong, str]] = {
    "no folder": (lambda path: [str(path / "none")], "is no folder; give the folder of a run"),
    "no run": (lambda path: [str(path)], "holds no config.yaml, so it is no run's folder"),
    "no ending": (lambda path: [str(path / "run"), "--out", str(path / "a.txt")], "name a file that ends in .html"),
    "no place": (lambda path: [str(path / "run"), "--out", str(path / "b/a.html")], "no such folder"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_done_is_said(wrong: str, tmp_path: Path) -> None:
    made.write(tmp_path / "run")
    args, said = WRONG[wrong]
    result = CliRunner().invoke(app, ["report", *args(tmp_path)])
    assert result.exit_code == 2
    assert said in result.stderr


def test_no_run_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        read_run(tmp_path)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_a_browser_finds_no_fault_on_a_desk_and_on_a_phone(tmp_path: Path) -> None:
    title, console = browse(tmp_path, whole()[1])
    assert title == "1200 1200 6 6;400 400 6 6"
    assert console == ""
