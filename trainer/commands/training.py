"""Commands that train: `meshwright train`."""

from __future__ import annotations

import typer

from trainer.commands.arguments import ConfigFile, Overrides, load
from trainer.commands.exit_codes import SIGNALLED
from trainer.processes.membership import join_others


def train(config: ConfigFile, overrides: Overrides = None) -> None:
    """Train a model, or go on with a run that was stopped.

    Example: meshwright train configs/quickstart.yaml train.steps=50 zero.stage=3
    """
    loaded = load(config, overrides)
    join_others()
    from trainer.trainer import Trainer

    trainer = Trainer(loaded)
    trainer.train()
    if trainer.stopped_by is not None:
        raise typer.Exit(SIGNALLED + trainer.stopped_by)
