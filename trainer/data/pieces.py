"""Where a long text may be cut, so that its pieces are encoded to the tokens of the whole.

The library keeps some 150 bytes a character while it encodes, so a long text goes through it in pieces. A cut is made
before a space that follows a character that is no white space: most tokenizers begin a new word there, whatever stands
around, and none that is named here looks across or changes what begins with a space. Others have no words, but no token
either that goes on behind a space that it does not begin with (Llama 2). For all others a text is one piece. Reads a
tokenizer.json's content; knows nothing of token ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_REGEXES = {
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",  # GPT-2
    _GPT4 % "{1,3}",  # Llama 3
    _GPT4 % "",  # Qwen 2
}
"""Patterns of words in which a space is the first character of a word, or in white space alone."""
_SPACE = "▁"
"""A space that is shown, as sentencepiece has it."""
_WORDS = {"ByteLevel", "Whitespace", "WhitespaceSplit", "BertPreTokenizer", "Metaspace", "Split"}
"""Pre-tokenizers that begin a word at a cut, as far as `_begins_word` agrees."""
_NORMALIZERS = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "BertNormalizer"}
"""Normalizers that change a character by itself, or with those that stand on it."""


def may_be_cut(description: Mapping[str, Any]) -> bool:
    """Whether the tokenizer of this tokenizer.json gives a text's tokens piece by piece.

    What a Prepend among its normalizers puts before a text is then to be put before the first piece alone.
    """
    added = [token for token in description["added_tokens"] if not token["special"]]
    return not any(map(_looks_around, added)) and (
        _has_words(description) or (not added and _no_token_spans_a_space(description))
    )


def _has_words(description: Mapping[str, Any]) -> bool:
    normalizers = _parts(description["normalizer"], "normalizers")
    steps = _parts(description["pre_tokenizer"], "pretokenizers")
    return (
        all(normalizer["type"] in _NORMALIZERS for normalizer in normalizers)
        and bool(steps)
        and _begins_word(steps[0])
        and all(step["type"] in _WORDS and step.get("prepend_scheme") != "first" for step in steps[1:])
    )


def _no_token_spans_a_space(description: Mapping[str, Any]) -> bool:
    """Whether a BPE without words has, of the tokens with a space, only those that begin with all their spaces."""
    model, steps = description["model"], _parts(description["pre_tokenizer"], "pretokenizers")
    normalizers = _parts(description["normalizer"], "normalizers")
    spaces = [step["type"] for step in steps] == ["Metaspace"] or (
        not steps and any(_shows_spaces(step) for step in normalizers)
    )
    return (
        model["type"] == "BPE"
        and spaces
        and all(_shows_spaces(step) or step == {"type": "Prepend", "prepend": _SPACE} for step in normalizers)
        and _SPACE in model["vocab"]
        and not any(re.search(f"[^{_SPACE}]{_SPACE}", token) for token in model["vocab"])
    )


def _shows_spaces(step: Mapping[str, Any]) -> bool:
    return step["type"] == "Replace" and step["pattern"] == {"String": " "} and step["content"] == _SPACE


def pieces(text: str, size: int) -> Iterator[str]:
    """`text` in pieces of at most `size` characters, or as many as stand before the next place for a cut."""
    start = 0
    while len(text) - start > size:
        end = _last_cut(text, start, start + size) or _next_cut(text, start + size)
        if end is None:
            break
        yield text[start:end]
        start = end
    yield text[start:]


def _last_cut(text: str, start: int, end: int) -> int | None:
    at = text.rfind(" ", start + 1, end + 1)
    while at > start and _is_space(text[at - 1]):
        at = text.rfind(" ", start + 1, at)
    return at if at > start else None


def _next_cut(text: str, start: int) -> int | None:
    at = text.find(" ", start)
    while at > 0 and _is_space(text[at - 1]):
        at = text.find(" ", at + 1)
    return at if at > 0 else None


def _is_space(character: str) -> bool:
    return character.isspace() or character == _SPACE


def _parts(step: Mapping[str, Any] | None, name: str) -> list[Mapping[str, Any]]:
    if step is None:
        return []
    return [inner for part in step[name] for inner in _parts(part, name)] if step["type"] == "Sequence" else [step]


def _begins_word(step: Mapping[str, Any]) -> bool:
    match step["type"]:
        case "ByteLevel":
            return bool(step["use_regex"])
        case "Metaspace":
            return bool(step.get("split", True))
        case "Split":
            return step["pattern"].get("Regex") in _REGEXES and step["behavior"] == "Isolated" and not step["invert"]
    return step["type"] in _WORDS


def _looks_around(token: Mapping[str, Any]) -> bool:
    """Whether an added token takes in more than its own characters, or has a place for a cut inside."""
    return token["lstrip"] or token["rstrip"] or token["single_word"] or bool(re.search(r"\S[ ▁]", token["content"]))
