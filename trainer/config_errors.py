"""Builds the config's dataclasses from what the user wrote, and says in the user's words what is wrong.

The messages come from the dataclasses themselves: their keys, types, choices and bounds.
"""

from __future__ import annotations

import difflib
import json
import re
import types
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import to_json

from models.float32 import Float32
from trainer.config_source import Source, dotted
from trainer.config_yaml import KeyPath
from trainer.errors import ConfigError

T = TypeVar("T")

KINDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    list: "a list",
    tuple: "a list",
    dict: "a mapping",
    types.NoneType: "null",
}
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below", "pattern": "matching"}


def build(schema: type[T], source: Source) -> T:
    """The config. Nothing is converted: `true` and "4" are no numbers, `4` is no text.

    Raises:
        ConfigError: lists the keys that are unknown or have a wrong value, or else what sections object to.
    """
    try:
        # As JSON, because only then is a mapping taken for a dataclass while all else is strict.
        return TypeAdapter(schema).validate_json(
            to_json(source.tree, inf_nan_mode="constants"), strict=True, by_alias=True, by_name=False
        )
    except ValidationError as error:
        errors = error.errors(include_url=False)
    objections = [_objection(schema, e, source) for e in errors if e["type"] == "value_error"]
    keys = {_known(schema, e["loc"]) for e in errors if e["type"] != "value_error"}
    wrong = [source.about(key, _what_is_wrong(schema, key, source)) for key in source.in_order(keys)]
    raise ConfigError("\n".join(wrong or objections))


def fields(schema: Any) -> dict[str, FieldInfo]:
    """The keys of a section, as they are written; none for a type that is no section."""
    section: Any = next((kind for kind in kinds(schema) if is_dataclass(kind)), None)
    if section is None:
        return {}
    return {info.alias or name: info for name, info in section.__pydantic_fields__.items()}


def all_keys(schema: Any, prefix: KeyPath = ()) -> Iterator[KeyPath]:
    """Every key there is, sections before their keys."""
    for name, info in fields(schema).items():
        yield (*prefix, name)
        yield from all_keys(info.annotation, (*prefix, name))


def _objection(schema: Any, error: Any, source: Source) -> str:
    """Of a section, which names its keys; or of the type of one key."""
    message, key = str(error["ctx"]["error"]), _known(schema, error["loc"])
    kind = schema
    for name in key:
        kind = fields(kind)[name].annotation
    return source.about_named(message, key) if fields(kind) else source.about(key, message)


def _known(schema: Any, location: tuple[Any, ...]) -> KeyPath:
    """The part of pydantic's location that names a key: the rest says which type it tried."""
    for size, name in enumerate(location):
        keys = fields(schema)
        if not keys:
            return location[:size]
        if name not in keys:
            return location[: size + 1]
        schema = keys[name].annotation
    return location


def _what_is_wrong(schema: Any, path: KeyPath, source: Source) -> str:
    section, value = schema, source.tree
    for name in path[:-1]:
        section, value = fields(section)[name].annotation, value[name]
    keys = fields(section)
    if path[-1] not in keys:
        return _unknown(schema, path, list(keys))
    return _mistyped(keys[path[-1]], value[path[-1]])


def _unknown(schema: Any, path: KeyPath, keys: list[str]) -> str:
    elsewhere = [dotted(key) for key in all_keys(schema) if key[-1] == path[-1]]
    meant = elsewhere[:3] or difflib.get_close_matches(path[-1], keys, n=1)
    guess = f"; did you mean {' or '.join(meant)}?" if meant else ""
    return f"unknown key{guess} (keys here: {', '.join(keys)})"


def _mistyped(info: FieldInfo, value: Any) -> str:
    described = [_describe(kind) for kind in kinds(info.annotation)]
    limits = ((word, getattr(item, name, None)) for item in info.metadata for name, word in BOUNDS.items())
    bounds = " and ".join(f"{word} {limit}" for word, limit in limits if limit is not None)
    if bounds:
        described[0] += f" ({bounds})"
    given = json.dumps(value, ensure_ascii=False, default=str)
    return f"expected {' or '.join(described)}, got {given}{_hint(info, value)}"


def _hint(info: FieldInfo, value: Any) -> str:
    allowed = kinds(info.annotation)
    if isinstance(value, str):
        choices = [choice for kind in allowed if get_origin(kind) is Literal for choice in get_args(kind)]
        near = difflib.get_close_matches(value, choices, n=1, cutoff=0.5)
        if near:
            return f"; did you mean {near[0]}?"
        if {int, float} & set(allowed) and _NUMBER.fullmatch(value):
            return "; write it without quotes"
    if isinstance(value, float) and int in allowed and value.is_integer():
        return f"; write {int(value)}"
    if isinstance(value, int | float) and float in allowed:
        return "".join(
            f"; {why}" for item in info.metadata if isinstance(item, Float32) and (why := item.becomes(value))
        )
    return ""


def kinds(annotation: Any) -> list[Any]:
    """The types that a value may have."""
    if get_origin(annotation) is Annotated:
        return kinds(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [kind for part in get_args(annotation) for kind in kinds(part)]
    return [annotation]


def _describe(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    if is_dataclass(kind):
        return f"a section with some of the keys {', '.join(fields(kind))}"
    return KINDS[get_origin(kind) or kind]
