"""Tokens spell the text to the byte, end documents, and fit the model."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers

from trainer.data import encoder
from trainer.data import tokenizer as module
from trainer.data.tokenizer import END_OF_DOCUMENT, Tokenizer
from trainer.errors import ConfigError

TEXTS = ["def f(x):\n    return x + 1\n", "Grüße, 世界 🎉\r\n\t the the then there", "a <|endoftext|> b"] * 3


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    return Tokenizer.train(TEXTS, vocab=300)


def test_it_has_exactly_the_models_vocabulary_where_the_text_allows(trained: Tokenizer):
    assert trained.size == 300
    assert trained.eod == 0
    assert Tokenizer.train(["ab"], vocab=300).size == 258


@pytest.mark.parametrize("text", ["a" * 200_000, "ACGTTGCAAC" * 20_000, "7" * 200_000, "-=" * 100_000, " \t" * 100_000])
def test_training_on_a_word_without_end_takes_no_time(text: str):
    """The library alone takes hours for a megabyte of them."""
    started = time.process_time()
    tokenizer = Tokenizer.train([text, "the cat and the dog"], vocab=300)
    assert time.process_time() - started < 5
    assert tokenizer.decode(tokenizer.encode(text[:5000])) == text[:5000]
    assert len(tokenizer.encode(text)) < len(text) / 3


def test_words_of_common_length_are_whole():
    texts = [("abcdefghij" * 20 + " ") * 3 + "x" * 300]
    assert [*module._bounded_words(texts[0])] == [texts[0][:-44], "x" * 44]


def test_training_again_gives_the_same_tokenizer(trained: Tokenizer):
    assert Tokenizer.train(TEXTS, vocab=300).inner.to_str() == trained.inner.to_str()


def test_text_comes_back_to_the_byte_and_its_bytes_are_counted(trained: Tokenizer):
    table = trained.bytes_per_token(vocab=310)
    assert table is not None
    assert table.shape == (310,)
    assert table[trained.eod] == 0
    assert not table[300:].any()
    for text, ids in zip(TEXTS, trained.encode_batch(TEXTS), strict=True):
        assert trained.decode(ids) == text
        assert table[ids].sum() == len(text.encode())


def test_an_end_of_document_that_stands_in_the_text_is_text(trained: Tokenizer):
    assert trained.eod not in trained.encode("a <|endoftext|> b")


def test_a_text_that_must_be_encoded_at_once_and_is_too_long_is_refused(
    trained: Tokenizer, monkeypatch: pytest.MonkeyPatch
):
    """A cut elsewhere would change its tokens, and the whole would take all memory."""
    monkeypatch.setattr(encoder, "_PIECE", 16)
    monkeypatch.setattr(encoder, "_MOST_WHOLE", 40)
    trained.encode("a line " * 50)
    with pytest.raises(ConfigError, match=r"takes 51 characters of a document at once, and 40 is the most .* split"):
        trained.encode("a line " * 50 + "x" * 50)


def test_it_loads_as_it_was_saved(trained: Tokenizer, tmp_path: Path):
    trained.save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    assert (loaded.size, loaded.eod, loaded.start) == (trained.size, trained.eod, trained.start)
    np.testing.assert_array_equal(loaded.encode(TEXTS[1]), trained.encode(TEXTS[1]))


def test_settings_in_the_file_that_would_change_documents_are_switched_off(trained: Tokenizer, tmp_path: Path):
    inner = tokenizers.Tokenizer.from_str(trained.inner.to_str())
    inner.enable_truncation(2)
    inner.enable_padding(length=64)
    inner.save(str(tmp_path / "tokenizer.json"))
    np.testing.assert_array_equal(
        Tokenizer.load(tmp_path / "tokenizer.json").encode(TEXTS[0]), trained.encode(TEXTS[0])
    )


def word_tokenizer(vocab: dict[str, int], special: str) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    inner.add_special_tokens([special])
    return inner


@pytest.mark.parametrize("name", END_OF_DOCUMENT)
def test_every_usual_end_of_document_is_found(name: str):
    assert Tokenizer.wrap(word_tokenizer({"[UNK]": 0, "a": 1, name: 2}, special=name), "it").eod == 2


def test_a_word_that_only_looks_like_one_is_text():
    vocab = {"[UNK]": 0, "</s>": 1, "<eos>": 2}
    assert Tokenizer.wrap(word_tokenizer(vocab, special="<eos>"), "it").eod == 2
    with pytest.raises(ConfigError, match=r"it has no end-of-document token .*data\.end_token \('\[UNK\]'\)"):
        Tokenizer.wrap(word_tokenizer(vocab, special="[UNK]"), "it")


def test_ids_with_gaps_count_to_the_largest():
    tokenizer = Tokenizer.wrap(word_tokenizer({"[UNK]": 0, "</s>": 41}, special="</s>"), "it")
    with pytest.raises(ConfigError, match=r"has 42 entries and model\.vocab=40; use model\.vocab=42"):
        tokenizer.check_fits(40)


def test_sentencepiece_tokens_are_counted_in_bytes():
    vocab = {"<unk>": 0, "</s>": 1, "<0xE4>": 2, "<0xB8>": 3, "<0x96>": 4, "▁a": 5, "é": 6}
    inner = tokenizers.Tokenizer(models.BPE(vocab, [], byte_fallback=True, unk_token="<unk>"))
    inner.normalizer = normalizers.Replace(" ", "▁")
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    inner.add_special_tokens(["<unk>", "</s>"])
    table = Tokenizer.wrap(inner, "it").bytes_per_token(vocab=8)
    assert table is not None
    assert table.tolist() == [0, 0, 1, 1, 1, 2, 2, 0]


def test_tokens_that_do_not_spell_the_text_have_no_bytes():
    tokenizer = Tokenizer.wrap(word_tokenizer({"[UNK]": 0, "[EOS]": 1}, special="[EOS]"), "it")
    assert tokenizer.bytes_per_token(vocab=2) is None


def test_unusable_files_and_sizes_are_refused(tmp_path: Path):
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"bad\.json is not a tokenizer\.json"):
        Tokenizer.load(tmp_path / "bad.json")
    with pytest.raises(ConfigError, match="does not exist; name a tokenizer"):
        Tokenizer.load(tmp_path / "none.json")
    with pytest.raises(ConfigError, match=r"model\.vocab=256 is too small .* use model\.vocab=257 or more"):
        Tokenizer.train(["a"], vocab=256)
