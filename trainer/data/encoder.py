"""Text to token ids, with nothing lost and nothing made up on the way.

A copy of a tokenizer.json in which no text can become a special token, no letter goes missing unheard, and nothing is
left to chance. Knows nothing of files, and of token ids only what they mean to the tokenizer.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers

from trainer.data.pieces import may_be_cut, pieces
from trainer.errors import ConfigError

_PIECE = 1 << 18
"""A longer text is encoded in pieces of so many characters, on all cores like many short ones, where it may be cut."""
_MOST_WHOLE = 1 << 26
"""Characters encoded as one piece, at most: they take some 10 GB."""
_GROUP = 1 << 21
"""Characters encoded at a time."""
_SHOWN = 40
"""Characters of a text that a message shows."""
_REMEDY = (
    "use a tokenizer with byte fallback or an unknown token, leave data.tokenizer out and one is trained on the text, "
    "or mend the text"
)


class Encoder:
    """Encodes text as the tokenizer of a tokenizer.json does, without what it adds at the ends.

    Args:
      tokenizer: the tokenizer.json.
      eod: an id that no text has; it stands for what a tokenizer without an unknown token has no token for.
    """

    def __init__(self, tokenizer: str, eod: int) -> None:
        self._eod = eod
        description = json.loads(tokenizer)
        self._takes_words = description["model"]["type"] in ("WordPiece", "WordLevel")
        self._may_be_cut = may_be_cut(description)
        self._in_front = _take_prepended(description) if self._may_be_cut else ""
        self.unknown = _unknown(description)
        """The id that stands for what the tokenizer has no token for; None where it has no such id."""
        _make_strict(description, eod)
        self._inner = tokenizers.Tokenizer.from_str(json.dumps(description))
        self._inner.encode_special_tokens = True

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """int32 [tokens] for each text; runs on all cores.

        Raises:
          ConfigError: the tokenizer has no token for some of the text, or needs more of it at once than there is room.
        """
        cut = [self._cut(self._in_front + text if text else text) for text in texts]
        ids = self._encode_pieces(itertools.chain.from_iterable(cut))
        return [np.concatenate([next(ids) for _ in pieces]) for pieces in cut]

    def _cut(self, text: str) -> list[str]:
        found = list(pieces(text, _PIECE)) if self._may_be_cut else [text]
        if (longest := max(map(len, found))) > _MOST_WHOLE:
            raise ConfigError(
                f"data.tokenizer takes {longest:,} characters of a document at once, and {_MOST_WHOLE:,} is the most "
                "that memory is given for; split the document, or leave data.tokenizer out"
            )
        return found

    def _encode_pieces(self, pieces: Iterable[str]) -> Iterator[np.ndarray]:
        for group in groups(pieces, _GROUP):
            try:
                encodings = self._inner.encode_batch_fast(group, add_special_tokens=False)
            except Exception as error:  # the library raises nothing narrower
                raise self._refusal(group, str(error)) from error
            for text, encoding in zip(group, encodings, strict=True):
                ids = np.array(encoding.ids, np.int32)
                if (ids == self._eod).any():
                    raise self._refusal([text], "it would be left out")
                yield ids

    def first_lost(self, text: str) -> str:
        """The first character, or word, of `text` that the tokenizer has no token for; some of it, at most."""
        parts = dict.fromkeys(text.split() if self._takes_words else text)
        return next((part for part in parts if not self._can_say(part)), text)[:_SHOWN]

    def _refusal(self, texts: Sequence[str], reason: str) -> ConfigError:
        text = next((text for text in texts if not self._can_say(text)), texts[0])
        return ConfigError(
            f"data.tokenizer has no token for {self.first_lost(text)!r} in the text that begins {text[:_SHOWN]!r} "
            f"({reason}); {_REMEDY}"
        )

    def _can_say(self, text: str) -> bool:
        try:
            ids = self._inner.encode(self._in_front + text, add_special_tokens=False).ids
        except Exception:  # the library raises nothing narrower
            return False
        return self._eod not in ids and self.unknown not in ids


def groups(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    """The texts in lists of `size` characters, or as many as the last text takes them over it."""
    group: list[str] = []
    num_characters = 0
    for text in texts:
        group.append(text)
        num_characters += len(text)
        if num_characters >= size:
            yield group
            group, num_characters = [], 0
    if group:
        yield group


def _unknown(description: Mapping[str, Any]) -> int | None:
    model = description["model"]
    if model["type"] == "Unigram":
        return model["unk_id"]
    unknown = model["unk_token"]
    return None if unknown is None else model["vocab"].get(unknown)


def _take_prepended(description: dict[str, Any]) -> str:
    """What normalizers put before a text, and do so no longer."""
    normalizer = description["normalizer"] or {}
    steps = normalizer.get("normalizers", [normalizer])
    prepended = "".join(step["prepend"] for step in steps if step.get("type") == "Prepend")
    if prepended:
        rest = [step for step in steps if step["type"] != "Prepend"]
        description["normalizer"] = {"type": "Sequence", "normalizers": rest} if rest else None
    return prepended


def _make_strict(description: dict[str, Any], eod: int) -> None:
    """The same tokenizer for all text but what its special tokens are called: those get names that no text has."""
    names = {token["content"]: _no_text(token["id"]) for token in description["added_tokens"] if token["special"]}
    description |= {"truncation": None, "padding": None, "post_processor": None}
    for token in description["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    model = description["model"]
    if model["type"] == "Unigram":
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in model["vocab"]]
        return
    model["vocab"] = {names.get(token, token): id for token, id in model["vocab"].items()}
    if model["type"] == "BPE":
        model["merges"] = [merge for merge in model["merges"] if not names.keys() & {*merge, _merged(merge, model)}]
    if model["unk_token"] is not None:
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    elif model["type"] == "BPE":  # alone in leaving out what it has no token for; where eod is not in vocab, it raises
        model["unk_token"] = _no_text(eod)


def _merged(merge: Sequence[str], model: Mapping[str, Any]) -> str:
    return merge[0] + merge[1].removeprefix(model["continuing_subword_prefix"] or "")


def _no_text(id: int) -> str:
    return f"\uffff special token {id} \uffff"
