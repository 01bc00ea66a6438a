"""A store of short texts in this process, for tests."""

from __future__ import annotations


class Texts:
    """See `trainer.processes.store.Store`; what is waited for has to be there."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def put(self, name: str, value: str) -> None:
        self.texts[name] = value

    def folder(self, name: str) -> dict[str, str]:
        return {key.removeprefix(f"{name}/"): text for key, text in self.texts.items() if key.startswith(f"{name}/")}

    def wait_for(self, name: str) -> str:
        return self.texts[name]
