"""Megatron-LM's indexed dataset: token arrays end to end in PREFIX.bin, where each begins in PREFIX.idx.

Byte for byte the layout of `megatron/core/datasets/indexed_dataset.py`, little-endian, so corpora tokenised
for Megatron train here and ours train there. A *sequence* is one token array; a *document* is one or more
sequences. Files are memory-mapped and every offset is 64-bit. Knows nothing of text or windows.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

from trainer.errors import ConfigError

_HEADER = struct.Struct("<9sQBQQ")
"""Magic, version, dtype code, number of sequences, number of document borders (documents + 1)."""
_MAGIC = b"MMIDIDX\x00\x00"
_VERSION = 1
_TOKEN_DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_FLOAT_DTYPES = {6: "float64", 7: "float32"}
_CODES = {np.dtype(name): code for code, name in _TOKEN_DTYPES.items()}
_REMEDY = "copy or make the pair anew"


def token_dtype(vocab: int) -> np.dtype:
    """What Megatron stores token ids of this vocabulary in: uint16 below 65,500 entries, else int32."""
    return np.dtype("<u2" if vocab < 65_500 else "<i4")


def bin_file(prefix: Path) -> Path:
    return Path(f"{prefix}.bin")


def idx_file(prefix: Path) -> Path:
    return Path(f"{prefix}.idx")


def find_pair(path: str | list[str]) -> Path | None:
    """The prefix, where `data.path` names a .bin/.idx pair by prefix or by a file; None where it names text.

    Raises:
      ConfigError: half of the pair is missing, or other paths stand beside it.
    """
    names = [path] if isinstance(path, str) else path
    prefixes = [prefix for name in names if (prefix := _pair_prefix(name)) is not None]
    if not prefixes:
        return None
    if len(names) > 1:
        raise ConfigError(f"data.path: the pair {prefixes[0]}.bin/.idx trains alone; name it and nothing else")
    for file in (bin_file(prefixes[0]), idx_file(prefixes[0])):
        if not file.is_file():
            raise ConfigError(f"data.path: {file} does not exist; a Megatron data set is a .bin and an .idx file")
    return prefixes[0]


def _pair_prefix(name: str) -> Path | None:
    path = Path(name)
    if path.suffix in (".bin", ".idx"):
        return path.with_suffix("")
    is_pair = not path.exists() and (bin_file(path).is_file() or idx_file(path).is_file())
    return path if is_pair else None


@dataclass(frozen=True, eq=False)
class IndexedDataset:
    """A memory-mapped pair. Reading it costs no memory beyond the pages that are touched."""

    tokens: np.ndarray
    """[elements of the .bin], the dtype that the .idx names."""
    lengths: np.ndarray
    """int32 [num_sequences]: tokens in each sequence."""
    offsets: np.ndarray
    """int64 [num_sequences]: bytes in the .bin before each sequence."""
    documents: np.ndarray
    """int64 [num_documents + 1]: document d is the sequences documents[d] up to documents[d + 1]."""

    @classmethod
    def open(cls, prefix: Path) -> IndexedDataset:
        """Raises ConfigError for a pair that is damaged, truncated, multimodal or not of integers."""
        try:
            dtype, lengths, offsets, documents = _read_index(idx_file(prefix))
            _check_size(prefix, lengths, offsets, dtype)
            tokens = np.memmap(bin_file(prefix), dtype=dtype, mode="r")
        except OSError as error:
            raise ConfigError(f"data.path: {error.filename} cannot be read ({error.strerror})") from error
        return cls(tokens, lengths, offsets, documents)

    @property
    def num_documents(self) -> int:
        return len(self.documents) - 1

    @property
    def num_tokens(self) -> int:
        return int(self.lengths.sum(dtype=np.int64))

    def document(self, index: int) -> np.ndarray:
        """The tokens of one document, its end-of-document token included."""
        sequences = range(self.documents[index], self.documents[index + 1])
        return np.concatenate([self._sequence(sequence) for sequence in sequences] or [self.tokens[:0]])

    def cut(self, tokens: int) -> IndexedDataset:
        """The one document as two: its first `tokens`, and the rest."""
        ends = np.cumsum(self.lengths, dtype=np.int64)
        at = int(np.searchsorted(ends, tokens))
        kept = tokens - int(ends[at] - self.lengths[at])
        lengths = np.insert(self.lengths, at, kept)
        lengths[at + 1] -= kept
        offsets = np.insert(self.offsets, at, self.offsets[at])
        offsets[at + 1] += kept * self.tokens.itemsize
        return IndexedDataset(self.tokens, lengths, offsets, np.array([0, at + 1, len(lengths)]))

    def _sequence(self, index: int) -> np.ndarray:
        start = int(self.offsets[index]) // self.tokens.itemsize
        return self.tokens[start : start + int(self.lengths[index])]


class IndexedWriter:
    """Writes a pair, one sequence per document. The .idx comes last, and only when nothing went wrong."""

    def __init__(self, prefix: Path, dtype: np.dtype) -> None:
        self._prefix = prefix
        self._dtype = dtype
        self._lengths: list[int] = []
        self._bin = bin_file(prefix).open("wb")

    def add(self, tokens: np.ndarray) -> None:
        """One document: int [length], the end-of-document token already appended."""
        if len(tokens) >= 2**31:
            raise ConfigError(f"a document of {len(tokens):,} tokens is past the format's limit of 2**31 - 1; split it")
        self._bin.write(np.ascontiguousarray(tokens, dtype=self._dtype).data)
        self._lengths.append(len(tokens))

    def __enter__(self) -> IndexedWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bin.close()
        if error is None:
            idx_file(self._prefix).write_bytes(_index_bytes(self._dtype, self._lengths))


def _index_bytes(dtype: np.dtype, lengths: Sequence[int]) -> bytes:
    count = len(lengths)
    ends = np.cumsum(np.array(lengths, dtype=np.int64)) * dtype.itemsize
    return b"".join(
        [
            _HEADER.pack(_MAGIC, _VERSION, _CODES[dtype], count, count + 1),
            np.array(lengths, dtype="<i4").tobytes(),
            np.concatenate([[0], ends[:-1]]).astype("<i8")[:count].tobytes(),
            np.arange(count + 1, dtype="<i8").tobytes(),
        ]
    )


def _read_index(file: Path) -> tuple[np.dtype, np.ndarray, np.ndarray, np.ndarray]:
    if file.stat().st_size < _HEADER.size:
        raise ConfigError(f"{file} is too short to be an index ({file.stat().st_size} bytes); {_REMEDY}")
    index = np.memmap(file, dtype=np.uint8, mode="r")
    dtype, num_sequences, num_borders = _read_header(file, index[: _HEADER.size].tobytes())
    expected = _HEADER.size + (4 + 8) * num_sequences + 8 * num_borders
    if num_sequences and len(index) == expected + num_sequences:
        raise ConfigError(f"{file} is multimodal (it has a mode per sequence); use a pair of text only")
    if len(index) != expected:
        raise ConfigError(
            f"{file} should have {expected} bytes for {num_sequences} sequences and {num_borders - 1} "
            f"documents but has {len(index)}; {_REMEDY}"
        )
    lengths = np.frombuffer(index, "<i4", num_sequences, _HEADER.size)
    offsets = np.frombuffer(index, "<i8", num_sequences, _HEADER.size + 4 * num_sequences)
    documents = np.frombuffer(index, "<i8", num_borders, _HEADER.size + 12 * num_sequences)
    if num_borders < 2 or documents[0] != 0 or documents[-1] != num_sequences or (np.diff(documents) < 0).any():
        raise ConfigError(f"{file}: its document borders do not rise from 0 to {num_sequences}; {_REMEDY}")
    return dtype, lengths, offsets, documents


def _read_header(file: Path, header: bytes) -> tuple[np.dtype, int, int]:
    magic, version, code, num_sequences, num_borders = _HEADER.unpack(header)
    if magic != _MAGIC:
        raise ConfigError(f"{file} is no Megatron index: it begins with {magic!r}, not {_MAGIC!r}; {_REMEDY}")
    if version != _VERSION:
        raise ConfigError(f"{file} has version {version}; only version {_VERSION} is known")
    if code in _FLOAT_DTYPES:
        raise ConfigError(f"{file} holds {_FLOAT_DTYPES[code]} (dtype code {code}); token ids are integers")
    if code not in _TOKEN_DTYPES:
        raise ConfigError(f"{file} has dtype code {code}; known are {sorted(_TOKEN_DTYPES)}")
    return np.dtype(_TOKEN_DTYPES[code]), num_sequences, num_borders


def _check_size(prefix: Path, lengths: np.ndarray, offsets: np.ndarray, dtype: np.dtype) -> None:
    ends = offsets + lengths.astype(np.int64) * dtype.itemsize
    expected, found = int(np.max(ends, initial=0)), bin_file(prefix).stat().st_size
    if expected != found:
        raise ConfigError(f"{idx_file(prefix)} says {expected} bytes, {bin_file(prefix)} has {found}; {_REMEDY}")
    if not expected:
        raise ConfigError(f"{bin_file(prefix)} holds no tokens; {_REMEDY}")
    outside = (ends < offsets).any()  # past what 64 bits count
    if outside or lengths.min() < 0 or offsets.min() < 0 or (offsets % dtype.itemsize).any():
        raise ConfigError(f"{idx_file(prefix)} has a negative length or an offset inside a token; {_REMEDY}")
