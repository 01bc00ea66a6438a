"""Commands about this machine: `meshwright doctor`."""

from __future__ import annotations

import typer


def doctor() -> None:
    """Check that this machine can train, and say what is missing.

    Example: meshwright doctor
    """
    from trainer.doctor import doctor

    raise typer.Exit(doctor())
