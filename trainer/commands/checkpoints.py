"""The command about a run's checkpoints: `meshwright checkpoints`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainer.commands.arguments import RunFolder
from trainer.commands.exit_codes import FAILED
from trainer.errors import ConfigError
from trainer.paths import argument


def checkpoints(
    run: RunFolder,
    *,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every byte, and compare it with its checksum.")
    ] = False,
    diff: Annotated[
        tuple[int, int] | None,
        typer.Option("--diff", metavar="STEP STEP", help="In which arrays two differ, and by how much."),
    ] = None,
    export: Annotated[
        tuple[int, Path] | None,
        typer.Option(
            "--export", metavar="STEP DIR", help="Write one as orbax does, for other JAX programs.", callback=argument
        ),
    ] = None,
    remove: Annotated[
        list[int] | None, typer.Option("--remove", metavar="STEP", help="Remove this one; may be given again.")
    ] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove those that the run's train.keep_* do not keep.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Without it, what is to be removed is only shown.")] = False,
) -> None:
    """List, verify, compare and export a run's checkpoints, or remove some.

    Example: meshwright checkpoints runs/quickstart --verify
    """
    asked = {"--verify": verify, "--diff": diff, "--export": export, "--remove": remove, "--prune": prune}
    given = [option for option, value in asked.items() if value]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)}: one at a time")
    if yes and not (remove or prune):
        raise ConfigError("--yes is for --remove and --prune")
    if verify:
        from trainer.show_checkpoints import verify_checkpoints

        raise typer.Exit(0 if verify_checkpoints(run) else FAILED)
    from trainer.show_checkpoints import compare_checkpoints, export_checkpoint, list_checkpoints, remove_checkpoints

    if diff:
        compare_checkpoints(run, *diff)
    elif export:
        export_checkpoint(run, *export)
    elif remove or prune:
        remove_checkpoints(run, remove or None, yes)
    else:
        list_checkpoints(run)
