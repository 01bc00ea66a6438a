"""Which tokenizer a path names, and what a user reads when it names something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer.data.tokenizer import Tokenizer
from trainer.errors import ConfigError

ENDS = ["<begin>", "<end>"]


def folder(path: Path, **names: object) -> Path:
    """With a tokenizer of two special tokens besides <|endoftext|>, and what tokenizer_config.json says of them."""
    inner = Tokenizer.train(["a b c"], 260).inner
    inner.add_special_tokens(ENDS)
    path.mkdir(exist_ok=True)
    inner.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps(names))
    return path


def ends(tokenizer: Tokenizer) -> tuple[str | None, str | None]:
    return tokenizer.inner.id_to_token(tokenizer.start), tokenizer.inner.id_to_token(tokenizer.eod)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({}, ("<|endoftext|>", "<|endoftext|>")),
        ({"eos_token": "<end>"}, ("<end>", "<end>")),
        ({"eos_token": {"content": "<end>", "special": True}, "bos_token": None}, ("<end>", "<end>")),
        ({"eos_token": "<end>", "bos_token": "<begin>", "add_bos_token": True}, ("<begin>", "<end>")),
        ({"eos_token": "<end>", "bos_token": "<begin>", "add_bos_token": False}, ("<end>", "<end>")),
        ({"eos_token": "<end>", "bos_token": "<begin>"}, ("<end>", "<end>")),  # as GPT-2's, it puts none before a text
    ],
)
def test_a_folder_names_the_ends_of_documents(tmp_path: Path, names: dict, expected: tuple):
    tokenizer = Tokenizer.load(folder(tmp_path / "a", **names))
    assert ends(tokenizer) == expected
    (tmp_path / "b").mkdir()
    tokenizer.save(tmp_path / "b")
    assert ends(Tokenizer.load(tmp_path / "b")) == expected
    assert ends(Tokenizer.load(tmp_path / "a/tokenizer.json")) == ("<|endoftext|>", "<|endoftext|>")


def test_what_the_config_names_comes_before_what_the_folder_does(tmp_path: Path):
    place = folder(tmp_path, eos_token="<end>", bos_token="<end>", add_bos_token=True)
    assert ends(Tokenizer.load(place, "<|endoftext|>", "<begin>")) == ("<begin>", "<|endoftext|>")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.model", b"\x0a\x0e", r"tokenizer\.model is a model of sentencepiece or tiktoken.*save_pretrained"),
        ("cl100k_base.tiktoken", b"IQ== 0", r"is of tiktoken.*save_pretrained"),
        ("merges.txt", b"a b", r"is a list of words or merges"),
        (
            "tekken.json",
            json.dumps({"config": {}, "vocab": [{"rank": 0, "token_bytes": "AA=="}], "special_tokens": []}).encode(),
            r"tekken\.json is of Mistral's tekken, not a tokenizer\.json; make.*save_pretrained",
        ),
        ("vocab.json", b'{"a": 0, "b": 1}', r"vocab\.json is a vocabulary alone"),
        ("tokenizer_config.json", b'{"eos_token": "</s>"}', r"holds none; name the tokenizer\.json beside it"),
        ("other.json", b"{}", r"other\.json is not a tokenizer\.json \("),
    ],
)
def test_files_of_other_kinds_are_told_by_name(tmp_path: Path, name: str, content: bytes, message: str):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        Tokenizer.load(tmp_path / name)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], r"has no tokenizer\.json; name a folder that has one"),
        (["tokenizer.model", "config.json"], r"has no tokenizer\.json, but tokenizer\.model; make .*save_pretrained"),
        (["tekken.json"], r"has no tokenizer\.json, but tekken\.json"),
        (["vocab.json", "merges.txt"], r"has no tokenizer\.json, but vocab\.json"),
    ],
)
def test_a_folder_without_one_says_what_it_has(tmp_path: Path, files: list[str], message: str):
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=message):
        Tokenizer.load(tmp_path)


def test_a_damaged_folder_is_named(tmp_path: Path):
    (folder(tmp_path) / "tokenizer_config.json").write_text("[")
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json cannot be read"):
        Tokenizer.load(tmp_path)
