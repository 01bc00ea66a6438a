"""The work of making a corpus: train a tokenizer, tokenise every document, survey what came out.

Each pass streams, so memory does not grow with the text. Where a document stands, and so whether it is held
out, follows from a hash of its content. Knows nothing of the cache.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.progress import Progress

from trainer.data.corpus import read_documents
from trainer.data.encoder import groups
from trainer.data.indexed import IndexedDataset, IndexedWriter, bin_file, idx_file, token_dtype
from trainer.data.packing import TokenStream
from trainer.data.tokenizer import Tokenizer
from trainer.errors import ConfigError
from trainer.streams import make_console

_SAMPLE = 1 << 22
"""Characters a tokenizer is trained on: more costs seconds and saves hardly a token."""
_BATCH = 1 << 21
"""Characters tokenised, and tokens surveyed, at a time."""


def count_train(num_documents: int, holdout: float) -> int:
    """Documents that are trained on: all but the held-out part, which is one at least where two exist."""
    if holdout == 0 or num_documents < 2:
        return num_documents
    return num_documents - min(max(round(num_documents * holdout), 1), num_documents - 1)


def sample(documents: Iterable[str], holdout: float) -> list[str]:
    """What a tokenizer is trained on: of documents that will be trained on the first in order, _SAMPLE characters."""
    chosen: list[tuple[int, str]] = []  # a heap, the last in order on top
    size = num_documents = length = 0
    for document in documents:
        length = len(document)
        heapq.heappush(chosen, (-_rank(document), document[:_SAMPLE]))
        num_documents += 1
        size += min(len(document), _SAMPLE)
        while size - len(chosen[0][1]) >= _SAMPLE:
            size -= len(heapq.heappop(chosen)[1])
    texts = [text for _, text in sorted(chosen, reverse=True)]
    if num_documents == 1:  # its last part is held out
        return [texts[0][: count_train(length, holdout)]]
    return texts[: count_train(num_documents, holdout)]


@dataclass
class Unknown:
    """How much of a text a tokenizer has no token for, but an unknown one."""

    tokens: int = 0
    of: int = 0
    first: str = ""
    """The text in which one is first."""

    def look(self, text: str, ids: np.ndarray, unknown: int | None) -> None:
        found = 0 if unknown is None else int((ids == unknown).sum())
        self.first = text if found and not self.tokens else self.first
        self.tokens, self.of = self.tokens + found, self.of + len(ids)


def write_tokens(prefix: Path, files: Sequence[Path], text_key: str, tokenizer: Tokenizer, vocab: int) -> Unknown:
    """Writes the pair `prefix`: every document with its end-of-document token, in order of their hashes."""
    unknown = Unknown()
    arrived = prefix.with_name("arrived")
    dtype = token_dtype(vocab)
    ranks: list[int] = []
    with (
        progress("tokenising", sum(file.stat().st_size for file in files)) as advance,
        IndexedWriter(arrived, dtype) as writer,
    ):
        for texts in groups(read_documents(files, text_key), _BATCH):
            for text, ids in zip(texts, tokenizer.encode_documents(texts), strict=True):
                if len(ids):
                    writer.add(ids)
                    ranks.append(_rank(text))
                unknown.look(text, ids, tokenizer.unknown)
            advance(sum(len(text.encode()) for text in texts))
    if not ranks:
        raise ConfigError("data.tokenizer makes no token of any of the text; use another, or leave it out")
    unordered = IndexedDataset.open(arrived)
    with IndexedWriter(prefix, dtype) as writer:
        for document in np.argsort(np.array(ranks, np.uint64), kind="stable"):
            writer.add(unordered.document(int(document)))
    bin_file(arrived).unlink()
    idx_file(arrived).unlink()
    return unknown


@dataclass(frozen=True)
class Facts:
    """What is learnt from one reading of a pair."""

    hash: str
    """Hex; as `cat PREFIX.idx PREFIX.bin | sha256sum` prints it."""
    smallest: int
    largest: int
    """Token ids."""
    first: int | None
    last: int | None
    """The ids that every document begins and ends with; None where they differ."""

    @classmethod
    def load(cls, file: Path) -> Facts:
        try:
            facts = json.loads(file.read_text(encoding="utf-8"))
            ends = (None if facts[name] is None else int(facts[name]) for name in ("first", "last"))
            return cls(str(facts["hash"]), int(facts["smallest"]), int(facts["largest"]), *ends)
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
            raise ConfigError(
                f"data.cache: {file} is damaged ({error}); remove its folder, and it is made anew"
            ) from error

    def save(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self)), encoding="utf-8")


def survey(prefix: Path) -> Facts:
    indexed = IndexedDataset.open(prefix)
    tokens = indexed.tokens
    digest = hashlib.sha256(idx_file(prefix).read_bytes())
    smallest = largest = int(tokens[0])
    with progress("checking tokens", len(tokens)) as advance:
        for begin in range(0, len(tokens), _BATCH):
            chunk = np.ascontiguousarray(tokens[begin : begin + _BATCH])
            digest.update(chunk.data)
            smallest, largest = min(smallest, int(chunk.min())), max(largest, int(chunk.max()))
            advance(len(chunk))
    stream = TokenStream(indexed, range(indexed.num_documents))
    starts, ends = np.append(0, stream.borders[:-1]), stream.borders - 1
    return Facts(digest.hexdigest(), smallest, largest, _common(stream, starts), _common(stream, ends))


def _common(stream: TokenStream, places: np.ndarray) -> int | None:
    """The token that stands at all the places; None where they differ."""
    token = int(stream.at(places[:1])[0])
    chunks = (places[begin : begin + _BATCH] for begin in range(0, len(places), _BATCH))
    return token if all((stream.at(chunk) == token).all() for chunk in chunks) else None


def _rank(text: str) -> int:
    """Where a document stands in the order: 64 bits of a hash of its text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, nothing in a pipe. `total` is None where nobody knows how much is left."""
    console = make_console(error=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda amount: bar.advance(task, amount)
