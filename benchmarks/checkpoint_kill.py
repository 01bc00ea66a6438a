"""A process that saves is killed at any moment: what it leaves is a complete newest checkpoint, bit for bit.

    python -m benchmarks.checkpoint_kill [--tries 200]

A process trains nothing and saves one step after another into one folder, each state a function of its step. It is
killed (SIGKILL) at a random moment within a save, or a little before or after one; another process loads the newest
checkpoint and compares every bit with the state of its step; the next one goes on from there, among what is left. No
step may be missing that the killed process has called saved. Processes are forked from one that has imported all, so
that a try takes a second. Prints how many were survived, and when they were killed; exits with 1 where one was not.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from benchmarks.common import show
from trainer.checkpoint import Checkpoints, Later

ROWS = 100_000
KEEP = 2
MOST_SAVES = 4
"""Of a process, before it is killed in the next one."""
PATIENCE = 60.0
"""Seconds for what takes one."""


class Told(NamedTuple):
    """What a process that saves says, as it does."""

    what: str
    """`begins` or `saved`; that it has written all, `hands over`."""
    step: int


def state(step: int) -> dict[str, jax.Array]:
    """What the arrays of a step must be."""
    row = np.arange(ROWS, dtype=np.float32) * 0.25 + step  # nothing to compile
    return jax.device_put({"parameters.weight": row, "optimizer.mu.weight": -row, "step": np.int32(step)})


def save_on_and_on(folder: str, to: Connection) -> None:
    """Goes on from the newest checkpoint, until it is killed."""
    checkpoints = Checkpoints(folder, keep=KEEP)
    step = checkpoints.newest() or 0
    while True:
        step += 1
        later = Later(jax.ShapeDtypeStruct((ROWS,), np.float32), partial(_later, step))
        to.send(Told("begins", step))
        checkpoints.save(step, {**state(step), "later": later}, {"step": step})
        to.send(Told("hands over", step))
        checkpoints.wait()
        to.send(Told("saved", step))


def load(folder: str, to: Connection) -> None:
    """Says of which step the newest checkpoint is, and which of its arrays are not what they must be."""
    checkpoints = Checkpoints(folder, keep=KEEP)
    newest = checkpoints.newest()
    if newest is None:
        to.send((None, []))
        return
    expected = {**state(newest), "later": _later(newest)}
    abstract = {name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for name, x in expected.items()}
    found = checkpoints.restore(newest, abstract)
    wrong = [name for name, x in expected.items() if not np.array_equal(x, found[name])]
    if checkpoints.meta(newest) != {"step": newest}:
        wrong.append("meta")
    to.send((newest, wrong))


def _later(step: int) -> jax.Array:
    return jax.device_put(np.full(ROWS, step, np.float32))


class Trial(NamedTuple):
    moment: str
    """What the process was last heard to do."""
    problem: str | None


def run(tries: int, folder: Path, seed: int) -> list[Trial]:
    """Kills so many processes, one after another."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.common", "trainer.checkpoint"])
    rng = random.Random(seed)
    took, before = 0.1, 0  # seconds of a save, as last seen; the newest step that has been loaded
    trials = []
    for _ in range(tries):
        saves, part = rng.randrange(MOST_SAVES), rng.uniform(-0.1, 1.2)
        told, took = _kill_in_save(context, folder, saves, part, took)
        newest, wrong = _load(context, folder)
        saved = max([told_.step for told_ in told if told_.what == "saved"], default=before)
        problem = None
        if newest is None or newest < saved:
            problem = f"step {saved} was saved, and {newest} is the newest"
        elif wrong:
            problem = f"step {newest}: {', '.join(wrong)} are not what was saved"
        trials.append(Trial(told[-1].what if told else "starts", problem))
        before = newest or 0
    return trials


def _kill_in_save(
    context: multiprocessing.context.ForkServerContext, folder: Path, saves: int, part: float, took: float
) -> tuple[list[Told], float]:
    """Kills a process once it has saved so often, that part of `took` seconds into the next save.

    Returns what it has said, and how many seconds its last whole save took, or `took`.
    """
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=save_on_and_on, args=(str(folder), send), daemon=True)
    process.start()
    send.close()
    told: list[Told] = []
    began = 0.0
    while sum(told_.what == "begins" for told_ in told) <= saves:
        if not receive.poll(PATIENCE):
            raise TimeoutError(f"a process that saves has said nothing for {PATIENCE:g} s")
        told.append(receive.recv())
        if told[-1].what == "begins":
            began = time.perf_counter()
        elif told[-1].what == "saved":
            took = time.perf_counter() - began
            if part < 0 and len(told) == 3 * saves:  # after one save and before the next
                break
    time.sleep(max(part, 0) * took)
    process.kill()
    process.join()
    while receive.poll():
        try:
            told.append(receive.recv())
        except EOFError:
            break
    return told, took


def _load(context: multiprocessing.context.ForkServerContext, folder: Path) -> tuple[int | None, list[str]]:
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=load, args=(str(folder), send), daemon=True)
    process.start()
    send.close()
    try:
        return receive.recv()
    except EOFError:
        return None, ["nothing could be loaded"]
    finally:
        process.join()


def survived(trials: list[Trial]) -> Mapping[str, tuple[int, int]]:
    """By what the process was doing: how many it survived, of how many."""
    tried = Counter(trial.moment for trial in trials)
    lost = Counter(trial.moment for trial in trials if trial.problem)
    return {moment: (count - lost[moment], count) for moment, count in tried.items()}


MOMENTS = {
    "starts": "before the first save",
    "begins": "within `save`",
    "hands over": "while it is written behind",
    "saved": "between two saves",
}


def main(tries: int, seed: int) -> int:
    """Prints the table; whether any was not survived."""
    with tempfile.TemporaryDirectory() as folder:
        trials = run(tries, Path(folder, "checkpoints"), seed)
    counts = survived(trials)
    rows = [[text, *map(str, counts.get(moment, (0, 0)))] for moment, text in MOMENTS.items()]
    total = sum(trial.problem is None for trial in trials), len(trials)
    show("Killed while saving", ["last heard of it", "survived", "of"], [*rows, ["all", *map(str, total)]])
    for trial in trials:
        if trial.problem:
            print(f"NOT SURVIVED: killed {MOMENTS[trial.moment]}: {trial.problem}")
    print(f"survived {total[0]} of {total[1]} kills ({signal.SIGKILL.name})")
    return int(total[0] != total[1])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sys.exit(main(options.tries, options.seed))
