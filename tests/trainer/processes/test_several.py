"""Runs of several processes on this machine: they train as one does, and end as one does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.trainer import small
from trainer import Config, Trainer
from trainer.lines import read_jsonl
from trainer.processes.children import Children, Command
from trainer.processes.supervisor import local_start

ROOT = Path(__file__).parents[3]
STEPS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the text, and a config of four virtual devices."""
    folder = tmp_path_factory.mktemp("several")
    tree = small.tree(small.write_text(folder / "text"), folder / "run")
    tree |= {"mesh": {"data": 4, "virtual_devices": 4}, "elastic": {"data": [2, 4]}}
    tree["train"] = {"steps": STEPS, "log_every": 1, "checkpoint_every": 2}
    (folder / "config.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    return folder


def meshwright(folder: Path, run: str, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trainer", "train", str(folder / "config.yaml"), f"run.dir={folder / run}", *args],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def numbers(run: Path) -> list[tuple[Any, ...]]:
    """Of each logged step: its number, loss and gradient norm."""
    return [(record["step"], record["loss"], record["grad_norm"]) for record in read_jsonl(run / "metrics.jsonl")]


def starts(run: Path) -> list[dict[str, Any]]:
    return json.loads((run / "environment.json").read_text())


@pytest.fixture(scope="module")
def of_one(folder: Path) -> list[tuple[Any, ...]]:
    """What one process trains, with another number of virtual devices beside."""
    config = Config.load(folder / "config.yaml", [f"run.dir={folder / 'one'}"])
    Trainer(config).train()
    return numbers(folder / "one")


@pytest.fixture(scope="module")
def of_four(folder: Path) -> list[tuple[int, int, int, int]]:
    """Four processes train two steps in the folder `four`; process, step, first and last row of all that they read."""
    config, notes = Config.load(folder / "config.yaml"), folder / "notes"
    start = local_start(config, folder / "config.yaml", [f"run.dir={folder / 'four'}", "train.steps=2"], 4, 0)
    paths = {"NOTES": str(notes), "PYTHONPATH": str(ROOT)}
    noting = sys.executable, str(Path(__file__).with_name("noting.py"))
    commands = [Command((*noting, *one.argv[4:]), {**one.environment, **paths}) for one in start]
    with Children(commands) as children:
        end = children.wait()
    assert end.code == 0, end
    return [tuple(map(int, line.split())) for line in Path(f"{notes}.rows").read_text().splitlines()]  # type: ignore[misc]


@pytest.fixture(scope="module")
def of_two(folder: Path) -> subprocess.CompletedProcess[str]:
    """Two processes train all steps in the folder `two`. One of them is killed after step 2, and all are started again,
    with half of the devices."""
    killer = folder / "killer"
    killer.mkdir()
    (killer / "sitecustomize.py").write_text(KILLER)
    return meshwright(
        folder,
        "two",
        "--processes",
        "2",
        "--restarts",
        "1",
        PYTHONPATH=f"{killer}:{ROOT}",
        MESHWRIGHT_DEVICES_LEFT="4,2",
    )


# Ends process 1 of the first start as a machine would, once the checkpoint of step 2 is there.
KILLER = """
import os, pathlib, signal, sys, threading, time
def kill():
    run = next(arg.removeprefix("run.dir=") for arg in sys.argv if arg.startswith("run.dir="))
    while not pathlib.Path(run, "checkpoints", "2").exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
if os.environ.get("MESHWRIGHT_PROCESS") == "1" and "MESHWRIGHT_RESTARTED_BECAUSE" not in os.environ:
    threading.Timer(0.5, kill).start()
"""


def test_each_row_is_read_by_one_process(of_four: list[tuple[int, int, int, int]]) -> None:
    for step in (0, 1):
        spans = sorted((low, high, process) for process, at, low, high in of_four if at == step)
        assert spans == [(2 * process, 2 * process + 2, process) for process in range(4)]


def test_four_processes_train_as_one(
    folder: Path, of_four: list[tuple[int, int, int, int]], of_one: list[tuple[Any, ...]]
) -> None:
    """Gloo adds the same numbers in another order than threads of one process do."""
    for four, one in zip(numbers(folder / "four"), of_one[:2], strict=True):
        assert four == pytest.approx(one, rel=1e-6)


SCRIPT = """
import sys
from trainer import Config, Trainer
for metrics in Trainer(Config.load(sys.argv[1], sys.argv[2:])).steps(2):
    print(float(metrics.loss))
"""


def test_processes_of_a_script_join_when_something_is_asked(folder: Path, of_one: list[tuple[Any, ...]]) -> None:
    """Without a command that joins them first."""
    path, overrides = folder / "config.yaml", [f"run.dir={folder / 'script'}"]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(path), *overrides],
            cwd=ROOT,
            env=os.environ | command.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for command in local_start(Config.load(path), path, overrides, 2, 0)
    ]
    for process in started:
        losses = [float(line) for line in process.communicate(timeout=600)[0].splitlines()]
        assert losses == pytest.approx([loss for _, loss, _ in of_one[:2]], rel=1e-6)


def test_one_process_goes_on_where_four_have_stopped(
    folder: Path, of_four: list[tuple[int, int, int, int]], of_one: list[tuple[Any, ...]]
) -> None:
    trainer = Trainer(Config.load(folder / "config.yaml", [f"run.dir={folder / 'four'}"]))
    assert trainer.step == 2
    trainer.train()
    for went_on, one in zip(numbers(folder / "four"), of_one, strict=True):
        assert went_on == pytest.approx(one, rel=1e-5)


def test_the_run_folder_is_written_by_the_first_alone(
    folder: Path, of_four: list[tuple[int, int, int, int]], of_two: subprocess.CompletedProcess[str]
) -> None:
    assert len(starts(folder / "four")[0]["devices"]) == 4
    lines = [line for line in of_two.stdout.splitlines() if line.startswith("compiling")]
    assert len(lines) == 2, of_two.stdout  # one display for each start
    assert "Gloo" not in of_two.stdout


def test_a_killed_process_is_named_and_all_start_again(
    folder: Path, of_two: subprocess.CompletedProcess[str], of_one: list[tuple[Any, ...]]
) -> None:
    assert of_two.returncode == 0, of_two.stderr
    assert "error: process 1 was killed by SIGKILL, and the others were ended" in of_two.stderr
    assert "starts again from the newest checkpoint in 1 s (restart 1 of 1 at most)" in of_two.stderr
    assert "goes on from step 2" in of_two.stdout
    first, second = starts(folder / "two")
    assert (first["restarted_because"], second["restarted_because"]) == (None, "process 1 was killed by SIGKILL")
    assert (len(first["devices"]), len(second["devices"])) == (4, 2)  # elastic: as many as were left
    for two, one in zip(numbers(folder / "two"), of_one, strict=True):
        assert two == pytest.approx(one, rel=1e-5)


def test_the_number_of_processes_changes_no_bit(
    folder: Path, of_two: subprocess.CompletedProcess[str], of_four: list[tuple[int, int, int, int]]
) -> None:
    """Of several, that is: each device is a rank of gloo, wherever it is."""
    assert numbers(folder / "two")[:2] == numbers(folder / "four")[:2]
