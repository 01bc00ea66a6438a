"""The parameters' names, dims and starts do not drift: checkpoints and initial values go by them."""

from __future__ import annotations

import math

import pytest

from models.config import ModelConfig
from models.decoder import Decoder
from models.parameter import ONES, ZEROS, Init
from models.presets import PRESETS
from sharding.layout import RULES
from tests.models.families import FAMILIES

MATRICES = {
    "embedding.weight": "vocab embed",
    "layers.attention.key.weight": "layers embed kv_heads head_dim",
    "layers.attention.out.weight": "layers heads head_dim embed",
    "layers.attention.query.weight": "layers embed heads head_dim",
    "layers.attention.value.weight": "layers embed kv_heads head_dim",
    "layers.mlp.down.weight": "layers ffn embed",
    "layers.mlp.up.weight": "layers embed ffn",
}
SCALES = {
    "layers.attention_norm.scale": "layers embed",
    "layers.mlp_norm.scale": "layers embed",
    "head.norm.scale": "embed",
}
BIASES = {
    "layers.attention.key.bias": "layers kv_heads head_dim",
    "layers.attention.out.bias": "layers embed",
    "layers.attention.query.bias": "layers heads head_dim",
    "layers.attention.value.bias": "layers kv_heads head_dim",
    "layers.attention_norm.bias": "layers embed",
    "layers.mlp.down.bias": "layers embed",
    "layers.mlp.up.bias": "layers ffn",
    "layers.mlp_norm.bias": "layers embed",
    "head.norm.bias": "embed",
}
GOLDEN = {
    "gpt2": MATRICES | SCALES | BIASES | {"embedding.positions": "positions embed"},
    "bloom-176b": MATRICES | SCALES | BIASES | {"embedding.norm.scale": "embed", "embedding.norm.bias": "embed"},
    "llama3-8b": MATRICES | SCALES | {"layers.mlp.gate.weight": "layers embed ffn", "head.weight": "vocab embed"},
    "llama3.2-1b": MATRICES | SCALES | {"layers.mlp.gate.weight": "layers embed ffn"},
}


@pytest.mark.parametrize("preset", GOLDEN)
def test_names_and_dims(preset: str) -> None:
    declarations = Decoder(ModelConfig(**PRESETS[preset])).declarations
    assert {name: " ".join(declaration.axes) for name, declaration in declarations.items()} == GOLDEN[preset]


def test_the_order_is_fixed() -> None:
    """The optimizer's state and its golden files are in this order: the model's parts, each by name."""
    names = list(Decoder(FAMILIES["gpt2"]).declarations)
    assert names == sorted(names, key=lambda name: (["embedding", "layers", "head"].index(name.split(".")[0]), name))


@pytest.mark.parametrize("preset", PRESETS)
def test_sizes_follow_the_names(preset: str) -> None:
    config = ModelConfig(**PRESETS[preset])
    size = {
        "layers": config.layers,
        "vocab": config.vocab,
        "embed": config.hidden,
        "heads": config.heads,
        "kv_heads": config.num_kv_heads,
        "head_dim": config.dim_per_head,
        "ffn": config.ffn_size,
        "positions": config.context,
    }
    assert size.keys() == RULES.keys()
    for name, declaration in Decoder(config).declarations.items():
        assert declaration.shape == tuple(size[axis] for axis in declaration.axes), name


@pytest.mark.parametrize("family", FAMILIES)
def test_starts_and_decay(family: str) -> None:
    """Matrices are normal and decay; those that add to the residual start smaller (Radford et al. 2019)."""
    config = FAMILIES[family]
    for name, declaration in Decoder(config).declarations.items():
        last = name.rsplit(".", 1)[1]
        residual = name in ("layers.attention.out.weight", "layers.mlp.down.weight")
        std = config.init_std / math.sqrt(2 * config.layers) if residual else config.init_std
        assert declaration.init == {"bias": ZEROS, "scale": ONES}.get(last, Init(std=std)), name
        assert declaration.decays == (last in ("weight", "positions")), name
