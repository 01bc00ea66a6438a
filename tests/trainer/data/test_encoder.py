"""What a tokenizer makes of text: nothing lost without a word, nothing made up, the same each time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, models, pre_tokenizers, processors

from trainer.data.tokenizer import Tokenizer
from trainer.errors import ConfigError

LETTERS = ["t", "h", "e", "c", "a", "</s>", "<", "/", "s", ">", "[", "]", "K", "N", "U", "▁"]
VOCAB = {letter: id for id, letter in enumerate(["[UNK]", *LETTERS, "the", "cat"])}
END = VOCAB["</s>"]


def finished(model, pre_tokenizer=None) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(model)
    if pre_tokenizer is not None:
        inner.pre_tokenizer = pre_tokenizer
    inner.add_special_tokens(["[UNK]", "</s>"])
    return inner


def unigram(unknown: int | None) -> tokenizers.Tokenizer:
    scores = [(piece, 0.0 if id in (0, END) else -2.0) for piece, id in VOCAB.items()]
    return finished(models.Unigram(scores, unknown, False), pre_tokenizers.Metaspace())


def bpe(vocab: dict[str, int], **settings) -> tokenizers.Tokenizer:
    return finished(models.BPE(vocab, [], **settings), pre_tokenizers.WhitespaceSplit())


MUTE = {
    "BPE": bpe(VOCAB),
    "BPE whose end is no entry": bpe({"t": 0, "h": 1, "e": 2, "[UNK]": 3}),
    "BPE without all bytes": bpe({**VOCAB, "<0xC3>": 40}, byte_fallback=True),
    "byte-level BPE without all bytes": finished(models.BPE(VOCAB, []), pre_tokenizers.ByteLevel(False)),
    "unigram": unigram(None),
    "wordpiece": finished(
        models.WordPiece({"the": 0, "[UNK]": 1}, unk_token="[unknown]"), pre_tokenizers.WhitespaceSplit()
    ),
    "words": finished(models.WordLevel({"the": 0}, unk_token="[unknown]"), pre_tokenizers.WhitespaceSplit()),
}
KNOWING = {
    "BPE": bpe(VOCAB, unk_token="[UNK]"),
    "unigram": unigram(0),
    "wordpiece": finished(models.WordPiece(VOCAB, unk_token="[UNK]"), pre_tokenizers.WhitespaceSplit()),
    "words": finished(models.WordLevel(VOCAB, unk_token="[UNK]"), pre_tokenizers.WhitespaceSplit()),
}


@pytest.mark.parametrize("kind", MUTE)
def test_what_has_no_token_and_would_be_lost_is_refused_with_the_text(kind: str):
    tokenizer = Tokenizer.wrap(MUTE[kind], "it")
    tokenizer.encode_batch(["the", "the"])
    with pytest.raises(ConfigError, match=r"no token for '(thés|é)' in the text that begins 'thés'.* byte fallback"):
        tokenizer.encode_batch(["the", "thés", "é"])


@pytest.mark.parametrize("kind", KNOWING)
def test_what_has_no_token_is_the_unknown_one_where_there_is_one(kind: str):
    tokenizer = Tokenizer.wrap(KNOWING[kind], "it")
    assert tokenizer.unknown == 0
    assert 0 in tokenizer.encode("the é")
    assert 0 not in tokenizer.encode("the")


@pytest.mark.parametrize("kind", KNOWING)
def test_text_never_becomes_a_special_token(kind: str):
    """The library takes </s> in a text for the end of the document, where a word or piece is called so."""
    tokenizer = Tokenizer.wrap(KNOWING[kind], "it")
    assert END not in tokenizer.encode("the </s> cat")
    assert tokenizer.encode_documents(["the </s> cat"])[0].tolist().count(END) == 1


def test_a_word_that_is_made_special_later_is_text_in_a_text():
    inner = Tokenizer.train(["end"] * 9 + ["ending"] * 5, 300).inner
    inner.add_special_tokens(["end"])
    ids = Tokenizer.wrap(inner, "it").encode("ending end").tolist()
    assert inner.token_to_id("end") not in ids
    assert inner.decode(ids) == "ending end"


def test_ids_are_those_of_the_library_though_special_tokens_are_renamed():
    """Added tokens that are no entries of the model are counted on from its last."""
    inner = Tokenizer.train(["the cat"], 260).inner
    inner.add_special_tokens(["<a>", "<b>"])
    inner.add_tokens([AddedToken("cat"), AddedToken("dog")])
    inner.add_special_tokens(["<c>"])
    inner.add_tokens([AddedToken("cow")])
    text = "the cat, the dog and the cow"
    assert Tokenizer.wrap(inner, "it").encode(text).tolist() == inner.encode(text).ids


def test_what_the_tokenizer_puts_around_a_text_is_not_in_it():
    inner = KNOWING["words"]
    inner.post_processor = processors.TemplateProcessing(single="</s> $A </s>", special_tokens=[("</s>", END)])
    assert Tokenizer.wrap(inner, "it").encode("the").tolist() == [VOCAB["the"]]


def test_dropout_is_switched_off_and_said(tmp_path: Path):
    """With it, the tokens of a text differ each time, and a run would not be resumed on its own text."""
    inner = Tokenizer.train(["the cat and the dog"] * 9, 270).inner
    plain = inner.encode("the cat and the dog").ids
    inner.model.dropout = 0.9
    inner.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path / "tokenizer.json")
    assert all(tokenizer.encode("the cat and the dog").tolist() == plain for _ in range(20))
    assert tokenizer.notes == (
        f"{tmp_path}/tokenizer.json has dropout=0.9, which gives other tokens each time: it is switched off",
    )
    tokenizer.save(tmp_path)
    assert json.loads((tmp_path / "tokenizer.json").read_text())["model"]["dropout"] is None
