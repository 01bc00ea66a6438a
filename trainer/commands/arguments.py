"""The words that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainer.paths import argument

if TYPE_CHECKING:
    from trainer.config import Config

ConfigFile = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="A YAML config, such as configs/quickstart.yaml.", callback=argument)
]
RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run's folder, such as runs/quickstart.", callback=argument)
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE ...", help="Settings over the config's, such as zero.stage=3."),
]


def load(path: Path, overrides: list[str] | None) -> Config:
    """Before anything else is imported, so that a wrong config is said at once."""
    from trainer.config import Config

    return Config.load(path, overrides or ())
