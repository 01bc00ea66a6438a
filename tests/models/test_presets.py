"""The presets have the sizes that were published."""

import math

import pytest

from models.config import ModelConfig
from models.decoder import Decoder
from models.presets import PRESETS, num_parameters

PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "bloom-176b": 176_247_271_424,
    "llama3.2-1b": 1_235_814_400,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
}
ROUNDED = {"gpt3-175b": 175e9, "mt-nlg-530b": 530e9}  # only the name of these tells their size


def preset(name: str, **override: object) -> ModelConfig:
    return ModelConfig(**(PRESETS[name] | override))


def test_every_preset_has_a_published_size() -> None:
    assert set(PRESETS) == set(PUBLISHED) | set(ROUNDED)


@pytest.mark.parametrize(("name", "size"), PUBLISHED.items())
def test_exact_size(name: str, size: int) -> None:
    assert num_parameters(preset(name)) == size


@pytest.mark.parametrize(("name", "size"), ROUNDED.items())
def test_rounded_size(name: str, size: float) -> None:
    assert num_parameters(preset(name)) == pytest.approx(size, rel=0.005)


@pytest.mark.parametrize("name", PRESETS)
def test_the_model_declares_what_is_counted(name: str) -> None:
    declared = Decoder(preset(name)).declarations.values()
    assert sum(math.prod(parameter.shape) for parameter in declared) == num_parameters(preset(name))


def test_a_field_can_be_overridden() -> None:
    llama = PRESETS["llama3-8b"]
    grown = num_parameters(preset("llama3-8b", layers=33)) - num_parameters(preset("llama3-8b"))
    assert grown == 218_112_000
    assert llama["layers"] == 32


def test_llama_3_1_stretches_long_wavelengths() -> None:
    scaling = preset("llama3-405b").rope_scaling
    assert scaling is not None
    assert (scaling.factor, scaling.original_context) == (8.0, 8192)
    assert preset("llama3-8b").rope_scaling is None


@pytest.mark.parametrize(
    ("override", "more"),
    [
        ({"bias": True}, 2 * (3 * 64 + 64 + 256 + 64)),
        ({"tied": True}, -1000 * 64),
        ({"embedding_norm": True}, 2 * 64),
        ({"positions": "learned"}, 128 * 64),
        ({"norm": "rmsnorm"}, -(2 * 2 + 1) * 64),
        ({"activation": "swiglu"}, 2 * 64 * 256),
        ({"kv_heads": 1}, -2 * 2 * 64 * 48),
        ({"head_dim": 32}, 2 * 4 * 64 * 64),
    ],
)
def test_what_each_field_adds(override: dict[str, object], more: int) -> None:
    sizes = {"layers": 2, "hidden": 64, "heads": 4, "vocab": 1000, "context": 128}
    small: dict[str, object] = {**sizes, "norm": "layernorm", "activation": "gelu"}
    plain = num_parameters(ModelConfig(**small))
    assert num_parameters(ModelConfig(**(small | override))) - plain == more
