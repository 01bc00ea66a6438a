"""From text to a corpus: tokenised once, held out fairly, safe against kills and company."""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from trainer.data.cache import cached_folder
from trainer.data.config import DataConfig
from trainer.data.indexed import IndexedWriter, token_dtype
from trainer.data.prepare import Corpus, prepare
from trainer.data.tokenizer import Tokenizer
from trainer.errors import ConfigError

TEXTS = [f"document {i}: " + " ".join(f"w{(i * j) % 17}" for j in range(40)) + "\n" for i in range(20)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    text = tmp_path / "text"
    text.mkdir()
    for i, content in enumerate(TEXTS):
        (text / f"{i}.txt").write_text(content)
    return text


def make(folder: Path, vocab: int = 300, lines: list[str] | None = None, **settings) -> Corpus:
    config = DataConfig(**{"path": str(folder), "cache": str(folder.parent / "cache"), "holdout": 0.1, **settings})
    return prepare(config, vocab, (lines if lines is not None else []).append)


def documents(corpus: Corpus) -> list[str]:
    return [corpus.tokenizer.decode(corpus.indexed.document(d)) for d in range(corpus.indexed.num_documents)]


def test_every_document_is_there_once_and_ends(folder: Path):
    corpus = make(folder)
    assert sorted(documents(corpus)) == sorted(TEXTS)
    assert {int(corpus.indexed.document(d)[-1]) for d in range(20)} == {corpus.eod} == {0}
    assert corpus.indexed.tokens.dtype == np.uint16


def test_the_last_part_is_held_out_and_its_bytes_are_known(folder: Path):
    corpus = make(folder)
    assert (corpus.train_documents, corpus.heldout_documents) == (range(18), range(18, 20))
    text = "".join(documents(corpus)[18:])
    assert corpus.heldout_text() == text.encode()
    tokens = np.concatenate([corpus.indexed.document(d) for d in corpus.heldout_documents])
    assert corpus.bytes_per_token is not None
    assert corpus.bytes_per_token[tokens].sum() == len(text)
    assert 0 < corpus.xz_bits_per_byte() < 8


@pytest.mark.parametrize(("holdout", "expected"), [(0.0, 0), (0.001, 1), (0.5, 10), (0.999, 19)])
def test_some_are_held_out_and_some_are_left(folder: Path, holdout: float, expected: int):
    assert len(make(folder, holdout=holdout).heldout_documents) == expected


def test_of_one_document_alone_the_last_tokens_are_held_out(tmp_path: Path):
    """Everyone's first try is a single file."""
    text = "".join(f"line {i} of it\n" for i in range(100)) + "zzzzzzzzzz" * 14
    (tmp_path / "one.txt").write_text(text)
    lines: list[str] = []
    corpus = make(tmp_path / "one.txt", vocab=1000, lines=lines)
    train, held_out = (corpus.indexed.document(d).tolist() for d in range(2))
    assert train + held_out == [*corpus.tokenizer.encode(text), corpus.eod]
    assert len(held_out) == round(0.1 * len(train + held_out))
    assert text.endswith(corpus.heldout_text().decode())
    assert f"data: there is one document, so the last {len(held_out)} of its tokens are held out" in lines
    assert not any("zz" in token for token in corpus.tokenizer.inner.get_vocab())  # nor has the tokenizer seen them
    assert corpus.everything(8).num_tokens == len(train + held_out)


def test_one_document_alone_is_trained_on_whole_where_nothing_is_to_be_held_out(tmp_path: Path):
    (tmp_path / "one.txt").write_text("one two three")
    corpus = make(tmp_path / "one.txt", holdout=0)
    assert (corpus.num_train_documents, len(corpus.heldout_documents)) == (1, 0)
    with pytest.raises(ConfigError, match=r"no text is held out; raise data\.holdout"):
        corpus.xz_bits_per_byte()
    with pytest.raises(ConfigError, match=r"no text is held out to evaluate on; use data\.holdout above 0"):
        corpus.held_out(8)


def test_the_order_of_documents_is_their_contents_not_their_names(folder: Path, tmp_path: Path):
    lines = [json.dumps({"text": text}) for text in reversed(TEXTS)]
    (tmp_path / "all.jsonl").write_text("\n".join(lines))
    assert documents(make(tmp_path / "all.jsonl")) == documents(make(folder)) != TEXTS


def test_unigram_entropy(folder: Path):
    corpus = make(folder)
    tokens = np.concatenate([corpus.indexed.document(d) for d in corpus.train_documents])
    counts = Counter(tokens.tolist()).values()
    expected = -sum(n / len(tokens) * math.log(n / len(tokens)) for n in counts)
    assert corpus.unigram_entropy() == pytest.approx(expected, rel=1e-12)


def test_the_second_time_nothing_is_made(folder: Path):
    first, second = [], []
    assert make(folder, lines=first).hash == make(folder, lines=second).hash
    assert any("tokenised" in line for line in first)
    assert not any("tokenised" in line for line in second)


def test_what_takes_long_is_said_before_it_begins(folder: Path):
    lines: list[str] = []
    make(folder, lines=lines)
    assert lines[0].startswith("data: training a byte-level BPE of 300 entries on 2,640 characters")
    assert lines[1].startswith("data: byte-level BPE")


def test_the_cache_follows_contents_not_names_or_dates(folder: Path):
    before = make(folder)
    (folder / "0.txt").rename(folder / "renamed.txt")
    os.utime(folder / "1.txt", (0, 0))
    lines: list[str] = []
    assert make(folder, lines=lines).hash == before.hash
    assert not any("tokenised" in line for line in lines)
    (folder / "1.txt").write_text("something else")
    assert make(folder).hash != before.hash


@pytest.mark.parametrize("settings", [{"vocab": 301}, {"holdout": 0.5}])
def test_what_changes_the_tokens_is_made_anew(folder: Path, settings: dict):
    make(folder)
    lines: list[str] = []
    make(folder, lines=lines, **settings)
    assert any("tokenised" in line for line in lines)


def test_the_hash_is_that_of_the_files_and_of_what_documents_begin_after(folder: Path, tmp_path: Path):
    corpus = make(folder)
    prefix = next((folder.parent / "cache").glob("*/tokens.bin")).with_suffix("")
    data = Path(f"{prefix}.idx").read_bytes() + Path(f"{prefix}.bin").read_bytes()
    files = hashlib.sha256(data).hexdigest()
    assert corpus.hash == hashlib.sha256(f"{files} after 0".encode()).hexdigest()
    pair = write_pair(tmp_path / "pair", [5, 6], [7, 8])
    data = Path(f"{pair}.idx").read_bytes() + Path(f"{pair}.bin").read_bytes()
    assert make(pair).hash == hashlib.sha256(data).hexdigest()


def test_a_tokenizer_of_the_users_own(folder: Path):
    trained = make(folder, vocab=280).tokenizer
    file = folder.parent / "tokenizer.json"
    trained.inner.save(str(file))
    corpus = make(folder, vocab=512, tokenizer=str(file))
    assert corpus.tokenizer.size == trained.size == 280
    assert corpus.bytes_per_token.shape == (512,)
    with pytest.raises(ConfigError, match=r"has 280 entries and model\.vocab=279; use model\.vocab=280"):
        make(folder, vocab=279, tokenizer=str(file))


def test_too_little_text_for_the_vocabulary_is_said(tmp_path: Path):
    (tmp_path / "one.txt").write_text("ab")
    lines: list[str] = []
    make(tmp_path / "one.txt", lines=lines, holdout=0)
    assert any("no more pairs to merge; 42 ids stay unused" in line for line in lines)


def test_the_tokenizer_never_sees_what_is_held_out(tmp_path: Path):
    """What stands only in the held-out document is not merged, however often it stands there."""
    lines = [json.dumps({"text": "abcabc " * 50}), json.dumps({"text": "qzqzqz " * 50})]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    corpus = make(tmp_path / "a.jsonl", holdout=0.5)
    train, held = (corpus.indexed.document(d) for d in range(2))
    assert len(held) > 5 * len(train)


def write_pair(prefix: Path, *docs: list[int], vocab: int = 300) -> Path:
    with IndexedWriter(prefix, token_dtype(vocab)) as writer:
        for document in docs:
            writer.add(np.array(document))
    return prefix


def test_a_megatron_pair_trains_as_it_is(tmp_path: Path):
    pair = write_pair(tmp_path / "pair", [5, 6, 0], [7, 0], [8, 299, 0])
    corpus = make(pair)
    assert [corpus.indexed.document(d).tolist() for d in range(3)] == [[5, 6, 0], [7, 0], [8, 299, 0]]
    assert (corpus.tokenizer, corpus.bytes_per_token, corpus.eod) == (None, None, None)
    assert corpus.heldout_documents == range(2, 3)
    with pytest.raises(ConfigError, match=r"give data\.tokenizer"):
        corpus.heldout_text()


def tokenizer_with_a_start(folder: Path) -> Path:
    """A folder with a tokenizer that puts <s> before a text, as Llama's does."""
    inner = Tokenizer.train(TEXTS, 290).inner
    inner.add_special_tokens(["<s>"])
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 290)])
    folder.mkdir()
    inner.save(str(folder / "tokenizer.json"))
    return folder


def test_documents_begin_with_the_tokenizers_own_token_once(folder: Path):
    """And what it puts around a text by itself is not there a second time."""
    tokenizer = tokenizer_with_a_start(folder.parent / "own")
    corpus = make(folder, tokenizer=str(tokenizer))
    assert documents(corpus) == documents(make(folder))
    for d in range(20):
        ids = corpus.indexed.document(d).tolist()
        assert (ids[0], ids[-1], ids.count(290), ids.count(0)) == (290, 0, 1, 1)
    assert corpus.start is None
    assert corpus.tokenizer.encode_prompt("document 1").tolist()[0] == 290
    assert corpus.tokenizer.encode_prompt("").tolist() == [290]
    assert corpus.train(64).num_targets == corpus.train(64).num_tokens - 18


def test_without_one_they_begin_after_the_token_that_ends_them_as_with_gpt2(folder: Path):
    corpus = make(folder)
    assert corpus.start == corpus.eod == 0
    window = corpus.train(64)[0]
    assert (window["tokens"][0], window["targets"][0]) == (0, corpus.indexed.document(0)[0])
    assert corpus.train(64).num_targets == corpus.train(64).num_tokens
    assert corpus.tokenizer.encode_prompt("").tolist() == [0]
    assert 0 not in corpus.tokenizer.encode_prompt("document 1")


def test_the_ends_of_documents_may_be_named(folder: Path):
    inner = Tokenizer.train(TEXTS, 290).inner
    inner.add_special_tokens(["<begin>", "<end>"])
    inner.save(str(folder.parent / "tokenizer.json"))
    settings = {"tokenizer": str(folder.parent / "tokenizer.json"), "end_token": "<end>", "start_token": "<begin>"}
    corpus = make(folder, **settings)
    assert {tuple(corpus.indexed.document(d)[[0, -1]].tolist()) for d in range(20)} == {(290, 291)}
    again = Tokenizer.load(next(file.parent for file in (folder.parent / "cache").glob("*/tokens.bin")))
    assert (again.start, again.eod) == (290, 291)
    assert make(folder, **{**settings, "start_token": "<end>"}).start == 291
    with pytest.raises(ConfigError, match=r"data\.end_token: .* has no special token '<fin>'; it has '<\|end"):
        make(folder, **{**settings, "end_token": "<fin>"})
    with pytest.raises(ConfigError, match=r"data\.start_token=<begin> is a token of data\.tokenizer; give that too"):
        make(folder, start_token="<begin>")


def test_a_text_that_is_nothing_to_the_tokenizer_is_no_document(folder: Path):
    inner = Tokenizer.train(TEXTS, 290).inner
    inner.normalizer = normalizers.Sequence([normalizers.Replace("\u200d", ""), normalizers.Strip()])
    inner.save(str(folder.parent / "tokenizer.json"))
    settings = {"tokenizer": str(folder.parent / "tokenizer.json")}
    (folder / "white.txt").write_text(" \n \u200d")
    assert make(folder, **settings).indexed.num_documents == len(TEXTS)
    with pytest.raises(ConfigError, match="makes no token of any of the text"):
        make(folder / "white.txt", cache=str(folder.parent / "cache"), **settings)


def test_what_is_unknown_to_the_tokenizer_is_counted(folder: Path):
    words = {
        word: id for id, word in enumerate(["[UNK]", "</s>", *sorted({w for text in TEXTS for w in text.split()})])
    }
    del words["w3"]
    inner = tokenizers.Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.add_special_tokens(["</s>"])
    inner.save(str(folder.parent / "tokenizer.json"))
    lines: list[str] = []
    make(folder, tokenizer=str(folder.parent / "tokenizer.json"), lines=lines)
    count, tokens = (sum(text.split().count("w3") for text in TEXTS), sum(len(text.split()) + 1 for text in TEXTS))
    (line,) = (line for line in lines if "WARNING" in line)
    assert f"{count} of {tokens} tokens ({count / tokens:.2%}) are the unknown one" in line
    assert "no token for 'w3', say, in the text that begins 'document 1: w0 w1 w2 w3" in line


@pytest.mark.parametrize(
    ("docs", "start", "prompt"),
    [
        ([[5, 0], [6, 7, 0], [8, 0]], 0, [0]),  # as Megatron writes them: they begin after the end
        ([[290, 5, 0], [290, 6, 7, 0], [290, 8, 0]], None, [290]),  # they bring their own
        ([[290, 5, 0], [6, 7, 0], [8, 0]], 0, [0]),  # not all of them do
        ([[5, 0], [6, 7], [8, 0]], None, [290]),
    ],
)
def test_a_pairs_own_tokens_say_how_its_documents_begin(folder: Path, docs: list, start: int | None, prompt: list):
    tokenizer = tokenizer_with_a_start(folder.parent / "own")
    lines: list[str] = []
    corpus = make(write_pair(folder.parent / "pair", *docs), tokenizer=str(tokenizer), lines=lines)
    assert (corpus.start, corpus.tokenizer.encode_prompt("").tolist()) == (start, prompt)
    assert any("do not end with '<|endoftext|>', so how one begins" in line for line in lines) == (docs[1][-1] != 0)


def test_a_pair_without_a_tokenizer_ends_documents_with_the_token_that_ends_them_all(tmp_path: Path):
    assert make(write_pair(tmp_path / "all", [5, 9], [6, 9])).start == 9
    assert make(write_pair(tmp_path / "not", [5, 9], [6, 8])).start is None
    assert make(write_pair(tmp_path / "one", [5, 9])).start is None


def test_a_pair_with_a_tokenizer_has_text(folder: Path):
    made = make(folder)
    cached = next((folder.parent / "cache").glob("*/tokens.bin"))
    again = make(cached, tokenizer=str(cached.with_name("tokenizer.json")))
    assert (again.hash, again.heldout_text()) == (made.hash, made.heldout_text())


def test_a_pair_is_checked_against_the_vocabulary_and_again_when_it_changes(tmp_path: Path):
    pair = write_pair(tmp_path / "pair", [5, 0])
    make(pair)
    write_pair(tmp_path / "pair", [5, 300, 0])
    with pytest.raises(ConfigError, match=r"ids go up to 300 and model\.vocab=300; use model\.vocab=301 or more"):
        make(pair)
    write_pair(tmp_path / "pair", [5, -1, 0, 0], vocab=70_000)
    with pytest.raises(ConfigError, match=r"negative token ids \(down to -1\)"):
        make(pair)


def test_a_file_that_cannot_be_trained_on_leaves_nothing_behind(folder: Path):
    (folder / "bad.txt").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"bad\.txt is not UTF-8"):
        make(folder)
    assert [file.suffix for file in (folder.parent / "cache").iterdir()] == [".lock"]


def test_a_cache_that_cannot_be_written_is_named(folder: Path):
    (folder.parent / "file").write_text("")
    with pytest.raises(ConfigError, match=r"data\.cache: .*file/cache cannot be written"):
        make(folder, cache=str(folder.parent / "file/cache"))


BUILD_WHEN_TOLD = """
import sys, time
from pathlib import Path
from trainer.data.cache import cached_folder

here = Path(sys.argv[1])

def build(folder):
    (folder / "half").write_text("half")
    with open(here / "builds", "a") as log:
        log.write("begun\\n")
    while not (here / "go").exists():
        time.sleep(0.01)
    (folder / "whole").write_text("whole")

print((cached_folder(here / "cache", "key", build, print) / "whole").read_text())
"""


def start(here: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-u", "-c", BUILD_WHEN_TOLD, str(here)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3])


def wait_for_build(here: Path) -> None:
    deadline = time.monotonic() + 60
    while not (here / "builds").exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def put(folder: Path, text: str) -> None:
    (folder / "whole").write_text(text)


def test_a_process_killed_half_way_leaves_nothing_that_is_believed(tmp_path: Path):
    victim = start(tmp_path)
    wait_for_build(tmp_path)
    victim.kill()
    victim.communicate()
    assert not (tmp_path / "cache/key").exists()
    made = cached_folder(tmp_path / "cache", "key", lambda folder: put(folder, "mine"), print)
    assert [file.name for file in made.iterdir()] == ["whole"]
    assert sorted(file.name for file in (tmp_path / "cache").iterdir()) == ["key", "key.lock"]


def test_of_two_processes_at_once_one_waits_and_says_so(tmp_path: Path):
    first = start(tmp_path)
    wait_for_build(tmp_path)
    second = start(tmp_path)
    assert second.stdout is not None
    waiting = second.stdout.readline()
    (tmp_path / "go").touch()
    assert first.communicate()[0] == second.communicate()[0] == "whole\n"
    assert waiting == f"data: waiting for the process that holds {tmp_path}/cache/key.lock\n"
    assert (tmp_path / "builds").read_text() == "begun\n"


def test_two_processes_are_safe_where_files_cannot_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise OSError("no locks here")

    def build_while_another_wins(folder: Path) -> None:
        put(folder, "mine")
        if not (tmp_path / "key").exists():
            cached_folder(tmp_path, "key", lambda other: put(other, "theirs"), print)

    monkeypatch.setattr("fcntl.flock", refuse)
    made = cached_folder(tmp_path, "key", build_while_another_wins, print)
    assert (made / "whole").read_text() == "theirs"
    assert not list(tmp_path.glob("*.partial"))
