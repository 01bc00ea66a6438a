"""The FLOPs convention, against closed formulas of the literature, and what a logged step holds."""

import pytest

from models.config import ModelConfig
from models.presets import PRESETS
from trainer.metrics import StepMetrics, model_flops_per_token


@pytest.mark.parametrize("name", ["gpt2", "gpt3-175b", "mt-nlg-530b"])
def test_flops_of_a_gpt_follow_narayanan_2021_with_causal_attention_halved(name: str) -> None:
    """72 L h² (1 + s/6h + V/12Lh) per token (arXiv 2104.04473, without recomputation); the s term halved."""
    config = ModelConfig(**PRESETS[name])
    s, h, layers, vocab = config.context, config.hidden, config.layers, config.vocab
    expected = 72 * layers * h**2 * (1 + s / (12 * h) + vocab / (12 * layers * h))
    assert model_flops_per_token(config, s) == pytest.approx(expected, rel=1e-12)


def test_flops_of_llama3_8b_by_hand() -> None:
    """Grouped keys and values, a gate matrix, and an output matrix of its own."""
    per_layer = 4096 * 4096 * 2 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    core = 2 * 4096 * 8192 // 2
    expected = 6 * (32 * (per_layer + core) + 128256 * 4096)
    assert model_flops_per_token(ModelConfig(**PRESETS["llama3-8b"]), 8192) == expected


def test_a_window_sees_fewer_keys() -> None:
    matmuls = 6 * (4 * 64 * 64 + 3 * 64 * 256 + 8192 * 64)

    def core(window: int | None) -> float:
        config = ModelConfig(layers=1, hidden=64, heads=4, window=window)
        return model_flops_per_token(config, 1024) - matmuls

    assert core(None) == core(4096) == 6 * 2 * 64 * 512
    exact = sum(min(query + 1, 128) for query in range(1024)) / 1024
    assert core(128) == pytest.approx(6 * 2 * 64 * exact, rel=0.01)


def test_what_is_not_known_is_left_out() -> None:
    metrics = StepMetrics(
        step=1,
        loss=9.0,
        grad_norm=1.0,
        learning_rate=1e-3,
        tokens=64,
        tokens_per_second=32.0,
        step_seconds=2.0,
        model_flops_per_second=1e9,
    )
    values = metrics.to_dict()
    assert not {"step", "mfu"} & set(values)
    assert (values["loss"], values["skipped_steps"]) == (9.0, 0)
