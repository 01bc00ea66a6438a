"""`meshwright checkpoints`: lists those of a run, verifies and compares them, and removes some."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

from trainer.checkpoint import Checkpoints, Keep
from trainer.checkpoint.damage import Damaged
from trainer.checkpoint.draft import remove
from trainer.checkpoint.foreign import ARRAYS, is_of_format_1, refusal
from trainer.checkpoint.inspect import Entry, compare, damage, entries
from trainer.checkpoint.keep import METRIC
from trainer.checkpoint.read import open_arrays
from trainer.config import ANYWHERE, Config
from trainer.errors import ConfigError
from trainer.folder_lock import is_held
from trainer.tables import make_table, wide_console
from trainer.units import binary


def list_checkpoints(run: Path) -> None:
    """Prints a table of what is there.

    Raises:
        ConfigError: there is no run.
    """
    checkpoints = _open(run)
    found, reasons = entries(checkpoints), checkpoints.reasons()
    if not found:
        print(f"{run} has no checkpoint yet")
        return
    table = make_table(f"Checkpoints of {run}", ["step", "saved", "state", "stays as"], ["size", "held-out loss"])
    for entry in found:
        table.add_row(*_row(entry, reasons))
    wide_console().print(table)


def _row(entry: Entry, reasons: dict[int, list[str]]) -> list[str]:
    if entry.header is None:
        return [entry.path.name, "", entry.problem or "", "", binary(entry.num_bytes), ""]
    header = entry.header
    saved = datetime.datetime.fromisoformat(header.saved).strftime("%Y-%m-%d %H:%M:%S")
    loss = f"{header.metrics[METRIC]:.4f}" if METRIC in header.metrics else ""
    why = ", ".join(reasons.get(header.step, [])) or "nothing: the next save removes it"
    return [entry.path.name, saved, "complete", why, binary(entry.num_bytes), loss]


def verify_checkpoints(run: Path) -> bool:
    """Reads every byte of all that are complete, and prints what is wrong; whether nothing is."""
    checkpoints, is_well = _open(run), True
    for step in checkpoints.steps():
        path = checkpoints.folder / str(step)
        if is_of_format_1(path):
            print(f"{step}: of an older version, without checksums: nothing to compare with")
            continue
        problems = list(damage(path))
        is_well = is_well and not problems
        print(f"{step}: {'every byte is as it was written' if not problems else 'DAMAGED'}")
        for problem in problems:
            print(f"  {problem}")
    return is_well


def compare_checkpoints(run: Path, one: int, other: int) -> None:
    """Prints which arrays of two steps differ, and by how much.

    Raises:
        ConfigError: there is none of such a step, or it is damaged.
    """
    checkpoints = _open(run)
    paths = [checkpoints.folder / str(checkpoints.require(step)) for step in (one, other)]
    table = make_table(f"{one} and {other}", ["array", "difference"])
    try:
        for difference in compare(*paths):
            table.add_row(difference.name, difference.what)
    except Damaged as error:
        raise ConfigError(f"{run}: {error}; find out of which step with --verify") from None
    if table.row_count:
        wide_console().print(table)
    else:
        print(f"{one} and {other} hold the same bits")


def export_checkpoint(run: Path, step: int, folder: Path) -> None:
    """Writes one as orbax does, verified and an array at a time.

    Raises:
        ConfigError: there is none of this step, it is damaged, or the folder is there already.
    """
    checkpoints = _open(run)
    path = checkpoints.folder / str(checkpoints.require(step))
    if folder.exists():
        raise ConfigError(f"{folder} is there already; name a folder that is not")
    if is_of_format_1(path):
        raise ConfigError(f"{path} is in orbax's format already: its arrays are in {path / ARRAYS}")
    from trainer.checkpoint import orbax

    try:
        with open_arrays(path) as reader:
            orbax.export(reader, folder)
    except Damaged as error:
        raise ConfigError(f"{path} is damaged: {error}") from None
    # Orbax takes no relative path.
    reads = f"orbax.checkpoint.PyTreeCheckpointer().restore({str(folder.absolute())!r})"
    print(f"{folder} holds the arrays of step {step} by name, as a dict: {reads} reads them")


def remove_checkpoints(run: Path, steps: Sequence[int] | None, really: bool) -> None:
    """Removes these, or those that no rule of the run's config keeps; shows which, unless really.

    Raises:
        ConfigError: there is none of such a step, or a process trains in the folder.
    """
    checkpoints = _open(run)
    if really and is_held(run):
        raise ConfigError(f"{run} is in use: a process trains in it; wait for it, or stop it")
    wanted = checkpoints.unwanted() if steps is None else [checkpoints.require(step) for step in dict.fromkeys(steps)]
    sizes = {entry.path.name: entry.num_bytes for entry in entries(checkpoints)}
    if not wanted:
        print(f"nothing to remove: the run's config keeps all of {checkpoints.steps()}")
    for step in wanted:
        path = checkpoints.folder / str(step)
        if really:
            remove(path)
        print(f"{'removed' if really else 'would remove'} {path} ({binary(sizes[path.name])})")
    if wanted and not really:
        print("with --yes it is done")


def _open(run: Path) -> Checkpoints:
    file = run / "config.yaml"
    if not file.exists():
        raise ConfigError(refusal(run) or f"{run} holds no config.yaml, so it is no run's folder; name one")
    train = Config.load(file, ANYWHERE).train
    return Checkpoints(run / "checkpoints", Keep(train.keep_checkpoints, train.keep_every, train.keep_best))
