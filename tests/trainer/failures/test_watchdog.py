"""Runs that really hang: they end, and say who waits for what."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.trainer import small
from trainer.lines import read_jsonl

ROOT = Path(__file__).parents[3]
HOST = socket.gethostname()
SECONDS = 5
SECONDS_TOGETHER = 14
"""Of two processes, whose first step takes as long as they need to meet."""


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.write_text(tmp_path_factory.mktemp("user") / "text")


def start(config: Path, what: str, devices: int, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.trainer.failures.hanging", what, "train", str(config)],
        cwd=ROOT,
        env=os.environ | {"JAX_NUM_CPU_DEVICES": str(devices)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def config(text: Path, folder: Path, **sections: Any) -> Path:
    tree = small.tree(text, folder / "run") | {"watchdog": {"seconds": SECONDS}} | sections
    tree["train"] = {"steps": 1000, "log_every": 1}
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return path


def test_what_hangs_in_one_process_is_named(text: Path, tmp_path: Path) -> None:
    """Both at a time, as each takes the time that it waits."""
    expected = {
        "data": ("at step 3, waiting for data", "reads_for_ever"),
        "devices": ("at step 4, waiting for the devices; nobody is behind: the devices do not answer", "_fetch"),
    }
    for what in expected:
        (tmp_path / what).mkdir()
    runs = {what: start(config(text, tmp_path / what), what, devices=8) for what in expected}
    for what, (said, function) in expected.items():
        _, errors = runs[what].communicate(timeout=120)
        assert runs[what].returncode == 1
        assert re.search(rf"error: nothing has moved for \d+ s: process 0 on {HOST} is {said}", errors)
        stacks = (tmp_path / what / "run/watchdog/process-0.txt").read_text()
        assert "nothing has moved" in stacks
        assert function in stacks
        *_, event = read_jsonl(tmp_path / what / "run/events.jsonl")
        assert event["event"] == "watchdog"
        assert event["seconds_lost"] >= SECONDS


def test_an_order_to_end_is_carried_out_though_the_devices_hang(text: Path, tmp_path: Path) -> None:
    run = start(config(text, tmp_path, watchdog={"seconds": None}), "devices", devices=8)
    assert run.stdout is not None
    while run.stdout.readline().split()[:1] != ["3"]:  # step 4 hangs
        assert run.poll() is None
    time.sleep(0.5)
    run.send_signal(signal.SIGINT)
    while "SIGINT: finishing the step" not in run.stdout.readline():
        assert run.poll() is None
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=30)
    assert run.returncode == 128 + signal.SIGINT
    assert "ended at once, without saving" in errors


def test_a_process_that_is_stopped_is_named_by_the_other(text: Path, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    path = config(
        text,
        tmp_path,
        mesh={"data": 4},
        watchdog={"seconds": SECONDS_TOGETHER, "compile_seconds": 2 * SECONDS_TOGETHER},
    )
    place = {"MESHWRIGHT_COORDINATOR": address, "MESHWRIGHT_PROCESSES": "2"}
    place["MESHWRIGHT_LOST_AFTER"] = "100"  # or who watches over the processes says it first
    runs = [start(path, "nothing", devices=2, **place, MESHWRIGHT_PROCESS=str(number)) for number in (0, 1)]
    try:
        metrics = tmp_path / "run/metrics.jsonl"
        while not metrics.exists() or len(metrics.read_text().splitlines()) < 3:
            assert runs[0].poll() is None, runs[0].communicate()
            time.sleep(0.1)
        runs[1].send_signal(signal.SIGSTOP)
        stopped = time.monotonic()
        _, errors = runs[0].communicate(timeout=120)
    finally:
        for run in runs:
            run.kill()
        runs[1].communicate()
    assert runs[0].returncode == 1
    assert time.monotonic() - stopped < 5 * SECONDS_TOGETHER
    assert re.search(rf"nothing has moved for \d+ s: process 0 on {HOST} is at step ", errors)
    assert f"; process 1 on {HOST} gives no sign of life, and was at step " in errors
    *_, event = read_jsonl(tmp_path / "run/events.jsonl")
    assert (event["event"], event["behind"]) == ("watchdog", [1])
