"""Documents end to end, cut into windows of S + 1 tokens: S inputs, and for each the next token as target.

A window remembers which document each token came from, so that attention, positions and the loss never cross
a border. Documents begin after a token, so that a model learns how they begin: it is their own first one, or the one
that ended the document before. Every place in the stream is 64-bit, and a window costs O(S) whatever the size of the
corpus. Knows nothing of order or batches. `S` is the sequence length, `N` a number of windows.
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
PADDING = -1
"""The index of a window in which nothing counts."""


class TokenStream:
    """The tokens of a range of documents end to end, wherever they stand in the file."""

    def __init__(self, indexed: IndexedDataset, documents: range, start: int | None = None) -> None:
        """`start` stands before the first token, at place -1, unless it is None."""
        self.start = start
        first, last = indexed.documents[documents.start], indexed.documents[documents.stop]
        lengths = indexed.lengths[first:last]
        self._tokens = np.asarray(indexed.tokens)  # a slice of a memmap costs more than what it reads
        self._ends = np.cumsum(lengths, dtype=np.int64)
        self._shifts = indexed.offsets[first:last] // indexed.tokens.itemsize - (self._ends - lengths)
        self._in_order = not len(lengths) or bool((self._shifts == self._shifts[0]).all())
        num_sequences = indexed.documents[documents.start + 1 : documents.stop + 1] - first
        document_ends = np.append(self._ends, 0)[num_sequences - 1]  # 0 where there is none before
        self.borders = document_ends[np.diff(document_ends, prepend=0) > 0]
        """int64, ascending: places at which a document ends, and the next that is not empty begins."""

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def read(self, begin: int, end: int) -> np.ndarray:
        """Tokens begin up to end [n], as stored."""
        if begin < 0:
            return np.append(np.array([self.start], self._tokens.dtype), self.read(0, end))
        if self._in_order:
            shift = int(self._shifts[0])
            return self._tokens[begin + shift : end + shift]
        return self.at(np.arange(begin, end, dtype=np.int64))

    def at(self, place: np.ndarray) -> np.ndarray:
        """Tokens [n] at the places int64 [n]."""
        if self._in_order:
            return self._tokens[place + self._shifts[0]]
        return self._tokens[place + self._shifts[np.searchsorted(self._ends, place, side="right")]]


class PackedSequences:
    """Windows of a range of documents, in their order. Item k is arrays [S], named and typed as in FIELDS:

    tokens: the inputs.
    targets: the token after each input.
    segments: 1, 2, ... for the documents of the window; 0 is padding.
    positions: from 0 in each document, and at the start of the window.
    weights: 1 where the target counts; 0 where it belongs to another document, and in padding.

    Windows share one token (a target, then an input), so each token is a target once, and without `start` each but
    the first. The last window is padded.

    Args:
      start: the token that ends documents, where it is also the one that they begin after: the first begins after
        another one, and the end of each is the first input of the next. None where documents bring a token of their
        own to begin with, or none: then the first token of a document is no target.
    """

    def __init__(self, indexed: IndexedDataset, documents: range, sequence: int, start: int | None = None) -> None:
        self._stream = TokenStream(indexed, documents, start)
        self._sequence = sequence
        self._lead = int(start is not None)  # places of the stream that are no token of a document
        if self._num_inputs < 1:
            raise ConfigError(
                f"data: documents {documents.start} to {documents.stop} of {indexed.num_documents} hold "
                f"{len(self._stream)} tokens, and {2 - self._lead} make the shortest sample; give data.path more "
                "text, or change data.holdout"
            )

    @property
    def sequence(self) -> int:
        """Tokens per item, S."""
        return self._sequence

    @property
    def num_tokens(self) -> int:
        return len(self._stream)

    @property
    def num_targets(self) -> int:
        """Tokens that count: their weights."""
        return self.num_tokens if self._lead else self.num_tokens - len(self._stream.borders)

    @property
    def _num_inputs(self) -> int:
        return self.num_tokens + self._lead - 1

    def __len__(self) -> int:
        return -(-self._num_inputs // self._sequence)

    def __getitem__(self, index: int) -> Item:
        if not 0 <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        return {name: array[0] for name, array in self.windows(np.array([index])).items()}

    def windows(self, index: np.ndarray) -> Item:
        """Several at once: int64 [N] -> the fields [N, S]. Each index is below `len`, or PADDING."""
        begin = index.astype(np.int64) * self._sequence
        num_inputs = np.where(index == PADDING, 0, np.minimum(self._num_inputs - begin, self._sequence))
        tokens, targets = self._tokens(begin, num_inputs)
        row, column = self._borders(begin, num_inputs)
        weights = np.ones(tokens.shape, np.float32)
        if not self._lead:
            weights[row, column - 1] = 0
        inside = column < num_inputs[row]  # the last target is of a document whose inputs are in the next window
        segments, positions = self._runs(len(index), row[inside], column[inside])
        for short in np.flatnonzero(num_inputs < self._sequence):
            for field in (segments, positions, weights):
                field[short, num_inputs[short] :] = 0
        return {
            "tokens": tokens,
            "targets": targets,
            "segments": segments,
            "positions": positions,
            "weights": weights,
        }

    def _tokens(self, begin: np.ndarray, num_inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets, int32 [N, S]; 0 in padding."""
        tokens, targets = (np.zeros((len(begin), self._sequence), np.int32) for _ in range(2))
        for row, (first, count) in enumerate(zip(begin.tolist(), num_inputs.tolist(), strict=True)):
            if count:
                found = self._stream.read(first - self._lead, first + count + 1 - self._lead)
                tokens[row, :count], targets[row, :count] = found[:-1], found[1:]
        return tokens, targets

    def _borders(self, begin: np.ndarray, num_inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where documents begin behind the first token of their windows: rows and columns, in order, int64 [n] each.

        A column of S is that of the last target. With a start token, a document begins with the end of the one before:
        one place earlier, in a stream that has one more at its head.
        """
        borders = self._stream.borders
        low, high = (np.searchsorted(borders, place, side="right") for place in (begin, begin + num_inputs))
        count = high - low
        row = np.repeat(np.arange(len(begin)), count)
        behind = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
        return row, borders[low[row] + behind] - begin[row]

    def _runs(self, num: int, row: np.ndarray, column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Segments and positions, int32 [N, S], of `num` windows with documents that begin there, besides the first."""
        rows = np.concatenate([np.arange(num), row])
        columns = np.concatenate([np.zeros(num, np.int64), column])
        order = np.lexsort((columns, rows))
        rows, columns = rows[order], columns[order]
        lengths = np.diff(rows * self._sequence + columns, append=num * self._sequence)
        segment = np.arange(1, len(rows) + 1) - np.searchsorted(rows, rows)
        segments = np.repeat(segment.astype(np.int32), lengths).reshape(num, self._sequence)
        starts = np.repeat(columns.astype(np.int32), lengths).reshape(num, self._sequence)
        return segments, np.arange(self._sequence, dtype=np.int32) - starts
