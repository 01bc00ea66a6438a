"""`model: {preset: NAME}`: a published model's fields, under those that the config gives itself."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from models.presets import PRESETS
from trainer.config_source import Source, dotted
from trainer.errors import ConfigError

PRESET = ("model", "preset")


def fill_in(source: Source) -> None:
    """Puts the preset's fields under the model's own.

    Raises:
        ConfigError: no such preset, or one of the command line that the file's own fields would hide.
    """
    model = source.tree.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("preset"), str):
        return
    name = model["preset"]
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=1)
        guess = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(source.about(PRESET, f"no preset {name!r}{guess} (presets: {', '.join(PRESETS)})"))
    _refuse_hidden(source, name)
    source.tree["model"] = _under(PRESETS[name], model)


def _refuse_hidden(source: Source, name: str) -> None:
    own = [key for key in source.places if key[:1] == ("model",) and len(key) == 2 and key not in source.overridden]
    if PRESET in source.overridden and own:
        keys = ", ".join(dotted(key) for key in own)
        raise ConfigError(
            source.about(
                PRESET,
                f"{source.name or 'the config'} sets {keys}, which would hide the preset's; to leave those behind, "
                f"replace the section: model={{preset: {name}}}",
            )
        )


def _under(preset: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Both, and `own` where both have a key; sections are merged key by key."""
    merged = {**preset, **own}
    for key in preset.keys() & own.keys():
        if isinstance(preset[key], Mapping) and isinstance(own[key], Mapping):
            merged[key] = _under(preset[key], own[key])
    return merged
