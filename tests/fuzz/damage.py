"""Ways to damage a file: bytes that are changed, cut off or put in, and JSON of which parts are others."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

EXTREMES = [0, -1, 1, 2, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, -(2**63), 10**30]
LEAVES = st.none() | st.booleans() | st.sampled_from(EXTREMES) | st.floats(allow_nan=False) | st.text(max_size=6)
JSON = st.recursive(LEAVES, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=6), x, max_size=3))


def bytes_of(whole: bytes) -> st.SearchStrategy[bytes]:
    """`whole`, damaged in a few places; sometimes something else altogether."""
    place = st.integers(0, len(whole))
    changes = st.lists(st.tuples(place, st.sampled_from(["cut", "put", "set"]), st.binary(max_size=9)), max_size=4)
    return changes.map(lambda all: _changed(whole, all)) | st.binary(max_size=200)


def _changed(whole: bytes, changes: list[tuple[int, str, bytes]]) -> bytes:
    for place, what, put in changes:
        after = {"cut": b"", "put": whole[place:], "set": whole[place + len(put) :]}[what]
        whole = whole[:place] + put + after
    return whole


def json_of(whole: str) -> st.SearchStrategy[str]:
    """The JSON text with some of its values, wherever they stand, replaced or left out."""
    tree = json.loads(whole)
    paths = list(_paths(tree))
    change = st.tuples(st.sampled_from(paths), JSON | st.just(_GONE))
    return st.lists(change, min_size=1, max_size=3).map(lambda changes: json.dumps(_replaced(tree, changes)))


_GONE = "\x00gone"


def _paths(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = tree.items() if isinstance(tree, dict) else enumerate(tree[:8]) if isinstance(tree, list) else ()
    for key, value in items:
        yield from _paths(value, (*path, key))


def _replaced(tree: Any, changes: list[tuple[tuple[Any, ...], Any]]) -> Any:
    root = {"": copy.deepcopy(tree)}
    for path, value in changes:
        inside: Any = root
        *around, last = ("", *path)
        try:
            for key in around:
                inside = inside[key]
            if value == _GONE and path:
                del inside[last]
            else:
                inside[last] = value
        except (KeyError, IndexError, TypeError):  # a change before has replaced what is around
            continue
    return root[""]
