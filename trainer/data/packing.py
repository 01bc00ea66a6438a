"""Documents end to end, cut into windows of S + 1 tokens: S inputs, and for each the next token as target.

A window remembers which document each token came from, so that attention, positions and the loss never cross
a border. Every place in the stream is 64-bit, and an item costs O(S) whatever the size of the corpus. Knows
nothing of order or batches. `S` is the sequence length.
"""

from __future__ import annotations

import numpy as np

from trainer.data.indexed import IndexedDataset
from trainer.errors import ConfigError

Item = dict[str, np.ndarray]

FIELDS = {
    "tokens": np.dtype(np.int32),
    "targets": np.dtype(np.int32),
    "segments": np.dtype(np.int32),
    "positions": np.dtype(np.int32),
    "weights": np.dtype(np.float32),
}
"""Name and dtype of each array of an item."""


class TokenStream:
    """The tokens of a range of documents end to end, wherever they stand in the file."""

    def __init__(self, indexed: IndexedDataset, documents: range) -> None:
        first, last = indexed.documents[documents.start], indexed.documents[documents.stop]
        lengths = indexed.lengths[first:last]
        self._tokens = indexed.tokens
        self._ends = np.cumsum(lengths, dtype=np.int64)
        self._shifts = indexed.offsets[first:last] // indexed.tokens.itemsize - (self._ends - lengths)
        self._document_ends = indexed.documents[documents.start + 1 : documents.stop + 1] - first

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def read(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens begin up to end [n], as stored, and the document of the range each belongs to, int64 [n]."""
        place = np.arange(begin, end, dtype=np.int64)
        sequence = np.searchsorted(self._ends, place, side="right")
        document = np.searchsorted(self._document_ends, sequence, side="right")
        return self._tokens[place + self._shifts[sequence]], document


class PackedSequences:
    """Windows of a range of documents, in their order. Item k is arrays [S], named and typed as in FIELDS:

    tokens: the inputs.
    targets: the token after each input.
    segments: 1, 2, ... for the documents of the window; 0 is padding.
    positions: from 0 in each document, and at the start of the window.
    weights: 1 where the target counts; 0 where it belongs to another document, and in padding.

    Windows share one token (a target, then an input), so each token but the first is a target once. The last
    window is padded.
    """

    def __init__(self, indexed: IndexedDataset, documents: range, sequence: int) -> None:
        self._stream = TokenStream(indexed, documents)
        self._sequence = sequence
        if len(self._stream) < 2:
            raise ConfigError(
                f"data: documents {documents.start} to {documents.stop} of {indexed.num_documents} hold "
                f"{len(self._stream)} tokens, and 2 make the shortest sample; give data.path more "
                "text, or change data.holdout"
            )

    @property
    def sequence(self) -> int:
        """Tokens per item, S."""
        return self._sequence

    @property
    def num_tokens(self) -> int:
        return len(self._stream)

    def __len__(self) -> int:
        return -(-(self.num_tokens - 1) // self._sequence)

    def __getitem__(self, index: int) -> Item:
        if not 0 <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        begin = index * self._sequence
        tokens, document = self._stream.read(begin, min(begin + self._sequence + 1, self.num_tokens))
        same = document[1:] == document[:-1]
        first = np.concatenate([[True], ~same[:-1]])
        segments = np.cumsum(first)
        positions = np.arange(len(same)) - np.flatnonzero(first)[segments - 1]
        return self._padded(
            tokens=tokens[:-1], targets=tokens[1:], segments=segments, positions=positions, weights=same
        )

    def padding(self) -> Item:
        """An item in which nothing counts."""
        return self._padded()

    def _padded(self, **values: np.ndarray) -> Item:
        item = {name: np.zeros(self._sequence, dtype) for name, dtype in FIELDS.items()}
        for name, value in values.items():
            item[name][: len(value)] = value
        return item
