"""Processes on other hosts, by an ssh that stays here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trainer.test_cli import GOLDEN, ROOT, meshwright
from trainer.errors import ConfigError
from trainer.processes.children import Children, Command, End
from trainer.processes.hosts import Host, read_hosts
from trainer.processes.remote import remote_commands

SSH = """#!/bin/sh
# As ssh does: all words after the host are one line for the shell there.
while [ "${1#-}" != "$1" ]; do shift 2; done
echo "$1" >> "{folder}/log"
shift
exec env -i sh -c "$*"
"""
# Stands for Python. Says where it stands, and runs until it is told to stop.
PYTHON = """#!/bin/sh
echo "$MESHWRIGHT_GREETING" >&2
echo "$PWD $MESHWRIGHT_COORDINATOR $MESHWRIGHT_PROCESS/$MESHWRIGHT_PROCESSES $MESHWRIGHT_INDEX_ON_HOST/\
$MESHWRIGHT_ON_HOST '$SPECIAL' '$SECRET' $*" > "{folder}/$MESHWRIGHT_PROCESS"
echo $$ >> "{folder}/pids"
{then}
"""
WAITS = "trap 'exit 143' TERM; while :; do sleep 0.05; done"


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("gpu01\ngpu02\n", [Host("gpu01", 1), Host("gpu02", 1)]),
        ("# ours\n\nroot@10.0.0.1 slots=8  # fast\n[::1]  slots=2", [Host("root@10.0.0.1", 8), Host("[::1]", 2)]),
    ],
)
def test_a_file_of_hosts(tmp_path: Path, text: str, hosts: list[Host]) -> None:
    (tmp_path / "hosts").write_text(text)
    assert read_hosts(tmp_path / "hosts") == hosts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\nb slots=0", r":2: 'b slots=0' is not a host; write HOST, or HOST slots=PROCESSES"),
        ("-oProxyCommand=evil", r":1: '-oProxyCommand=evil' is not a host"),
        ("a b", r":1: 'a b' is not a host"),
        ("a\na", "a stands there twice; give it one line with slots=N"),
        ("# nothing\n", "names no host"),
    ],
)
def test_what_is_no_host_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_hosts(tmp_path / "hosts")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_hosts(tmp_path / "hosts")


Launch = Callable[[str], list[Command]]


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launch:
    """Three processes on two hosts, whose Python does something else."""

    def commands(then: str) -> list[Command]:
        for name, text in {"ssh": SSH, "python": PYTHON}.items():
            (tmp_path / name).write_text(text.replace("{folder}", str(tmp_path)).replace("{then}", then))
            (tmp_path / name).chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
        monkeypatch.setenv("SPECIAL", "it's $HOME; `date`")
        monkeypatch.setenv("SECRET", "nobody's business")
        hosts = [Host("me@first", 2), Host("second", 1)]
        return remote_commands(["train", "a config.yaml"], hosts, f"{tmp_path}/ssh -p 22", 29500, ["SPEC*"])

    return commands


def appear(folder: Path, count: int) -> list[int]:
    """The ids of so many processes that run there."""
    deadline = time.monotonic() + 20
    while not (folder / "pids").exists() or len((folder / "pids").read_text().split()) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return [int(pid) for pid in (folder / "pids").read_text().split()]


def is_there(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def disappear(pids: list[int]) -> None:
    deadline = time.monotonic() + 20
    while any(map(is_there, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_each_process_is_told_its_place(launch: Launch, tmp_path: Path) -> None:
    with Children(launch("exit 0")) as children:
        assert children.wait() == End(0, 0)
    told = [(tmp_path / str(process)).read_text() for process in range(3)]
    rest = "'it's $HOME; `date`' '' -P -m trainer train a config.yaml\n"
    assert told == [
        f"{os.getcwd()} first:29500 {process}/3 {index}/{slots} {rest}"
        for process, (index, slots) in enumerate([(0, 2), (1, 2), (0, 1)])
    ]
    assert sorted((tmp_path / "log").read_text().split()) == ["me@first", "me@first", "second"]


def test_no_value_is_in_a_list_of_processes(launch: Launch) -> None:
    for command in launch("exit 0"):
        assert command.argv[1:] in [("-p", "22", host, "sh", "-s") for host in ("me@first", "second")]


@pytest.mark.parametrize("code", [1, 2])
def test_a_failure_there_ends_the_others(launch: Launch, tmp_path: Path, code: int) -> None:
    then = f'[ $MESHWRIGHT_PROCESS = 2 ] && {{ echo "no disk" >&2; exit {code}; }}; {WAITS}'
    with Children(launch(then)) as children:
        end = children.wait()
    assert (end.process, end.code, end.lines) == (2, code, ("no disk",))
    disappear(appear(tmp_path, 3))


def test_a_signal_reaches_all_and_their_codes_come_back(launch: Launch, tmp_path: Path) -> None:
    with Children(launch(WAITS)) as children:
        appear(tmp_path, 3)
        children.send(signal.SIGTERM)
        assert children.wait().code == 143


def test_what_was_killed_there_is_said_as_here(launch: Launch, tmp_path: Path) -> None:
    with Children(launch(WAITS)) as children:
        os.kill(appear(tmp_path, 3)[0], signal.SIGKILL)
        end = children.wait()
    assert end.how == f"process {end.process} was killed by SIGKILL"


def test_nothing_is_left_there_when_this_program_is_gone(launch: Launch, tmp_path: Path) -> None:
    with Children(launch(WAITS)):
        pids = appear(tmp_path, 3)
    disappear(pids)


def test_the_script_for_sbatch(tmp_path: Path) -> None:
    """After a change that is meant: UPDATE_GOLDEN=1."""
    arguments = ["configs/llama3-8b.yaml", "data.path=my text/*.jsonl", "--nodes", "2", "--gpus-per-node", "8"]
    result = meshwright("slurm", *arguments, "--out", str(tmp_path / "job.sbatch"))
    assert (result.returncode, result.stderr) == (0, "")
    text = (tmp_path / "job.sbatch").read_text().replace(sys.executable, "PYTHON")
    golden = GOLDEN / "llama3-8b.sbatch"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()
    subprocess.run(["bash", "-n", golden], check=True, cwd=ROOT)


def test_a_mesh_of_another_size_gets_no_script() -> None:
    result = meshwright("slurm", "configs/bloom-176b.yaml", "--nodes", "2", "--gpus-per-node", "8")
    assert result.returncode == 2
    assert "needs 384 devices, and there are 16" in result.stderr


def test_only_commands_that_use_devices_are_launched() -> None:
    result = meshwright("launch", "--hosts", "none", "--", "plan", "x.yaml")
    assert (result.returncode, result.stderr) == (
        2,
        "error: launch runs train, eval, generate, and not 'plan'; write -- train CONFIG\n",
    )
