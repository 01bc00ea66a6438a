"""From `data:` to tokens on disk: read once, tokenised once, memory-mapped ever after.

What was made is kept in the cache under a hash of what it was made from: the files' contents, the tokenizer,
the vocabulary. Knows nothing of windows, batches or devices.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.cache import Say, cached_folder
from trainer.data.config import DataConfig
from trainer.data.corpus import find_files, is_jsonl, read_documents
from trainer.data.indexed import IndexedDataset, bin_file, find_pair, idx_file
from trainer.data.packing import PackedSequences, TokenStream
from trainer.data.tokenise import Facts, count_train, progress, sample, survey, write_tokens
from trainer.data.tokenizer import Tokenizer, require_vocab
from trainer.errors import ConfigError
from trainer.paths import STDLIB, local

_FORMAT = 2
"""Part of every cache key; to be raised when the same text would be laid down otherwise."""
_CHUNK = 1 << 21
"""Tokens counted at a time."""


@dataclass(frozen=True, eq=False)
class Corpus:
    """Tokenised documents, the last of them held out."""

    whole: IndexedDataset
    """As they stand on disk."""
    indexed: IndexedDataset
    """The same; but of a document that is alone the last part of its tokens is one of its own, so as to be held out."""
    num_train_documents: int
    vocab: int
    hash: str
    """Hex; of the tokens, of where documents begin, and of the token they begin after."""
    text_hash: str
    """The same without the last; what older versions took for the hash."""
    start: int | None
    """The token that ends documents, where they begin after it too; None where they bring their own, or have none."""
    tokenizer: Tokenizer | None
    bytes_per_token: np.ndarray | None
    """int32 [vocab]; None without a tokenizer, or with one whose tokens do not spell the text."""

    @property
    def eod(self) -> int | None:
        """The id that ends a document, where a tokenizer tells it."""
        return self.tokenizer.eod if self.tokenizer else None

    @property
    def train_documents(self) -> range:
        return range(self.num_train_documents)

    @property
    def heldout_documents(self) -> range:
        return range(self.num_train_documents, self.indexed.num_documents)

    def train(self, sequence: int) -> PackedSequences:
        """What is trained on, in samples of `sequence` tokens."""
        return PackedSequences(self.indexed, self.train_documents, sequence, self.start)

    def held_out(self, sequence: int) -> PackedSequences:
        """What is held out, likewise. Raises ConfigError when that is nothing, or nothing that could be measured."""
        if not self.heldout_documents:
            raise ConfigError("no text is held out to evaluate on; use data.holdout above 0")
        packed = PackedSequences(self.indexed, self.heldout_documents, sequence, self.start)
        if not packed.num_targets:
            raise ConfigError(
                f"the held-out text has {packed.num_tokens} tokens, each the first of its document, which is nothing "
                "to measure; raise data.holdout, or give data.path more text"
            )
        return packed

    def everything(self, sequence: int) -> PackedSequences:
        """All documents, likewise."""
        return PackedSequences(self.whole, range(self.whole.num_documents), sequence, self.start)

    @property
    def sizes(self) -> dict[str, int]:
        """How much of what there is."""
        return {
            "documents": self.indexed.num_documents,
            "held_out": len(self.heldout_documents),
            "tokens": self.indexed.num_tokens,
            "vocab": self.vocab,
        }

    def unigram_entropy(self) -> float:
        """Nats per training token: the loss of a model that knows only how often each id occurs.

        Reads all of the training tokens.
        """
        stream = TokenStream(self.indexed, self.train_documents)
        counts = np.zeros(self.vocab, np.int64)
        for begin in range(0, len(stream), _CHUNK):
            tokens = stream.read(begin, min(begin + _CHUNK, len(stream)))
            counts += np.bincount(tokens, minlength=self.vocab)
        if self.tokenizer and self.tokenizer.start != self.start:
            counts[self.tokenizer.start] = 0  # it begins documents, and is never a target
        p = counts[counts > 0] / counts.sum()
        return float(-(p * np.log(p)).sum())

    def heldout_text(self) -> bytes:
        """The held-out documents end to end, as UTF-8.

        Raises:
          ConfigError: nothing is held out, or there is no tokenizer to decode it.
        """
        if self.tokenizer is None:
            raise ConfigError("without a tokenizer the held-out tokens are not text; give data.tokenizer")
        text = "".join(self.tokenizer.decode(self.indexed.document(index)) for index in self.heldout_documents)
        if not text:
            raise ConfigError("no text is held out; raise data.holdout, or give data.path more documents")
        return text.encode()

    def xz_bits_per_byte(self) -> float:
        """What `xz -9e` makes of the held-out text: compressed bits per byte. Raises as heldout_text."""
        text = self.heldout_text()
        return 8 * len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)) / len(text)


def prepare(config: DataConfig, vocab: int, say: Say) -> Corpus:
    """The corpus that `config` describes, from the cache or made now; `say` gets a line for each thing done.

    Any number of processes may call this at once: those that share a cache wait for the first to make it. A
    Megatron pair is not copied, only read through once, and again when it has changed.

    Args:
      vocab: the model's vocabulary; every token id is below it.

    Raises:
      ConfigError: for whatever is wrong with the files, the tokenizer or the cache folder.
    """
    pair = find_pair(config.path)
    return _from_pair(pair, config, vocab, say) if pair else _from_text(config, vocab, say)


def require_room_for_bytes(config: DataConfig, vocab: int) -> None:
    """What `prepare` would say before it trains a tokenizer, said without reading the text.

    A name that is not here is let pass: it may be a pair's, on the machine that trains.

    Raises:
      ConfigError: the vocabulary has no room for the tokenizer that the text needs.
    """
    names = [config.path] if isinstance(config.path, str) else config.path
    is_here = all(name == STDLIB or Path(name).exists() for name in names)
    if config.tokenizer is None and is_here and find_pair(config.path) is None:
        require_vocab(vocab)


def files_in_both(one: DataConfig, other: DataConfig) -> list[Path]:
    """The files of `one` whose content a file of `other` has too; none where those can no longer be read."""
    try:
        theirs = _files(other)
    except ConfigError:
        return []
    sizes = Counter(file.stat().st_size for file in theirs)
    mine = [file for file in _files(one) if file.stat().st_size in sizes]
    wanted = {file.stat().st_size for file in mine}
    known = {_digest(file) for file in theirs if file.stat().st_size in wanted}
    return [file for file in mine if _digest(file) in known]


def _files(config: DataConfig) -> list[Path]:
    pair = find_pair(config.path)
    return [bin_file(pair)] if pair else find_files(config.path)


def _from_pair(pair: Path, config: DataConfig, vocab: int, say: Say) -> Corpus:
    indexed = IndexedDataset.open(pair)
    tokenizer = _given_tokenizer(config, vocab, say)
    stats = [(str(file.resolve()), file.stat()) for file in (bin_file(pair), idx_file(pair))]
    key = _key(pair=[(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats])
    folder = cached_folder(_root(config), key, lambda new: survey(pair).save(new / "facts.json"), say)
    facts = Facts.load(folder / "facts.json")
    corpus = _corpus(indexed, tokenizer, facts, config, vocab)
    for line in [*_about_ends(corpus, facts), *_about_holdout(corpus), _summary(corpus, pair)]:
        say(line)
    return corpus


def _from_text(config: DataConfig, vocab: int, say: Say) -> Corpus:
    files = find_files(config.path, say)
    given = _given_tokenizer(config, vocab, say)
    key = _key(
        files=_digests(files),
        text_key=config.text_key,
        vocab=vocab,
        tokenizer=[given.inner.to_str(), given.start, given.eod] if given else {"trained without": config.holdout},
    )
    folder = cached_folder(_root(config), key, lambda new: _build(new, files, given, config, vocab, say), say)
    indexed, tokenizer = IndexedDataset.open(folder / "tokens"), Tokenizer.load(folder)
    corpus = _corpus(indexed, tokenizer, Facts.load(folder / "facts.json"), config, vocab)
    for line in [*_about_holdout(corpus), _summary(corpus, folder)]:
        say(line)
    return corpus


def _build(
    folder: Path, files: Sequence[Path], given: Tokenizer | None, config: DataConfig, vocab: int, say: Say
) -> None:
    tokenizer = given or _train_tokenizer(files, config, vocab, say)
    tokenizer.save(folder)
    start = time.perf_counter()
    unknown = write_tokens(folder / "tokens", files, config.text_key, tokenizer, vocab)
    say(f"data: {len(files):,} file{'s' * (len(files) != 1)} tokenised in {time.perf_counter() - start:.1f} s")
    if unknown.tokens:
        say(
            f"WARNING: data: {unknown.tokens:,} of {unknown.of:,} tokens ({unknown.tokens / unknown.of:.2%}) are the "
            f"unknown one: data.tokenizer has no token for {tokenizer.first_lost(unknown.first)!r}, say, in the text "
            f"that begins {unknown.first[:40]!r}"
        )
    survey(folder / "tokens").save(folder / "facts.json")


def _train_tokenizer(files: Sequence[Path], config: DataConfig, vocab: int, say: Say) -> Tokenizer:
    start = time.perf_counter()
    texts = sample(read_documents(files, config.text_key), config.holdout)
    say(f"data: training a byte-level BPE of {vocab:,} entries on {sum(map(len, texts)):,} characters")
    with progress("training the tokenizer", None):
        tokenizer = Tokenizer.train(texts, vocab)
    say(f"data: byte-level BPE of {tokenizer.size:,} entries trained in {time.perf_counter() - start:.1f} s")
    if tokenizer.size < vocab:
        say(f"data: the text has no more pairs to merge; {vocab - tokenizer.size:,} ids stay unused")
    return tokenizer


def _corpus(
    indexed: IndexedDataset, tokenizer: Tokenizer | None, facts: Facts, config: DataConfig, vocab: int
) -> Corpus:
    if facts.smallest < 0:
        raise ConfigError(f"data.path: there are negative token ids (down to {facts.smallest}); make the pair anew")
    if facts.largest >= vocab:
        raise ConfigError(
            f"data.path: token ids go up to {facts.largest} and model.vocab={vocab}; use model.vocab="
            f"{facts.largest + 1} or more"
        )
    whole, num_tokens = indexed, indexed.num_tokens
    if indexed.num_documents == 1:
        num_train = count_train(num_tokens, config.holdout)
        indexed = indexed.cut(num_train) if num_train < num_tokens else indexed
    start = _packed_after(facts, tokenizer, whole)
    if tokenizer and start is not None:
        tokenizer = replace(tokenizer, start=start)
    return Corpus(
        whole=whole,
        indexed=indexed,
        num_train_documents=count_train(indexed.num_documents, config.holdout),
        vocab=vocab,
        text_hash=facts.hash,
        hash=facts.hash if start is None else hashlib.sha256(f"{facts.hash} after {start}".encode()).hexdigest(),
        start=start,
        tokenizer=tokenizer,
        bytes_per_token=tokenizer.bytes_per_token(vocab) if tokenizer else None,
    )


def _packed_after(facts: Facts, tokenizer: Tokenizer | None, indexed: IndexedDataset) -> int | None:
    """The token that documents both end with and begin after, if they do."""
    if tokenizer is None:
        return facts.last if indexed.num_documents > 1 else None
    has_own = tokenizer.start != tokenizer.eod and facts.first == tokenizer.start
    return tokenizer.eod if facts.last == tokenizer.eod and not has_own else None


def _about_ends(corpus: Corpus, facts: Facts) -> list[str]:
    """What a user should know about the ends of documents that others have made."""
    if corpus.tokenizer is None or facts.last == corpus.tokenizer.eod:
        return []
    end = corpus.tokenizer.inner.id_to_token(corpus.tokenizer.eod)
    return [
        f"WARNING: data: documents do not end with {end!r}, so how one begins and ends is not learned; make the pair "
        "anew with --append-eod, or name its token as data.end_token"
    ]


def _about_holdout(corpus: Corpus) -> list[str]:
    if corpus.indexed is corpus.whole:
        return []
    held_out = len(TokenStream(corpus.indexed, corpus.heldout_documents))
    return [f"data: there is one document, so the last {held_out:,} of its tokens are held out"]


def _given_tokenizer(config: DataConfig, vocab: int, say: Say) -> Tokenizer | None:
    if config.tokenizer is None:
        for key in ("end_token", "start_token"):
            if (name := getattr(config, key)) is not None:
                raise ConfigError(f"data.{key}={name} is a token of data.tokenizer; give that too, or leave it out")
        return None
    tokenizer = Tokenizer.load(Path(config.tokenizer), config.end_token, config.start_token)
    tokenizer.check_fits(vocab)
    for note in tokenizer.notes:
        say(f"data: {note}")
    return tokenizer


def _summary(corpus: Corpus, place: Path) -> str:
    return (
        f"data: {corpus.whole.num_tokens:,} tokens in {_documents(corpus.whole.num_documents)}, "
        f"{len(corpus.heldout_documents):,} held out, hash {corpus.hash[:12]} ({place})"
    )


def _documents(count: int) -> str:
    return f"{count:,} document{'s' * (count != 1)}"


def _root(config: DataConfig) -> Path:
    return Path(local(config.cache))


def _key(**parts: Any) -> str:
    description = json.dumps({"format": _FORMAT, **parts}, sort_keys=True)
    return hashlib.sha256(description.encode()).hexdigest()[:32]


def _digests(files: Sequence[Path]) -> list[tuple[bool, str]]:
    """Kind and hash of every file, in an order that does not tell where the files are."""
    with ThreadPoolExecutor() as pool:
        return sorted(zip(map(is_jsonl, files), pool.map(_digest, files), strict=True))


def _digest(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(
            f"data.path: {file} cannot be read ({error.strerror}); mend it, or leave it out of data.path"
        ) from error
