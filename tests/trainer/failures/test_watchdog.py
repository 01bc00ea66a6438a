"""Runs that really hang: they end, and say who waits for what."""

from __future__ import annotations

import os
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
from trainer.sinks import read_jsonl

ROOT = Path(__file__).parents[3]
SECONDS = 5
SECONDS_TOGETHER = 10
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
        assert f"error: nothing has moved for {SECONDS} s: process 0 on {socket.gethostname()} is {said}" in errors
        stacks = (tmp_path / what / "run/watchdog/process-0.txt").read_text()
        assert "nothing has moved" in stacks
        assert function in stacks
        *_, event = read_jsonl(tmp_path / what / "run/events.jsonl")
        assert event["event"] == "watchdog"
        assert event["seconds_lost"] >= SECONDS


def test_a_process_that_is_stopped_is_named_by_the_other(text: Path, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    path = config(text, tmp_path, mesh={"data": 4}, watchdog={"seconds": SECONDS_TOGETHER})
    place = {"MESHWRIGHT_COORDINATOR": address, "MESHWRIGHT_PROCESSES": "2"}
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
    assert time.monotonic() - stopped < 3 * SECONDS_TOGETHER
    host = socket.gethostname()
    assert f"nothing has moved for {SECONDS_TOGETHER} s: process 0 on {host} is at step " in errors
    assert f"; process 1 on {host} gives no sign of life, and was at step " in errors
    *_, event = read_jsonl(tmp_path / "run/events.jsonl")
    assert (event["event"], event["behind"]) == ("watchdog", [1])
