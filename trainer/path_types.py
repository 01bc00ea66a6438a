"""The types of a config's keys that are paths."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, PlainSerializer, SerializationInfo

from trainer.paths import absolute, local


def _local_texts(given: str | list[str]) -> str | list[str]:
    return local(given) if isinstance(given, str) else [local(name) for name in given]


def _written(given: str | list[str] | None, info: SerializationInfo) -> str | list[str] | None:
    if given is None or not info.context:
        return given
    return absolute(given) if isinstance(given, str) else [absolute(name) for name in given]


def _written_in_home(given: str | None, info: SerializationInfo) -> Any:
    return given if given is None or given.startswith("~") else _written(given, info)


def _as_given(given: str) -> str:
    local(given)
    return given


RESOLVED = {"paths": "absolute"}
"""The context in which a config is written for a reader who may be in another folder."""
_WRITTEN = PlainSerializer(_written)

LocalPath = Annotated[str, AfterValidator(local), _WRITTEN]
"""The type of a key that is a path."""
LocalPaths = Annotated[str | list[str], AfterValidator(_local_texts), _WRITTEN]
"""The type of a key that is paths or globs."""
CachePath = Annotated[str, AfterValidator(_as_given), PlainSerializer(_written_in_home)]
"""The type of a key for a folder that each user has: it stays as it was given, and `local` is for its use."""
