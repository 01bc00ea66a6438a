"""The YAML that configs are written in: plain data, and where each key of it was written.

Scalars are those of YAML 1.2: `1e-4` is a number, `no` and `on` are words. A key may not be written twice.
Knows nothing of which keys there are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import yaml

from trainer.errors import ConfigError

KeyPath = tuple[str, ...]
"""A key inside its sections: ("mesh", "tensor") is `mesh.tensor`."""
_DEEPEST, _MOST = 50, 100_000
"""Values within one another, and in all: aliases make a few lines stand for more than any memory holds."""
_MOST_DIGITS = 1000


class Document(NamedTuple):
    """Plain data, and the place of every key in it; () is the place of the whole."""

    tree: Any
    places: dict[KeyPath, str]

    def child(self, key: str) -> Document:
        return Document(self.tree[key], {path[1:]: place for path, place in self.places.items() if path[:1] == (key,)})

    def under(self, key: str) -> Document:
        """The same, one section further in."""
        places = {(key, *path): place for path, place in self.places.items()}
        return Document({key: self.tree}, places | {(): self.places[()]})


class _Scalar(NamedTuple):
    pattern: re.Pattern[str]
    first: str
    read: Callable[[str], Any]


def _int(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError("too long a number")
    return int(text)


def _float(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError("too large a number")
    return number


def _text(text: str) -> str:
    if any("\ud800" <= character <= "\udfff" for character in text):  # written as escapes
        raise ValueError("half of a surrogate pair, which is no text")
    return text


_SCALARS = {
    "tag:yaml.org,2002:null": _Scalar(re.compile(r"~|null|Null|NULL|"), "~nN", lambda text: None),
    "tag:yaml.org,2002:bool": _Scalar(
        re.compile(r"true|True|TRUE|false|False|FALSE"), "tTfF", lambda text: text.lower() == "true"
    ),
    "tag:yaml.org,2002:int": _Scalar(re.compile(r"[-+]?[0-9]+(_[0-9]+)*"), "-+0123456789", _int),
    "tag:yaml.org,2002:float": _Scalar(
        re.compile(r"[-+]?(\.[0-9]+|[0-9]+(_[0-9]+)*(\.[0-9]*)?)([eE][-+]?[0-9]+)?"), "-+.0123456789", _float
    ),
    "tag:yaml.org,2002:str": _Scalar(re.compile(r".*", re.DOTALL), "", _text),
}


_COLLECTIONS = ("tag:yaml.org,2002:seq", "tag:yaml.org,2002:map")
_NO_TAGS = "YAML tags are not supported; write plain data"
_TOO_LARGE = (
    f"more than {_DEEPEST} values within one another, or than {_MOST:,} in all, aliases written out; write less"
)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (PyYAML's own table: 1.1's scalars are left behind)


class _Dumper(yaml.SafeDumper):
    """Quotes whatever YAML 1.1 or 1.2 would not read back as text."""

    def represent_str(self, text: str) -> yaml.ScalarNode:
        # Only double quotes keep line breaks and control characters as they are.
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')


_Dumper.add_representer(str, _Dumper.represent_str)


for _tag, _scalar in _SCALARS.items():
    if _scalar.first:
        _whole = re.compile(rf"(?:{_scalar.pattern.pattern})\Z")
        for _dialect in (_Loader, _Dumper):
            _dialect.add_implicit_resolver(_tag, _whole, [*_scalar.first, ""])


def parse(text: str, place: Callable[[int], str]) -> Document:
    """Reads one YAML document. `place` names a line (from 1) as messages shall.

    Raises:
        ConfigError: it is not YAML, holds a key twice, or more than plain data.
    """
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        hint = "; put text that begins with * or & into quotes" if "alias" in f"{error.context}" else ""
        raise ConfigError(f"{place(line)}: not YAML: {error.problem}{hint}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{place(1)}: not YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise ConfigError(f"{place(1)}: {_TOO_LARGE}") from None
    places: dict[KeyPath, str] = {(): place(1)}
    if node is None:
        return Document(None, places)
    _require_small(node, place)
    return Document(_read(node, (), places, place), places)


def plain(tree: Any, place: str) -> Document:
    """Data that was given as Python objects: every key is in the same place."""
    places: dict[KeyPath, str] = {(): place}

    def note(value: Any, path: KeyPath) -> Any:
        places[path] = place
        if isinstance(value, Mapping):
            return {str(key): note(child, (*path, str(key))) for key, child in value.items()}
        return value

    return Document(note(tree, ()), places)


def dump(tree: Mapping[str, Any]) -> str:
    """Block-style YAML that `parse` and any YAML 1.1 reader read back to `tree`."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, default_flow_style=False, allow_unicode=True)


def _require_small(node: yaml.Node, place: Callable[[int], str]) -> None:
    """An alias counts as all that it stands for."""
    waiting, count = [(node, 1)], 0
    while waiting:
        node, depth = waiting.pop()
        count += 1
        if depth > _DEEPEST or count > _MOST:
            raise ConfigError(f"{place(node.start_mark.line + 1)}: {_TOO_LARGE}")
        if isinstance(node, yaml.SequenceNode):
            waiting += [(item, depth + 1) for item in node.value]
        elif isinstance(node, yaml.MappingNode):
            waiting += [(item, depth + 1) for pair in node.value for item in pair]


def _read(node: yaml.Node, path: KeyPath, places: dict[KeyPath, str], place: Callable[[int], str]) -> Any:
    """The node's value; notes the place of every key in it."""
    here = place(node.start_mark.line + 1)
    if isinstance(node, yaml.ScalarNode):
        return _plain_scalar(node, here)
    if node.tag not in _COLLECTIONS:
        raise ConfigError(f"{here}: {node.tag}: {_NO_TAGS}")
    if isinstance(node, yaml.SequenceNode):
        return [_read(item, path, {}, place) for item in node.value]
    tree: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = place(key_node.start_mark.line + 1)
        if not isinstance(key_node, yaml.ScalarNode):
            raise ConfigError(f"{line}: a list or a mapping where a key should be; write `key: value`")
        key = _as("tag:yaml.org,2002:str", key_node, line)
        child = (*path, key)
        if key in tree:
            raise ConfigError(f"{line}: {'.'.join(child)}: written twice, first at {places[child]}; keep one")
        places[child] = line
        tree[key] = _read(value_node, child, places, place)
    return tree


def _plain_scalar(node: yaml.ScalarNode, here: str) -> Any:
    if node.tag not in _SCALARS or not _SCALARS[node.tag].pattern.fullmatch(node.value):
        raise ConfigError(f"{here}: {node.tag} {node.value}: {_NO_TAGS}")
    return _as(node.tag, node, here)


def _as(tag: str, node: yaml.ScalarNode, here: str) -> Any:
    try:
        return _SCALARS[tag].read(node.value)
    except ValueError as error:
        raise ConfigError(f"{here}: {node.value[:40]!r}: {error}; write another value") from None
