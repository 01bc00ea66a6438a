"""Keys and passwords, which no config, log or report may hold: how they are told, refused, and taken out of texts.

A secret is told by the name of its setting, by the form that services give their keys, or by its place in a URL. Knows
nothing of which settings there are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

HIDDEN = "***"
_NAMES = (
    r"(?:api|access|private|secret|account)[_-]?key|secret|passw(?:or)?d|passphrase|credentials?|authorization|bearer"
    r"|(?:\b|_)auth(?=\b|_)"
    r"|(?:\b|(?<!\bend)(?<!\bstart)_)token(?=\b|_)"  # data.end_token is a tokenizer's
)
_NAMED = re.compile(_NAMES, re.IGNORECASE)
_ASSIGNED = re.compile(
    rf"""([\w.-]*(?:{_NAMES})[\w-]*["']?\s*[:=]\s*)("[^"]*"|'[^']*'|(?:bearer\s+)?[^\s,}}&"']+)""", re.IGNORECASE
)
_FORMS = re.compile(
    r"\b(?:hf_\w{20,}|gh[opsru]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|sk-[\w-]{20,}|AKIA[0-9A-Z]{16}"
    r"|xox[abp]-[\w-]{10,}|wandb_v\d_\w{20,})"
)
_LOGIN = re.compile(r"\b([a-z][a-z0-9+.-]*://)[^\s/@]*:[^\s/@]+@", re.IGNORECASE)
_SIGNED = re.compile(r"([?&][\w.-]*(?:key|token|secret|password|signature|sig)=)[^&\s\"']+", re.IGNORECASE)
_INSTEAD = {
    "run.wandb": "set the environment variable WANDB_API_KEY, or log in once with `wandb login`",
    "data.": "name files that are on this machine",
}


def refusals(tree: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """(the path of a setting, what is said about it), for each of a config's settings that holds a secret.

    What is said shows nothing of it.
    """
    for path, what in _found(tree, ()):
        key = ".".join(path)
        instead = next((use for start, use in _INSTEAD.items() if key.startswith(start)), "give it by the environment")
        yield path, f"{what} would be kept in the run's config.yaml, for all to read; leave it out, and {instead}"


def hide(text: str) -> str:
    """The text without what looks like a secret in it."""
    for pattern, kept in ((_LOGIN, r"\1"), (_SIGNED, r"\1"), (_ASSIGNED, r"\1")):
        text = pattern.sub(kept + HIDDEN + ("@" if pattern is _LOGIN else ""), text)
    return _FORMS.sub(HIDDEN, text)


def without_secrets(tree: Any, name: str = "") -> Any:
    """Plain data with every secret hidden."""
    if isinstance(tree, Mapping):
        return {hide(str(key)): without_secrets(value, str(key)) for key, value in tree.items()}
    if isinstance(tree, list):
        return [without_secrets(value, name) for value in tree]
    if _is_named(name, tree):
        return HIDDEN
    return hide(tree) if isinstance(tree, str) else tree


def _found(tree: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _found(value, (*path, str(key)))
    elif isinstance(tree, list):
        for value in tree:
            yield from _found(value, path)
    elif path and _is_named(path[-1], tree):
        yield path, "a key or password"
    elif isinstance(tree, str) and _LOGIN.search(tree):
        yield path, "the password in this URL"
    elif isinstance(tree, str) and (_FORMS.search(tree) or _SIGNED.search(tree)):
        yield path, "the key in this text"


def _is_named(name: str, value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool) and value != "" and bool(_NAMED.search(name))
