"""What `to_yaml` writes is read back as the same config, by us and by any YAML reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.config import Config
from trainer.config_yaml import dump, parse

SETTINGS: list[dict[str, Any]] = [
    {},
    {"model": {"preset": "llama3.2-1b", "layers": 7, "rope_scaling": None}},
    {"model": {"preset": "gpt2"}, "optimizer": {"name": "sgd", "learning_rate": 1e-4}},
    {"mesh": {"data": -1, "tensor": 2}, "zero": {"stage": 0}, "batch": {"global": 8, "micro": 2}},
    {"precision": {"compute": "float16", "loss_scale": {"rule": "megatron", "window": 5}}},
    {"precision": {"compute": "bfloat16", "reduce": "bfloat16"}, "recompute": "selective"},
    {"optimizer": {"schedule": "constant", "epsilon": 1e-8, "clip": None}},
    {"data": {"path": ["a b.txt", "*.jsonl", "1e-4", "null", "~/x"], "tokenizer": "no", "text_key": "yes"}},
    {"run": {"name": "1e5", "wandb": {"project": "p", "tags": ["a", "1"], "config": {"x": None}}}},
    {"train": {"profile": {"start": 3}, "eval_every": 5}, "seed": 7},
]


@pytest.mark.parametrize("tree", SETTINGS, ids=str)
def test_a_config_comes_back_from_its_yaml(tree: dict[str, Any], tmp_path: Path) -> None:
    config = Config.from_dict(tree)
    (tmp_path / "x.yaml").write_text(config.to_yaml())
    assert Config.load(tmp_path / "x.yaml") == config
    assert Config.from_dict(config.to_dict()) == config
    assert yaml.safe_load(config.to_yaml()) == config.to_dict()


def test_keys_are_written_as_users_write_them() -> None:
    assert Config().to_dict()["batch"] == {"global": 32, "micro": None, "sequence": 256, "parts": 1}


def test_only_keys_with_an_effect_are_written() -> None:
    tree = Config.from_dict({"optimizer": {"name": "sgd"}}).to_dict()
    assert {"beta1", "weight_decay"} <= tree["optimizer"].keys()
    assert not {"beta2", "epsilon"} & tree["optimizer"].keys()
    assert "loss_scale" not in tree["precision"]


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
trees = st.dictionaries(
    st.text(min_size=1), st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)


@settings(max_examples=50, deadline=None)
@given(trees)
def test_any_plain_data_comes_back(tree: dict[str, Any]) -> None:
    document = parse(dump(tree), str)
    assert document.tree == tree
    assert repr(document.tree) == repr(tree)
