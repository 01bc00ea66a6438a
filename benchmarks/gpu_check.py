"""What a GPU is asked first: are the kernels right, how fast are they, how fast is a train step, how fast are copies.

    python -m benchmarks.gpu_check          on one GPU; writes results/gpu-check-DATE.txt
    python -m benchmarks.gpu_check --dry    on CPU: tiny, kernels interpreted; no figure counts, and none is kept

Exits with 1 where anything is wrong. Each part is a process of its own: what breaks one, a compiler, a kernel or a
driver, leaves the others. Meant to take less than 5 minutes; no GPU has run it yet.
"""

from __future__ import annotations

import argparse
import datetime
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
NOTICE = "A dry run, on CPU, with tiny shapes and kernels interpreted: no figure below counts."
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2"}
ON_CPU = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_backend_optimization_level=0"}
"""For a dry run, of which compiling is the longest part."""
NO_GPU = "jax finds no GPU; --dry tries the program on CPU"


@dataclass(frozen=True)
class Part:
    title: str
    module: str
    """Its `check(device, dry)` prints what it finds, and returns what is wrong."""
    seconds: int
    """That it may take."""


PARTS = {
    "machine": Part("The machine", "gpu_machine", 30),
    "correctness": Part("Flash attention against float64", "gpu_correctness", 150),
    "cudnn": Part("cuDNN's attention against float64", "gpu_cudnn", 60),
    "speed": Part("Attention's speed", "gpu_speed", 120),
    "training": Part("A train step of 1B", "gpu_training", 200),
    "copies": Part("Copies between host and GPU", "gpu_copies", 60),
}


def run(name: str, dry: bool) -> int:
    """One part, in this process; the exit code."""
    import jax

    platform = "cpu" if dry else "gpu"
    try:
        device = jax.devices(platform)[0]
    except RuntimeError:
        print(f"WRONG: {NO_GPU}")
        return 1
    check: Callable[[jax.Device, bool], list[str]] = import_module(f"benchmarks.{PARTS[name].module}").check
    wrong = check(device, dry)
    print(*(f"WRONG: {line}" for line in wrong), sep="\n", end="\n" if wrong else "")
    return int(bool(wrong))


class Record:
    """What is said: printed as it comes, and kept in a file after each part, if there is one."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.text = ""

    def say(self, text: str) -> None:
        print(text, end="", flush=True)
        self.text += text

    def keep(self) -> None:
        if self.path is not None:
            self.path.write_text(self.text)


def main(dry: bool) -> int:
    """All parts; the exit code."""
    date, start = datetime.date.today(), time.perf_counter()
    record = Record(None if dry else RESULTS / f"gpu-check-{date}.txt")
    record.say(f"{date}: python -m benchmarks.gpu_check{' --dry' * dry}\n" + f"{NOTICE}\n" * dry)
    bad = []
    for name, part in PARTS.items():
        record.say(f"\n== {part.title}\n")
        problem, seconds = _in_a_process(name, dry, record)
        record.say(f"{problem or 'fine'}, {seconds:.0f} s\n")
        if problem:
            bad.append(name)
        if problem and name == "machine":  # nothing else is of use, or worth a file
            return 1
        record.keep()
    total = f"{time.perf_counter() - start:.0f} s in all"
    record.say(f"\nWRONG: {', '.join(bad)}; {total}\n" if bad else f"\nAll is well; {total}\n")
    record.say(f"{NOTICE}\n" * dry)
    record.keep()
    return int(bool(bad))


def _in_a_process(name: str, dry: bool, record: Record) -> tuple[str, float]:
    """What became of a part, or "" if it is well, and the seconds that it took."""
    command = [sys.executable, "-u", "-m", "benchmarks.gpu_check", "--part", name, *["--dry"] * dry]
    environment = os.environ | QUIET | (ON_CPU if dry else {})
    start, limit = time.perf_counter(), PARTS[name].seconds
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        timer = threading.Timer(limit, process.kill)
        timer.start()
        for line in process.stdout:
            record.say(line)
        process.wait()
        timer.cancel()
    seconds = time.perf_counter() - start
    if process.returncode == -signal.SIGKILL and seconds >= limit:
        return f"WRONG: not done after {limit} s", seconds
    return f"WRONG: exit code {process.returncode}" if process.returncode else "", seconds


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--part", choices=PARTS, help="this one alone, in this process; nothing is written")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    asked = _arguments(sys.argv[1:])
    sys.exit(run(asked.part, asked.dry) if asked.part else main(asked.dry))
