"""Runs a command of `meshwright` as its users do, in a process that cannot start a device."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def without_devices(*args: str) -> tuple[str, float]:
    """What `meshwright ARGS` prints, in the project's folder, and the seconds of CPU time that it takes.

    CPU time, as other tests run meanwhile.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = subprocess.run(
        [sys.executable, "-m", "trainer", *args],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "absent"},  # starting a device would fail
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return result.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
