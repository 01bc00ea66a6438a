"""What a model writes and says of tokens: of one text or several, on every mesh, with the work that this takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from tests.models.families import log_probabilities
from tests.sharding.regions import equations
from tests.trainer import small
from trainer import Config, ConfigError, Trainer
from trainer.data.tokenizer import Tokenizer
from trainer.decoding import CHUNK, FEWEST_PLACES, Sampling, space
from trainer.generate import MOST_ROWS, continuation

ONE = {"mesh": {"virtual_devices": 1}, "batch": {"global": 4, "sequence": 16}}
LAYOUTS: dict[str, dict[str, Any]] = {
    "zero 3": {"mesh": {"data": 2, "tensor": 2}, "zero.stage": 3},
    "stages": {
        "mesh": {"pipeline": 2, "tensor": 2},
        "pipeline": {"schedule": "interleaved_1f1b", "virtual_stages": 2},
        "batch.micro": 1,
    },
}
PROMPTS = ["def class return", "x", "", "while self value in y for if else", "class"]


def make(folder: Path, overrides: dict[str, Any]) -> Trainer:
    """Nothing is trained: its first weights are as good as any, and the same on every mesh."""
    tree = small.tree(folder / "text", folder / "run") | ONE
    tree["model"] |= {"layers": 5, "tied": True, "init_std": 0.3}
    devices = 4 if "mesh" in overrides else 1
    return Trainer(Config.from_dict(tree, {"zero.stage": 0} | overrides), jax.devices()[:devices])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generate")
    small.write_text(folder / "text")
    return folder


@pytest.fixture(scope="module")
def alone(folder: Path) -> Trainer:
    return make(folder, {})


def tokenizer_of(vocab: dict[str, int], decoder: Any, model: Any = models.WordLevel, **more: Any) -> Tokenizer:
    inner = tokenizers.Tokenizer(model(vocab, **more))
    inner.decoder = decoder
    inner.add_special_tokens(["</s>"])
    return Tokenizer.wrap(inner, "made here")


def test_what_is_written_is_a_part_of_the_whole_text() -> None:
    """A word's first blank belongs to it, though it is none where a text begins."""
    tokenizer = tokenizer_of({"▁one": 0, "▁two": 1, "▁three": 2}, decoders.Metaspace())
    assert tokenizer.decode([2]) == "three"
    assert continuation(tokenizer, np.array([0, 1]), np.array([2])) == " three"
    assert continuation(tokenizer, np.array([0, 1]), np.array([], int)) == ""


def test_a_prompt_that_reads_otherwise_in_tokens_is_gone_on_from() -> None:
    """Its capital and its accent are gone; the text is the user's own."""
    inner = Tokenizer.train(["the cat sat. " * 9], 280).inner
    inner.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()])
    tokenizer = Tokenizer.wrap(inner, "made here")
    ids = tokenizer.encode("Thé CAT")
    assert continuation(tokenizer, ids, tokenizer.encode(" sat.")) == " sat."


def test_a_word_that_changes_the_one_before_it_is_gone_on_from_where_they_part() -> None:
    tokenizer = tokenizer_of({"do": 0, "n't": 1, "go": 2, "?": 3}, decoders.WordPiece(cleanup=True), unk_token="?")
    assert tokenizer.decode([0, 1, 2]) == "don't go"
    assert continuation(tokenizer, np.array([0]), np.array([1, 2])) == "n't go"


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_character_that_is_cut_leaves_those_before_it(size: int) -> None:
    """A decoder of single bytes gives up all of them otherwise, the prompt's too."""
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)}
    decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = tokenizer_of(vocab, decoder, unk_token="<0x00>")
    ids, new = (np.frombuffer(text.encode(), np.uint8).astype(int) for text in ("世", "界🎉"))
    assert "世" not in tokenizer.decode(np.concatenate([ids, new[:-1]]))
    written = continuation(tokenizer, ids, new[: len(new) - 4 + size])
    assert written == ("界🎉" if size == 4 else "界\ufffd")


def test_bytes_of_one_character_may_stand_in_several_tokens() -> None:
    tokenizer = Tokenizer.train(["ab"], 258)
    ids, new = tokenizer.encode("é"), tokenizer.encode("世界")
    assert continuation(tokenizer, ids, new[:-1]) == "世\ufffd"


def test_no_id_is_written_that_no_token_has(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model has rows for 300, any of which is as likely here; the tokenizer has every fifth."""
    words = {f"word{id}": id for id in range(0, 150, 5)}
    inner = tokenizers.Tokenizer(models.WordLevel(words | {"</s>": 1}, unk_token="word0"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.add_special_tokens(["</s>"])
    inner.save(str(folder / "words.json"))
    trainer = make(folder, {"data.tokenizer": str(folder / "words.json")})
    ids: list[int] = []
    monkeypatch.setattr("trainer.generate.continuation", lambda _, prompt, new: ids.extend(new.tolist()) or "")
    for how in ({"temperature": 0.0}, {"temperature": 5.0}, {"temperature": 5.0, "top_k": 200}):
        trainer.generate("word5", 20, **how)
    assert len(ids) > 20
    assert set(ids) <= set(words.values())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_several_prompts_are_each_gone_on_from_as_alone(folder: Path, alone: Trainer, layout: str) -> None:
    """On every mesh: with the likeliest token, and by chance."""
    trainer = make(folder, LAYOUTS[layout])
    for how in ({"temperature": 0.0}, {"temperature": 0.8, "top_k": 20, "seed": 3}):
        expected = [alone.generate(prompt, 14, **how) for prompt in PROMPTS]
        assert alone.generate(PROMPTS, 14, **how) == expected
        assert trainer.generate(PROMPTS, 14, **how) == expected
    assert len(set(expected)) == len(PROMPTS)


def test_any_number_of_prompts(alone: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert alone.generate([]) == []
    monkeypatch.setattr("trainer.generate.MOST_ROWS", 2)
    expected = [alone.generate(prompt, 3, temperature=0) for prompt in PROMPTS]
    assert alone.generate(tuple(PROMPTS), 3, temperature=0) == expected


def test_a_prompt_among_others_that_is_too_long_is_refused(alone: Trainer) -> None:
    with pytest.raises(ConfigError, match=r"the prompt has .* tokens, and the model's context holds 32"):
        alone.generate(["x", "a b " * 20])


@pytest.mark.parametrize("layout", [None, *LAYOUTS])
def test_logits_are_those_of_training(folder: Path, alone: Trainer, layout: str | None) -> None:
    """[texts, tokens, vocabulary] without padding; a text of the whole context too."""
    trainer = make(folder, LAYOUTS[layout]) if layout else alone
    tokens = np.random.default_rng(0).integers(0, small.VOCAB, (3, small.CONTEXT))
    found = trainer.logits(tokens)
    assert (found.shape, found.dtype) == ((3, small.CONTEXT, small.VOCAB), np.float32)
    if layout:
        np.testing.assert_allclose(found, alone.logits(tokens), atol=2e-5)
        return
    weights = {n.removeprefix("parameters."): x for n, x in trainer.state.items() if n.startswith("parameters.")}
    expected = log_probabilities(trainer.config.model, weights, tokens[1, :7])
    np.testing.assert_allclose(jax.nn.log_softmax(found[1, :7]), expected, atol=2e-5)
    np.testing.assert_allclose(trainer.logits(tokens[:1, :7].tolist()), found[:1, :7], atol=2e-5)
    assert trainer.logits(np.zeros((0, 3), int)).shape == (0, 3, small.VOCAB)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([1, 2], "give whole numbers"),
        ([[0.5]], "give whole numbers"),
        ([[small.VOCAB]], "those from 0 to 299"),
        ([[-1]], "those from 0 to 299"),
        (np.zeros((1, small.CONTEXT + 1), int), "context holds 32"),
    ],
)
def test_tokens_that_are_none_are_refused(alone: Trainer, tokens: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        alone.logits(tokens)


def test_shapes_follow_what_is_asked_and_are_few() -> None:
    context = 16_384
    assert space(1, 3 + 100, context).places <= 256
    found = {space(rows, tokens, context) for rows in range(1, MOST_ROWS + 1) for tokens in range(2, context + 1, 97)}
    assert len(found) <= 5 * 9
    for rows, tokens, most in ((1, 2, 2), (5, 70, 70), (16, 20_000, context), (1, 33, 40), (3, context, context)):
        made = space(rows, tokens, most)
        assert made.rows >= rows
        assert made.chunk <= CHUNK
        assert all(made.read(longest) + tokens - longest <= made.places for longest in range(1, tokens))
        assert made.places <= max(2 * tokens, FEWEST_PLACES) + CHUNK


def test_no_array_is_as_large_as_the_square_of_the_context(folder: Path) -> None:
    """A short prompt of a model with a long context takes no longer, and no more memory, than of one with a short."""
    trainer = make(folder, {"model.context": 16_384})
    text = trainer.generate("def", 3, temperature=0)
    assert text == make(folder, {"model.context": 64}).generate("def", 3, temperature=0)
    room = space(1, 16_384, 16_384)
    number = jax.ShapeDtypeStruct((), np.int32)
    row = jax.ShapeDtypeStruct((1,), np.int32)
    tokens = jax.ShapeDtypeStruct((room.rows, room.chunks, room.chunk), np.int32)
    sampling = Sampling(jax.ShapeDtypeStruct((), np.float32), number, number, number, np.ones(small.VOCAB, bool))
    program = jax.make_jaxpr(trainer.program.generate)(trainer.parameters, tokens, row, number, row, sampling)
    largest = max(value.aval.size for equation in equations(program) for value in equation.outvars)
    assert largest < 16_384**2 / 50
