"""Text to token ids and back, and how many bytes of text each id stands for.

A thin hold on `tokenizers`: what it adds is the tokens at the ends of a document, errors a user can act on, and the
table that turns nats per token into bits per byte.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from trainer.data.encoder import Encoder
from trainer.data.tokenizer_files import Names, added_in_front, read_tokenizer, write_tokenizer
from trainer.errors import ConfigError

END_OF_DOCUMENT = (
    "<|endoftext|>",
    "</s>",
    "<|end_of_text|>",
    "<eos>",
    "<｜end▁of▁sentence｜>",
    "[EOS]",
)
"""Names of the end-of-document token; the first that a tokenizer has as a special token is taken."""
SMALLEST_VOCAB = 257
"""A byte-level BPE needs the 256 bytes and the end-of-document token."""
_LONGEST_WORD = 256
"""Characters of a word that a tokenizer is trained on at once: the library takes time with their square."""
_LONG_WORD = re.compile("|".join(f"{kind}{{{_LONGEST_WORD}}}" for kind in (r"[^\W\d_]", r"\d", r"[^\w\s]", r"\s")))
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


@dataclass(frozen=True, eq=False)
class Tokenizer:
    inner: tokenizers.Tokenizer
    eod: int
    """The id that ends a document."""
    start: int
    """The id that a document begins after: the tokenizer's own, or else the one that ends documents."""
    size: int
    """One more than the largest id."""
    notes: tuple[str, ...] = ()
    """What was changed in it, for the user."""

    @property
    def hash(self) -> str:
        """Hex; of which id each token has, and of the one that ends a document."""
        entries = sorted(self.inner.get_vocab(with_added_tokens=True).items())
        return hashlib.sha256(json.dumps([entries, self.eod]).encode()).hexdigest()

    @classmethod
    def wrap(cls, inner: tokenizers.Tokenizer, source: str, names: Names = Names()) -> Tokenizer:
        """`inner` with the tokens that `names` gives to the ends of a document; what it does not name is found.

        Raises ConfigError when there is no such special token.
        """
        inner.no_truncation()
        inner.no_padding()
        notes = []
        if dropout := getattr(inner.model, "dropout", None):
            inner.model.dropout = None
            notes.append(f"{source} has dropout={dropout:g}, which gives other tokens each time: it is switched off")
        # Only special ones: to Gemma, </s> is a piece of HTML.
        added = inner.get_added_tokens_decoder()
        special = {token.content: id for id, token in added.items() if token.special}
        eod = _end(special, source, names.end)
        front = names.start or added_in_front(json.loads(inner.to_str()))
        start = _named(special, source, "data.start_token", front) if names.start else special.get(front or "", eod)
        return cls(inner, eod, start, 1 + max(inner.get_vocab(with_added_tokens=True).values()), tuple(notes))

    @classmethod
    def load(cls, path: Path, end_token: str | None = None, start_token: str | None = None) -> Tokenizer:
        """A tokenizer.json, as `tokenizers` and Hugging Face models have it, or the folder of one.

        Args:
          end_token, start_token: as in DataConfig.

        Raises:
          ConfigError: it is not there, is something else, or has no token that ends a document.
        """
        inner, names = read_tokenizer(path)
        return cls.wrap(inner, str(path), Names(end_token or names.end, start_token or names.start))

    @classmethod
    def train(cls, texts: Sequence[str], vocab: int) -> Tokenizer:
        """A byte-level BPE of `vocab` entries, fewer when the texts do not have that many pairs to merge.

        Deterministic in the order and content of `texts`. Id 0 is <|endoftext|>. Longer words than _LONGEST_WORD are
        several.
        """
        require_vocab(vocab)
        inner = tokenizers.Tokenizer(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab,
            special_tokens=[END_OF_DOCUMENT[0]],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        inner.train_from_iterator(itertools.chain.from_iterable(map(_bounded_words, texts)), trainer)
        return cls.wrap(inner, "the trained tokenizer")

    def save(self, folder: Path) -> None:
        """Writes what `load` reads from `folder`, which exists."""
        names = Names(self.inner.id_to_token(self.eod), self.inner.id_to_token(self.start))
        write_tokenizer(self.inner, names, folder)

    def require_entries_of(self, other: Tokenizer, way_out: str) -> None:
        """Raises ConfigError when a token of `other` has another id here, or none: a model would read other words."""
        mine, theirs = (tokenizer.inner.get_vocab(with_added_tokens=True) for tokenizer in (self, other))
        moved = sorted((id, token) for token, id in theirs.items() if mine.get(token) != id)
        if moved:
            id, token = moved[0]
            raise ConfigError(
                f"the weights of init.from know other tokens: {len(moved):,} of {len(theirs):,} have another id in "
                f"this tokenizer, or none (first {token!r}, {id} there and {mine.get(token)} here); use {way_out}"
            )

    def check_fits(self, vocab: int) -> None:
        """Raises ConfigError when the model has no row for some of the ids."""
        if self.size > vocab:
            raise ConfigError(
                f"data.tokenizer has {self.size} entries and model.vocab={vocab}; use model.vocab={self.size}"
            )

    @property
    def unknown(self) -> int | None:
        """The id that stands for what the tokenizer has no token for, if it has one."""
        return self._encoder.unknown

    def first_lost(self, text: str) -> str:
        """The first character, or word, of `text` that the tokenizer has no token for."""
        return self._encoder.first_lost(text)

    def encode(self, text: str) -> np.ndarray:
        """int32 [tokens], without those at the ends of a document."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """As `encode`, for each text; runs on all cores. Text never becomes a special token.

        Raises:
          ConfigError: the tokenizer has no token for some of the text.
        """
        return self._encoder.encode_batch(texts)

    def encode_documents(self, texts: Sequence[str]) -> list[np.ndarray]:
        """int32 [tokens] for each text, as it is trained on: behind `start`, unless that is `eod`, and before `eod`.

        Nothing of a text that is nothing to the tokenizer, such as white space to some.
        """
        begin, end = self._begin(self.start != self.eod), np.array([self.eod], np.int32)
        return [np.concatenate([begin, ids, end]) if len(ids) else ids for ids in self.encode_batch(texts)]

    def encode_prompt(self, text: str) -> np.ndarray:
        """int32 [tokens, 1 at least]: what generation goes on from, as documents begin in training."""
        begin = self._begin(not text or self.start != self.eod)
        return np.concatenate([begin, self.encode(text)])

    def _begin(self, begins: bool) -> np.ndarray:
        return np.array([self.start] * begins, np.int32)

    @cached_property
    def _encoder(self) -> Encoder:
        return Encoder(self.inner.to_str(), self.eod)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of `ids`; special tokens leave nothing, a character cut in half leaves U+FFFD."""
        return self.inner.decode([int(id) for id in ids], skip_special_tokens=True)

    def bytes_per_token(self, vocab: int) -> np.ndarray | None:
        """int32 [vocab]: UTF-8 bytes each id stands for, 0 for special tokens and for ids without a token.

        None for a tokenizer whose tokens do not spell the text (WordPiece, say): it has no bits per byte.
        """
        description = json.loads(self.inner.to_str())
        kinds = set(_decoder_types(description["decoder"]))
        if "ByteLevel" in kinds:
            num_bytes: Callable[[str], int] = len  # each character of a token stands for one byte
        elif kinds & {"Metaspace", "ByteFallback"}:
            num_bytes = _sentencepiece_bytes
        else:
            return None
        table = np.zeros(vocab, np.int32)
        for token, id in self.inner.get_vocab(with_added_tokens=False).items():
            table[id] = num_bytes(token)
        for added in description["added_tokens"]:
            table[added["id"]] = 0 if added["special"] else len(added["content"].encode())
        return table


def require_vocab(vocab: int) -> None:
    """Raises ConfigError when no tokenizer of so few entries can be trained."""
    if vocab < SMALLEST_VOCAB:
        raise ConfigError(
            f"model.vocab={vocab} is too small for a byte-level tokenizer; use model.vocab={SMALLEST_VOCAB} or more"
        )


def _end(special: dict[str, int], source: str, name: str | None) -> int:
    if name is not None:
        return _named(special, source, "data.end_token", name)
    found = next((special[name] for name in END_OF_DOCUMENT if name in special), None)
    if found is None:
        raise ConfigError(
            f"data.tokenizer: {source} has no end-of-document token of a known name; name one of its special tokens as "
            f"data.end_token ({_some(special)}), or leave data.tokenizer out"
        )
    return found


def _named(special: dict[str, int], source: str, key: str, name: str | None) -> int:
    if name not in special:
        raise ConfigError(f"{key}: {source} has no special token {name!r}; it has {_some(special)}")
    return special[name]


def _some(special: dict[str, int]) -> str:
    names = [*special][:8]
    return ", ".join(map(repr, names)) + ", ..." * (len(special) > len(names)) if names else "none at all"


def _bounded_words(text: str) -> Iterator[str]:
    """`text` in parts, cut inside of words that are too long to be trained on."""
    start = 0
    for match in _LONG_WORD.finditer(text):
        yield text[start : match.end()]
        start = match.end()
    yield text[start:]


def _decoder_types(decoder: dict[str, Any] | None) -> Iterator[str]:
    if decoder is not None:
        yield decoder["type"]
        for part in decoder.get("decoders", []):
            yield from _decoder_types(part)


def _sentencepiece_bytes(token: str) -> int:
    return 1 if _BYTE_TOKEN.fullmatch(token) else len(token.replace("▁", " ").encode())
