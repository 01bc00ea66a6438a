"""No process that a supervisor has started outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.trainer.commands import ROOT

CHILD = "import time; from trainer.processes.parent import end_with_parent; end_with_parent(); time.sleep(60)"
PARENT = f"""
import subprocess, sys, time
from trainer.processes.children import Children, Command
with Children([Command((sys.executable, "-c", {CHILD!r}))] * 2) as children:
    print(*(child.popen.pid for child in children._children), flush=True)
    children.wait()
"""


def test_children_end_with_a_supervisor_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        children = [int(pid) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(children) == 2
    deadline = time.monotonic() + 30
    while any(_lives(child) for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_child_whose_parent_is_gone_already_ends_at_once() -> None:
    result = subprocess.run(
        [sys.executable, "-c", CHILD], cwd=ROOT, env=os.environ | {"MESHWRIGHT_PARENT": "1"}, timeout=30, check=False
    )
    assert result.returncode == -signal.SIGKILL


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
