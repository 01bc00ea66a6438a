"""Whatever stands in a config or on the command line is a config, or an error that is clear, and soon."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import strategies as st

from tests.fuzz.harness import fuzzed, only_clear_errors
from trainer.config import Config
from trainer.config_errors import all_keys
from trainer.config_source import Source, dotted
from trainer.config_yaml import dump, parse
from trainer.errors import ConfigError

KEYS = sorted(dotted(key) for key in all_keys(Config))
NUMBERS = st.integers() | st.sampled_from([0, 1, 2, 3, 8, 720720, 2**31, 2**63, 10**18, 10**300]) | st.floats()
WORDS = st.sampled_from(["auto", "nvme", "host", "gpipe", "interleaved_1f1b", "x.csv", "full", "adamw", "/", "..", ""])
SCALARS = st.none() | st.booleans() | NUMBERS | WORDS | st.text(max_size=8)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4))
OVERRIDES = st.lists(st.tuples(st.sampled_from(KEYS), VALUES), max_size=6)

YAML_TEXT = st.lists(
    st.sampled_from(
        ["model", "mesh", "seed", ": ", "\n", "  ", "- ", "[", "]", "{", "}", ",", "&a ", "*a", "!!", "|", "#"]
    )
    | st.sampled_from(["'", '"', "\\", "%", "@", "?", "1e9", "0x", "null", "~", "<<", "---\n", "\t", "\0", "\ud800"])
    | st.text(string.printable, max_size=5),
    max_size=40,
).map("".join)


def load(text: str) -> None:
    source = Source()
    document = parse(text, lambda line: f"x.yaml:{line}")
    if isinstance(document.tree, dict):
        source.read(document)
        Config.of(source)


@fuzzed(YAML_TEXT)
def test_any_text(text: str) -> None:
    with only_clear_errors():
        load(text)


@fuzzed(OVERRIDES)
def test_any_values_of_keys(overrides: list[tuple[str, Any]]) -> None:
    with only_clear_errors():
        Config.from_dict({}, [f"{key}={_flow(value)}" for key, value in overrides])


@fuzzed(st.lists(st.text(max_size=12), max_size=3))
def test_any_override(texts: list[str]) -> None:
    with only_clear_errors():
        Config.from_dict({}, texts)


def _flow(value: Any) -> str:
    """In one line, as on a command line."""
    text = dump({"x": value})
    return text.removeprefix("x:").strip()


ALIASES = "\n".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in zip("abcdefghij", "bcdefghijk", strict=True))
HOSTILE = {
    "a billion values by aliases": f"a: &a [x]\n{ALIASES}",
    "an alias of itself": "seed: &a [*a]",
    "lists in lists": "seed: " + "[" * 5000,
    "mappings in mappings": "\n".join(" " * depth + "a:" for depth in range(1000)),
    "a number without end": "seed: " + "9" * 5000,
    "more than any number": "optimizer: {learning_rate: 1e999}",
    "half a character": 'run: {name: "\\ud800"}',
    "a list as a key": "? [a, b]\n: 1",
    "a tag of a list": "data: {path: !!set [a]}",
    "stages without end": "model: {layers: 1000000000}\nmesh: {pipeline: 1000000000}",
    "a table without end": "model: {layers: 90000}\nmesh: {pipeline: 90000}",
    "a batch without divisors": "batch: {global: 1000000000000000003, micro: 7}",
    "heads without divisors": "model: {heads: 1000000000000000003}\nmesh: {tensor: 7}",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_what_would_take_for_ever_is_refused(text: str) -> None:
    with only_clear_errors(), pytest.raises(ConfigError):
        load(text)
