"""What is said where a checkpoint holds other arrays than a model needs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

MOST_SHOWN = 8
# Where all differences begin alike: what they mean.
CAUSES = {
    "optimizer.": "another optimizer: set optimizer.name back to what it was saved with",
    "": "another model: set model.* and optimizer.name back to what it was saved with",
}


def differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, str]:
    """Name -> what is wrong with it, for each array whose shape or dtype is not the same in both."""
    there, here = _describe(found), _describe(wanted)
    both = [name for name in there if name in here and there[name] != here[name]]
    return (
        {name: f"is {there[name]} there and {here[name]} here" for name in both}
        | {name: f"is {here[name]} here and not there" for name in here if name not in there}
        | {name: f"is {there[name]} there and not here" for name in there if name not in here}
    )


def another_model(path: Path, differences: Mapping[str, str]) -> str:
    """The message, with what differs."""
    cause = next(text for prefix, text in CAUSES.items() if all(name.startswith(prefix) for name in differences))
    return f"{path} is a checkpoint of {cause}, or give another run.name or run.dir to start anew.{listed(differences)}"


def listed(differences: Mapping[str, str]) -> str:
    """Lines for the first of them, weights before all else."""
    parameters_first = sorted(differences, key=lambda name: (not name.startswith("parameters."), name))
    lines = [f"\n  {name} {differences[name]}" for name in parameters_first]
    more = f"\n  and {len(lines) - MOST_SHOWN} more" if len(lines) > MOST_SHOWN else ""
    return f"\nWhat differs:{''.join(lines[:MOST_SHOWN])}{more}"


def _describe(arrays: Mapping[str, Any]) -> dict[str, str]:
    return {name: f"{x.dtype}{list(x.shape)}" for name, x in arrays.items()}
