"""Whatever stands in the files of a data set, they are read, or refused in clear words, and no code in them is run."""

from __future__ import annotations

import functools
import gzip
import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

from tests.fuzz import damage
from tests.fuzz.harness import fuzzed, only_clear_errors
from trainer.data import corpus
from trainer.data.indexed import IndexedDataset, bin_file, idx_file
from trainer.data.packing import PackedSequences
from trainer.data.tokenizer import Tokenizer
from trainer.errors import ConfigError

TOKENS = np.arange(40, dtype="<u2").tobytes()
COUNTS = st.sampled_from([0, 1, 2, 3, 4, 5, 2**31, 2**40, 2**63, 2**64 - 1])
LENGTHS = st.lists(st.integers(0, 9) | st.sampled_from([-1, 2**31 - 1, -(2**31)]), min_size=3, max_size=3)
PLACES = st.sampled_from([0, 2, 8, 18, 20, 1, 78, 80, -2, 2**63 - 2, 2**62, -(2**63)]) | st.integers(0, 40)
BORDERS = st.lists(st.integers(-1, 4) | st.sampled_from([2**63 - 1, -(2**63)]), min_size=4, max_size=4)


def index(code: int, counts: tuple[int, int], lengths: list[int], places: list[int], borders: list[int]) -> bytes:
    header = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, *counts)
    return header + struct.pack("<3i", *lengths) + struct.pack("<3q", *places) + struct.pack("<4q", *borders)


WHOLE = index(8, (3, 4), [10, 10, 20], [0, 20, 40], [0, 1, 2, 3])
INDEXES = st.builds(
    index,
    st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 9, 255]),
    st.tuples(st.just(3) | COUNTS, st.just(4) | COUNTS),
    LENGTHS,
    st.lists(PLACES, min_size=3, max_size=3),
    st.just([0, 1, 2, 3]) | BORDERS,
) | damage.bytes_of(WHOLE)


@fuzzed(INDEXES, st.just(TOKENS) | damage.bytes_of(TOKENS))
def test_any_pair(index: bytes, tokens: bytes) -> None:
    """Of a pair that is believed, everything can be read."""
    with tempfile.TemporaryDirectory() as folder, only_clear_errors():
        prefix = Path(folder, "pair")
        idx_file(prefix).write_bytes(index)
        bin_file(prefix).write_bytes(tokens)
        indexed = IndexedDataset.open(prefix)
        total = sum(len(indexed.document(number)) for number in range(indexed.num_documents))
        assert total == indexed.num_tokens
        packed = PackedSequences(indexed, range(indexed.num_documents), 4)
        for number in range(len(packed)):
            assert packed[number]["segments"][0] == 1


RECORDS = b'{"text": "one two"}\n{"text": "three", "id": 4}\n'


@fuzzed(
    damage.bytes_of(RECORDS) | damage.bytes_of(gzip.compress(RECORDS)),
    st.sampled_from(["jsonl", "jsonl.gz", "txt", "gz"]),
)
def test_any_text_file(content: bytes, ending: str) -> None:
    with tempfile.TemporaryDirectory() as folder, only_clear_errors():
        Path(folder, f"file.{ending}").write_bytes(content)
        for text in corpus.read_documents(corpus.find_files(folder), "text"):
            text.encode("utf-8")


@functools.cache
def trained() -> Tokenizer:
    return Tokenizer.train(["to be or not to be, that is the question"] * 9, 280)


@fuzzed(st.deferred(lambda: damage.json_of(trained().inner.to_str(pretty=True))) | st.text(max_size=50))
def test_any_tokenizer(text: str) -> None:
    """One that is believed can write, and knows what its tokens are worth."""
    with tempfile.TemporaryDirectory() as folder, only_clear_errors():
        file = Path(folder, "tokenizer.json")
        file.write_text(text, encoding="utf-8", errors="replace")
        tokenizer = Tokenizer.load(file)
        tokenizer.check_fits(1000)
        tokenizer.decode(tokenizer.encode("to be é"))
        tokenizer.bytes_per_token(1000)


PAIRS = {
    "an end past 64 bits": index(8, (3, 4), [10, 10, 20], [2**63 - 2, 20, 40], [0, 1, 2, 3]),
    "more sequences than the file": index(8, (2**40, 2**40 + 1), [10, 10, 20], [0, 20, 40], [0, 1, 2, 3]),
    "more sequences than numbers": index(8, (2**64 - 1, 2**64 - 1), [10, 10, 20], [0, 20, 40], [0, 1, 2, 3]),
    "borders that go back": index(8, (3, 4), [10, 10, 20], [0, 20, 40], [0, 2**63 - 1, -(2**63), 3]),
}


@pytest.mark.parametrize("index", PAIRS.values(), ids=PAIRS)
def test_a_pair_that_points_outside_of_its_file_is_refused(index: bytes, tmp_path: Path) -> None:
    idx_file(tmp_path / "pair").write_bytes(index)
    bin_file(tmp_path / "pair").write_bytes(TOKENS)
    with only_clear_errors(), pytest.raises(ConfigError):
        IndexedDataset.open(tmp_path / "pair")


def test_a_record_nested_without_end_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": ' + "[" * 200_000)
    with only_clear_errors(), pytest.raises(ConfigError, match=r"x\.jsonl:1 is not JSON"):
        list(corpus.read_documents([tmp_path / "x.jsonl"], "text"))


@pytest.mark.parametrize("name", ["x.txt.gz", "x.jsonl.gz"])
def test_a_file_that_unpacks_without_end_fills_no_memory(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "MOST_BYTES", 1 << 20)
    with gzip.open(tmp_path / name, "wb", compresslevel=1) as file:
        for _ in range(400):
            file.write(b"a" * (1 << 20))
    with only_clear_errors(), pytest.raises(ConfigError, match="longer than"):
        list(corpus.read_documents([tmp_path / name], "text"))
