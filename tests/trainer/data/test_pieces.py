"""A text encoded in pieces has the tokens of the whole, with tokenizers of every family."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, trainers

from trainer.data import encoder as module
from trainer.data.pieces import _REGEXES, may_be_cut, pieces
from trainer.data.tokenizer import Tokenizer

TEXT = "the cat  and\nthe dog's 12 hats, as told: Grüße 世界\n\n  the end\tof it ▁ "
END = "</s>"


def bpe(pre_tokenizer=None, normalizer=None, **settings) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", **settings))
    return train(inner, trainers.BpeTrainer, pre_tokenizer, normalizer, vocab_size=400)


def unigram(pre_tokenizer=None, normalizer=None) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(models.Unigram())
    return train(inner, trainers.UnigramTrainer, pre_tokenizer, normalizer, vocab_size=120, unk_token="<unk>")


def wordpiece(pre_tokenizer=None, normalizer=None) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(models.WordPiece(unk_token="<unk>"))
    return train(inner, trainers.WordPieceTrainer, pre_tokenizer, normalizer, vocab_size=200)


def train(inner, trainer, pre_tokenizer, normalizer, **settings) -> tokenizers.Tokenizer:
    if pre_tokenizer is not None:
        inner.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        inner.normalizer = normalizer
    inner.train_from_iterator([TEXT] * 3, trainer(special_tokens=["<unk>", END], show_progress=False, **settings))
    return inner


def without_words(*first: normalizers.Normalizer, trained_on=None, **settings) -> tokenizers.Tokenizer:
    """All of a text is one word, with spaces made visible by normalizers."""
    inner = bpe(trained_on or pre_tokenizers.Metaspace(), **settings)
    inner.normalizer = normalizers.Sequence([*first, normalizers.Replace(" ", "▁")])
    description = json.loads(inner.to_str())
    description["pre_tokenizer"] = None
    return tokenizers.Tokenizer.from_str(json.dumps(description))


def mistral() -> tokenizers.Tokenizer:
    """As newer files say what Llama 2's do."""
    inner = bpe(pre_tokenizers.Metaspace())
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return inner


def split(pattern: str) -> pre_tokenizers.PreTokenizer:
    words = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def with_added(content: str, inner: tokenizers.Tokenizer | None = None, **settings) -> tokenizers.Tokenizer:
    inner = inner or bpe(pre_tokenizers.ByteLevel(add_prefix_space=False))
    inner.add_tokens([AddedToken(content, **settings)])
    return inner


CUT: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "GPT-2": lambda: bpe(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "a space before": lambda: bpe(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    **{f"regex {n}": lambda r=regex: bpe(split(r)) for n, regex in enumerate(sorted(_REGEXES))},
    "metaspace first": lambda: bpe(pre_tokenizers.Metaspace(prepend_scheme="first")),
    "metaspace always": lambda: bpe(pre_tokenizers.Metaspace(prepend_scheme="always")),
    "metaspace never": lambda: bpe(pre_tokenizers.Metaspace(prepend_scheme="never")),
    "unigram": lambda: unigram(pre_tokenizers.Metaspace(), normalizers.NFKC()),
    "BERT": lambda: wordpiece(pre_tokenizers.BertPreTokenizer(), normalizers.BertNormalizer()),
    "T5": lambda: unigram(pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])),
    "words": lambda: wordpiece(
        pre_tokenizers.Whitespace(), normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase()])
    ),
    "Llama 2": lambda: without_words(normalizers.Prepend("▁"), byte_fallback=True, fuse_unk=True),
    "Gemma": lambda: without_words(),
    "Mistral": mistral,
    "an added token": lambda: with_added("ca"),
}
WHOLE: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "no words": lambda: bpe(),
    "tokens across spaces": lambda: bpe(pre_tokenizers.Metaspace(split=False)),
    "another normalizer": lambda: without_words(normalizers.NFKC(), normalizers.Prepend("▁")),
    "a regex of one's own": lambda: bpe(split(r"\w+ \w+|.")),
    "first after another": lambda: unigram(
        pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="first")])
    ),
    "stripped": lambda: bpe(pre_tokenizers.Metaspace(), normalizers.Strip()),
    "an added token with a space": lambda: with_added("cat and"),
    "Llama 2 with an added token": lambda: with_added(
        "ca", inner=without_words(normalizers.Prepend("▁"), byte_fallback=True)
    ),
    "an added token that strips": lambda: with_added("and", rstrip=True),
}
texts = st.lists(
    st.sampled_from(
        ["the", "cat", "and", " ", " ", "  ", "\n", "\t", "'s", "1", "23", ".", ",", "é", "e\u0301", "世", "▁"]
    ),
    max_size=30,
).map("".join)


@pytest.mark.parametrize("family", [*CUT, *WHOLE])
def test_pieces_have_the_tokens_of_the_whole(family: str, monkeypatch: pytest.MonkeyPatch):
    inner = (CUT | WHOLE)[family]()
    tokenizer = Tokenizer.wrap(inner, "it")
    assert may_be_cut(json.loads(inner.to_str())) == (family in CUT)

    @given(text=texts, size=st.integers(1, 12))
    def check(text: str, size: int) -> None:
        monkeypatch.setattr(module, "_PIECE", size)
        assert tokenizer.encode(text).tolist() == inner.encode(text, add_special_tokens=False).ids

    check()


@given(text=texts, size=st.integers(1, 12))
def test_pieces_are_the_text_and_end_where_they_may(text: str, size: int):
    found = list(pieces(text, size))
    assert "".join(found) == text
    assert all(piece.startswith(" ") for piece in found[1:])
    assert not any(piece[-1].isspace() for piece in found[:-1])
    assert all(len(piece) <= size or not re.search(r"[^\s▁] ", piece) for piece in found)
