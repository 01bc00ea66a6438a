"""Text to token ids and back, and how many bytes of text each id stands for.

A thin hold on `tokenizers`: what it adds is one end-of-document token, errors a user can act on, and the
table that turns nats per token into bits per byte. Knows nothing of files other than tokenizer.json.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from trainer.data.pieces import may_be_cut, pieces
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
_PIECE = 1 << 18
"""A longer text is encoded in pieces of so many characters, on all cores like many short ones, where it may be cut."""
_MOST_WHOLE = 1 << 26
"""Characters encoded as one piece, at most: they take some 10 GB."""
_GROUP = 1 << 21
"""Characters encoded at a time: until they are done, the library keeps about 100 bytes per token."""
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


@dataclass(frozen=True, eq=False)
class Tokenizer:
    inner: tokenizers.Tokenizer
    eod: int
    """The id that ends a document."""
    size: int
    """One more than the largest id."""

    @classmethod
    def wrap(cls, inner: tokenizers.Tokenizer, source: str) -> Tokenizer:
        """Raises ConfigError when there is no token that ends a document."""
        # The text's own "<|endoftext|>" is text, and a document is encoded whole.
        inner.encode_special_tokens = True
        inner.no_truncation()
        inner.no_padding()
        # Only special ones: to Gemma, </s> is a piece of HTML.
        added = inner.get_added_tokens_decoder()
        special = {token.content: id for id, token in added.items() if token.special}
        eod = next((special[name] for name in END_OF_DOCUMENT if name in special), None)
        if eod is None:
            raise ConfigError(
                f"data.tokenizer: {source} has no end-of-document token; give it one of "
                f"{', '.join(END_OF_DOCUMENT)} as a special token, or leave data.tokenizer out"
            )
        return cls(inner, eod, 1 + max(inner.get_vocab(with_added_tokens=True).values()))

    @classmethod
    def load(cls, file: Path) -> Tokenizer:
        """A tokenizer.json, as `tokenizers` and Hugging Face models have it."""
        if not file.is_file():
            raise ConfigError(f"data.tokenizer: {file} does not exist; name a tokenizer.json, or leave the key out")
        try:
            inner = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises nothing narrower
            raise ConfigError(f"data.tokenizer: {file} is not a tokenizer.json ({error})") from error
        return cls.wrap(inner, str(file))

    @classmethod
    def train(cls, texts: Sequence[str], vocab: int) -> Tokenizer:
        """A byte-level BPE of `vocab` entries, fewer when the texts do not have that many pairs to merge.

        Deterministic in the order and content of `texts`. Id 0 is <|endoftext|>.
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
        inner.train_from_iterator(texts, trainer)
        return cls.wrap(inner, "the trained tokenizer")

    def save(self, file: Path) -> None:
        self.inner.save(str(file))

    def check_fits(self, vocab: int) -> None:
        """Raises ConfigError when the model has no row for some of the ids."""
        if self.size > vocab:
            raise ConfigError(
                f"data.tokenizer has {self.size} entries and model.vocab={vocab}; use model.vocab={self.size}"
            )

    def encode(self, text: str) -> np.ndarray:
        """int32 [tokens], without an end-of-document token."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """int32 [tokens] for each text, without end-of-document tokens; runs on all cores."""
        cut = [self._cut(text) for text in texts]
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

    @cached_property
    def _may_be_cut(self) -> bool:
        return may_be_cut(json.loads(self.inner.to_str()))

    def _encode_pieces(self, pieces: Iterable[str]) -> Iterator[np.ndarray]:
        for group in groups(pieces, _GROUP):
            for encoding in self.inner.encode_batch_fast(group, add_special_tokens=False):
                yield np.array(encoding.ids, np.int32)

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


def _decoder_types(decoder: dict[str, Any] | None) -> Iterator[str]:
    if decoder is not None:
        yield decoder["type"]
        for part in decoder.get("decoders", []):
            yield from _decoder_types(part)


def _sentencepiece_bytes(token: str) -> int:
    return 1 if _BYTE_TOKEN.fullmatch(token) else len(token.replace("▁", " ").encode())
