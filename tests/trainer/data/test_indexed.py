"""Megatron's pair, byte for byte, and what a damaged one is told."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from trainer.data.indexed import IndexedDataset, IndexedWriter, find_pair, token_dtype
from trainer.errors import ConfigError

DOCUMENTS = [[7, 8, 9, 0], [0], [65_499, 1, 0]]


def golden(dtype: str = "H", code: int = 8) -> tuple[bytes, bytes]:
    """DOCUMENTS as Megatron's own builder lays them down: (.bin, .idx)."""
    size = struct.calcsize(f"<{dtype}")
    tokens = struct.pack(f"<8{dtype}", 7, 8, 9, 0, 0, 65_499, 1, 0)
    index = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, 3, 4)
    index += struct.pack("<3i", 4, 1, 3) + struct.pack("<3q", 0, 4 * size, 5 * size) + struct.pack("<4q", 0, 1, 2, 3)
    return tokens, index


def write(prefix: Path, tokens: bytes, index: bytes) -> Path:
    prefix.with_name(prefix.name + ".bin").write_bytes(tokens)
    prefix.with_name(prefix.name + ".idx").write_bytes(index)
    return prefix


@pytest.mark.parametrize(("vocab", "dtype", "code"), [(65_499, "H", 8), (65_500, "i", 4)])
def test_what_is_written_is_megatrons_to_the_byte(tmp_path: Path, vocab: int, dtype: str, code: int):
    with IndexedWriter(tmp_path / "a.b", token_dtype(vocab)) as writer:
        for document in DOCUMENTS:
            writer.add(np.array(document))
    assert ((tmp_path / "a.b.bin").read_bytes(), (tmp_path / "a.b.idx").read_bytes()) == golden(dtype, code)


@pytest.mark.parametrize(("dtype", "code"), [("H", 8), ("i", 4), ("q", 5)])
def test_what_megatron_wrote_is_read(tmp_path: Path, dtype: str, code: int):
    indexed = IndexedDataset.open(write(tmp_path / "a", *golden(dtype, code)))
    assert [indexed.document(d).tolist() for d in range(indexed.num_documents)] == DOCUMENTS
    assert indexed.num_tokens == 8
    assert isinstance(indexed.tokens, np.memmap)


def test_a_document_of_several_sequences_is_joined_wherever_they_stand(tmp_path: Path):
    index = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, 3, 3)
    index += struct.pack("<3i", 1, 2, 1) + struct.pack("<3q", 12, 4, 0) + struct.pack("<3q", 0, 2, 3)
    indexed = IndexedDataset.open(write(tmp_path / "a", struct.pack("<4i", 10, 11, 12, 13), index))
    assert [indexed.document(d).tolist() for d in range(2)] == [[13, 11, 12], [10]]


def test_nothing_is_believed_of_a_writer_that_failed(tmp_path: Path):
    def fail() -> None:
        with IndexedWriter(tmp_path / "a", token_dtype(100)) as writer:
            writer.add(np.array([1, 2]))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert not (tmp_path / "a.idx").exists()


TOKENS, INDEX = golden()


@pytest.mark.parametrize(
    ("tokens", "index", "message"),
    [
        (TOKENS[:-2], INDEX, r"a\.idx says 16 bytes, .*a\.bin has 14"),
        (TOKENS + b"\0\0", INDEX, r"a\.idx says 16 bytes, .*a\.bin has 18"),
        (TOKENS, b"MMIDIDX", "too short to be an index"),
        (TOKENS, b"TNTIDX\x00\x00\x00" + INDEX[9:], "no Megatron index: it begins with b'TNTIDX"),
        (TOKENS, INDEX[:9] + struct.pack("<Q", 2) + INDEX[17:], "version 2; only version 1"),
        (
            TOKENS,
            INDEX[:17] + b"\x07" + INDEX[18:],
            r"holds float32 \(dtype code 7\); token ids are integers",
        ),
        (TOKENS, INDEX[:17] + b"\x09" + INDEX[18:], r"dtype code 9; known are \[1, 2, 3, 4, 5, 8\]"),
        (TOKENS, INDEX[:-1], "should have 102 bytes for 3 sequences and 3 documents but has 101"),
        (TOKENS, INDEX + b"\0\0\0", "multimodal"),
        (TOKENS, INDEX[:-8] + struct.pack("<q", 2), "document borders do not rise from 0 to 3"),
        (TOKENS, INDEX[:46] + struct.pack("<q", 1) + INDEX[54:], "an offset inside a token"),
        (b"", b"MMIDIDX\x00\x00" + struct.pack("<QBQQqq", 1, 8, 0, 2, 0, 0), "holds no tokens"),
    ],
)
def test_a_damaged_pair_is_refused(tmp_path: Path, tokens: bytes, index: bytes, message: str):
    write(tmp_path / "a", tokens, index)
    with pytest.raises(ConfigError, match=message):
        IndexedDataset.open(tmp_path / "a")


def test_a_pair_is_named_by_prefix_or_by_either_file(tmp_path: Path):
    prefix = write(tmp_path / "corpus.v1", TOKENS, INDEX)
    for name in ("corpus.v1", "corpus.v1.bin", "corpus.v1.idx"):
        assert find_pair(str(tmp_path / name)) == prefix
        assert find_pair([str(tmp_path / name)]) == prefix
    assert find_pair("stdlib") is None
    assert find_pair(str(tmp_path)) is None
    with pytest.raises(ConfigError, match="trains alone"):
        find_pair([str(prefix), "stdlib"])
    (tmp_path / "corpus.v1.bin").unlink()
    with pytest.raises(ConfigError, match=r"corpus\.v1\.bin does not exist; a Megatron data set is a \.bin and an"):
        find_pair(str(prefix))
