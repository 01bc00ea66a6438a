"""Short texts by name that all processes can read and write, kept by the coordinator. Works before any collective."""

from __future__ import annotations

from typing import Any, Protocol

_FOR_EVER = 30 * 24 * 3600 * 1000  # milliseconds


class Store(Protocol):
    """Calls block while the coordinator does not answer, and raise RuntimeError where it is known not to."""

    def put(self, name: str, value: str) -> None:
        """Writes a text, over what was there."""

    def folder(self, name: str) -> dict[str, str]:
        """All texts whose names begin with NAME/, by what follows."""

    def wait_for(self, name: str) -> str:
        """The text, once it is there. Who watches over the processes ends a wait for one that is gone."""


class CoordinatorStore:
    """By a client of JAX' coordination service."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def put(self, name: str, value: str) -> None:
        self._client.key_value_set(_key(name), value, allow_overwrite=True)

    def folder(self, name: str) -> dict[str, str]:
        prefix = _key(name) + "/"
        return {key.removeprefix(prefix): value for key, value in self._client.key_value_dir_get(prefix)}

    def wait_for(self, name: str) -> str:
        return self._client.blocking_key_value_get(_key(name), _FOR_EVER)


def _key(name: str) -> str:
    return f"meshwright/{name}"
