"""Before the first collective, and before anything is paid for: whether all processes are about to do the same.

Process 0 compares, and all end with the same sentence, which says who differs in what.
"""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainer.errors import ConfigError
from trainer.processes.membership import current
from trainer.run_folder import version

Facts = Mapping[str, str]
"""What has to be equal everywhere, in a user's words."""
_PACKAGES = ("meshwright", "jax", "jaxlib")
_MOST_SHOWN = 3


def require_alike(about: str, facts: Facts) -> None:
    """Returns when all processes have said the same.

    Raises:
        ConfigError: one has said something else, in all processes.
    """
    if (here := current()) is None:
        return
    mine, verdict = here.turn(about), here.turn(f"{about}, all")
    here.store.put(f"{mine}/{here.place.process}", json.dumps(facts))
    if here.is_first:
        said = [json.loads(here.store.wait_for(f"{mine}/{process}")) for process in range(here.place.processes)]
        here.store.put(verdict, difference(here.names, said))
    if sentence := here.store.wait_for(verdict).strip():
        raise ConfigError(sentence)


def facts_of_start(config: Mapping[str, Any], devices: Sequence[str]) -> dict[str, str]:
    """Of this process: versions, its own devices by kind, and each key of the config."""
    versions = {name: str(version(name)) for name in _PACKAGES}
    kinds = ", ".join(f"{count} x {kind}" for kind, count in Counter(devices).items())
    return {"python": platform.python_version(), **versions, "devices": kinds, **dict(_flat(config))}


def difference(names: Sequence[str], said: Sequence[Facts]) -> str:
    """Who differs from the first in what; a blank where nobody does."""
    first = said[0]
    for name, facts in zip(names, said, strict=True):
        keys = [key for key in {**first, **facts} if facts.get(key) != first.get(key)]
        if keys:
            differences = (f"{key} is {facts.get(key)} there and {first.get(key)} here" for key in keys[:_MOST_SHOWN])
            return f"{name} is not like {names[0]}: {'; '.join(differences)}"
    return " "


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)
