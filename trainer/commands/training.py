"""Commands that train: `meshwright train`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from trainer.commands.arguments import ConfigFile, Overrides, load
from trainer.commands.exit_codes import SIGNALLED
from trainer.processes.membership import join_others
from trainer.streams import outlast_readers

if TYPE_CHECKING:
    from trainer.config import Config


def train(
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    processes: Annotated[
        int | None,
        typer.Option("--processes", metavar="N", min=1, help="Start so many here, which share the devices out evenly."),
    ] = None,
    restarts: Annotated[
        int | None,
        typer.Option("--restarts", metavar="N", min=0, help="Start again, so often at most, when a process dies."),
    ] = None,
) -> None:
    """Train a model, or go on with a run that was stopped.

    Example: meshwright train configs/quickstart.yaml train.steps=50 zero.stage=3
    """
    outlast_readers()
    loaded = load(config, overrides)
    if processes is None and restarts is None:
        code = _train(loaded)
    else:
        from trainer.processes.supervisor import local_start, supervise

        make = partial(local_start, loaded, config, overrides or (), processes or 1)
        code = supervise(make, restarts or 0, partial(typer.secho, fg=typer.colors.RED, err=True))
    if code:
        raise typer.Exit(code)


def _train(config: Config) -> int:
    """Here and now, with the other processes if there are some; returns the exit code."""
    join_others()
    from trainer.trainer import Trainer

    trainer = Trainer(config)
    trainer.train()
    return 0 if trainer.stopped_by is None else SIGNALLED + trainer.stopped_by
