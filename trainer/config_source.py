"""What the user wrote, gathered: a config file, its mesh file, and overrides, each key with its place.

Expands what is written short: `recompute: full`, `mesh: meshes/2d.yaml`. A message about a key starts with
the file and line, or the override, that wrote it. Knows nothing of which keys there are.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.config_yaml import Document, KeyPath, parse, plain
from trainer.errors import ConfigError
from trainer.paths import local
from trainer.secrets import hide

# A bare word for the section is this key of it.
SHORTHANDS = {"recompute": "policy"}
# Text for the section is the file that it stands in, except for these words.
SECTIONS_WITH_FILES = {"mesh": ("auto",)}

Overrides = Sequence[str] | Mapping[str, Any]


class Source:
    """The tree of a config as it was written, and the place of every key in it.

    `name` is how messages call the whole; files named in the config are looked for in `folder` first.
    """

    def __init__(self, name: str = "", folder: Path = Path()) -> None:
        self.name = name
        self.folder = folder
        self.tree: dict[str, Any] = {}
        self.places: dict[KeyPath, str] = {}
        self.overridden: set[KeyPath] = set()

    def read(self, document: Document) -> None:
        """Sets every section that the document has."""
        for key in document.tree:
            self.put((key,), document.child(key))

    def put(self, path: KeyPath, document: Document) -> None:
        """Sets the key at `path`, replacing all of what stood there."""
        if len(path) == 1:
            document = self._written_out(path[0], document)
        section = self._section(path[:-1], document.places[()])
        section[path[-1]] = document.tree
        kept = {key: place for key, place in self.places.items() if key[: len(path)] != path}
        self.places = kept | {path + key: place for key, place in document.places.items()}

    def remove(self, path: KeyPath) -> None:
        """Takes away what is written at `path`, and the sections around it in which nothing is left."""
        section: Any = self.tree
        for name in path[:-1]:
            section = section.get(name)
            if not isinstance(section, dict):
                return
        section.pop(path[-1], None)
        self.places = {key: place for key, place in self.places.items() if key[: len(path)] != path}
        if len(path) > 1 and not section:
            self.remove(path[:-1])

    def override(self, overrides: Overrides) -> None:
        """Applies `key=value` texts, or a mapping of dotted keys; whole sections before keys inside them.

        Raises:
            ConfigError: an override is not `key=value`, or two of them set the same key.
        """
        claimed: dict[KeyPath, str] = {}
        documents = list(_parse_overrides(overrides))
        for path, document in documents:
            for key in (path + inner for inner in document.places):
                place = document.places[()]
                if key in claimed:
                    raise ConfigError(f"{place}: {dotted(key)} is set by {claimed[key]!r} as well; keep one")
                claimed[key] = place.partition(": ")[2]
        for path, document in sorted(documents, key=lambda item: len(item[0])):
            self.put(path, document)
        self.overridden = set(claimed)

    def wrote(self, path: KeyPath) -> bool:
        """Whether the user wrote this key, or one inside it."""
        return any(key[: len(path)] == path for key in self.places)

    def in_order(self, paths: Iterable[KeyPath]) -> list[KeyPath]:
        """As they were written, overrides last."""
        order = list(self.places)
        return sorted(paths, key=lambda path: order.index(path) if path in self.places else -1)

    def about(self, path: KeyPath, message: str) -> str:
        """The message, after the place and the name of the key it is about."""
        key, place = dotted(path), self._place(path)
        if not place:
            return f"{key}: {message}"
        named_by_place = place.partition(": ")[2].startswith(f"{key}=")
        return f"{place}: {message}" if named_by_place else f"{place}: {key}: {message}"

    def about_named(self, message: str, path: KeyPath = ()) -> str:
        """A message that names its keys itself, after the place of the one most likely to be meant.

        That is one of the command line, then the first that was written at all, then `path`. A message that begins
        with a section, as in "mesh: ...", is about every key of it.
        """
        section = tuple(re.findall(r"^\w+(?=: )", message))
        named = [key for key in self.places if section and key[:1] == section]
        named += [tuple(key.split(".")) for key in re.findall(r"\b[a-z]\w*(?:\.[a-z]\w*)+", message)]
        written = [key for key in named if key in self.places]
        latest = [key for key in written if key in self.overridden]
        place = self._place((latest or written or [path])[0])
        return f"{place}: {message}" if place else message

    def _place(self, path: KeyPath) -> str:
        """Where the key was written, or else something in it, or else what it is in."""
        if not path:
            return self.name
        inside = (place for key, place in self.places.items() if key[: len(path)] == path)
        around = (self.places[path[:size]] for size in range(len(path), 0, -1) if path[:size] in self.places)
        return self.places.get(path) or next(inside, None) or next(around, self.name)

    def _section(self, path: KeyPath, place: str) -> dict[str, Any]:
        section = self.tree
        for size, name in enumerate(path, start=1):
            if section.get(name) is None:
                section[name] = {}
            section = section[name]
            if not isinstance(section, dict):
                where = self._place(path[:size])
                raise ConfigError(
                    f"{place}: {dotted(path[:size])} is {section!r} ({where}), which has no keys; give the whole "
                    f"section, as in {dotted(path[:size])}={{...}}"
                )
        return section

    def _written_out(self, section: str, document: Document) -> Document:
        if not isinstance(document.tree, str):
            return document
        if section in SHORTHANDS:
            return document.under(SHORTHANDS[section])
        if section in SECTIONS_WITH_FILES and document.tree not in SECTIONS_WITH_FILES[section]:
            return self._section_file(section, document)
        return document

    def _section_file(self, section: str, document: Document) -> Document:
        try:
            name = local(document.tree)
        except ConfigError as error:
            raise ConfigError(f"{document.places[()]}: {section}: {error}") from None
        looked_in = dict.fromkeys((self.folder, Path()))
        found = [folder / name for folder in looked_in if (folder / name).is_file()]
        if not found:
            folders = " and in ".join(str(folder.absolute()) for folder in looked_in)
            raise ConfigError(
                f"{document.places[()]}: {section}: no file {document.tree!r} in {folders}; give a file, the section "
                f"itself, such as {section}: {{data: 4, tensor: 2}}, or {section}: auto, and it is searched"
            )
        return read_file(found[0])


def read_file(path: Path) -> Document:
    """A YAML file that holds a mapping, or nothing."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; give the path of a YAML file") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: a folder; give the path of a YAML file in it") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a text file in UTF-8; give the path of a YAML file") from None
    document = parse(text, lambda line: f"{path}:{line}")
    if document.tree is None:
        return Document({}, document.places)
    if not isinstance(document.tree, dict):
        raise ConfigError(f"{document.places[()]}: expected `key: value` lines, got {reprlib.repr(document.tree)}")
    return document


def dotted(path: KeyPath) -> str:
    return ".".join(path)


def with_decided(overrides: Sequence[str], decided: Mapping[str, Any]) -> list[str]:
    """Override texts that set the keys of `decided` to its values, whatever the user has them at; else the same.

    Raises:
        ConfigError: an override is not `key=value`.
    """
    kept = []
    for text in overrides:
        name, document = _parse_override(text)
        inside = [key.removeprefix(f"{name}.") for key in decided if key.startswith(f"{name}.")]
        if isinstance(document.tree, dict) and any(key in document.tree for key in inside):
            rest = {key: value for key, value in document.tree.items() if key not in inside}
            kept.append(f"{name}={json.dumps(rest, ensure_ascii=False)}")  # which is YAML too
        elif name not in decided:
            kept.append(text)
    return [*kept, *(f"{key}={json.dumps(value)}" for key, value in decided.items())]


def _parse_overrides(overrides: Overrides) -> Iterable[tuple[KeyPath, Document]]:
    if isinstance(overrides, Mapping):
        pairs = [(key, plain(value, hide(f"overrides: {key}={value}"))) for key, value in overrides.items()]
    else:
        pairs = [_parse_override(text) for text in overrides]
    for key, document in pairs:
        path = tuple(key.split("."))
        if key in SHORTHANDS and isinstance(document.tree, str):
            path = (key, SHORTHANDS[key])
        yield path, document


def _parse_override(text: str) -> tuple[str, Document]:
    place = hide(f"command line: {text}")  # which goes into messages
    key, equals, value = text.partition("=")
    if not equals or not all(key.split(".")):
        raise ConfigError(f"{place}: expected key=value, such as mesh.tensor=4")
    return key, parse(value, lambda line: place)
