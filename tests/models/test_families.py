"""The decoder is GPT-2, BLOOM and Llama: each against its paper, written anew in numpy and float64.

The references loop over tokens and heads and share nothing with the decoder but the names of the weights.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import jax
import numpy as np
import pytest

from models.config import ModelConfig
from models.decoder import Decoder
from tests.models.families import FAMILIES, Weights, batch_of, log_probabilities, weights_of, whole

TOKENS = np.array([3, 1, 4, 1, 5, 9, 2, 6, 10, 0], np.int32)


def layer_norm(x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * scale + bias


def rms_norm(x: np.ndarray, scale: np.ndarray, epsilon: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * scale


def gelu(x: np.ndarray) -> np.ndarray:
    """Hendrycks & Gimpel 2016, the tanh form that both GPT-2 and BLOOM were trained with."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


def mix(q: np.ndarray, k: np.ndarray, v: np.ndarray, bias_HT: np.ndarray | None = None) -> np.ndarray:
    """Causal attention over [S, H, K], one query at a time; `bias_HT` is added to the scores of each key."""
    out = np.zeros_like(q)
    for i in range(len(q)):
        for h in range(q.shape[1]):
            scores = k[: i + 1, h] @ q[i, h] / math.sqrt(q.shape[2])
            if bias_HT is not None:
                scores = scores + bias_HT[h, : i + 1]
            out[i, h] = softmax(scores) @ v[: i + 1, h]
    return out


def layers_of(weights: Weights, config: ModelConfig) -> list[Weights]:
    return [
        {name.removeprefix("layers."): x[n] for name, x in weights.items() if name.startswith("layers.")}
        for n in range(config.layers)
    ]


def project(x: np.ndarray, layer: Weights, name: str, dims_in: int = 1) -> np.ndarray:
    y = np.tensordot(x, layer[f"{name}.weight"], dims_in)
    return y + layer.get(f"{name}.bias", 0)


def gpt_block(x: np.ndarray, w: Weights, bias_HT: np.ndarray | None) -> np.ndarray:
    """Radford et al. 2019: the norm moved to the input of each sub-block."""
    y = layer_norm(x, w["attention_norm.scale"], w["attention_norm.bias"])
    q, k, v = (project(y, w, f"attention.{name}") for name in ("query", "key", "value"))
    x = x + project(mix(q, k, v, bias_HT), w, "attention.out", 2)
    y = layer_norm(x, w["mlp_norm.scale"], w["mlp_norm.bias"])
    return x + project(gelu(project(y, w, "mlp.up")), w, "mlp.down")


def gpt2(config: ModelConfig, w: Weights, tokens: np.ndarray) -> np.ndarray:
    """Logits [S, V]. Learned positions are added to the embedding, whose matrix is the output's too."""
    x = w["embedding.weight"][tokens] + w["embedding.positions"][: len(tokens)]
    for layer in layers_of(w, config):
        x = gpt_block(x, layer, None)
    return layer_norm(x, w["head.norm.scale"], w["head.norm.bias"]) @ w["embedding.weight"].T


def bloom(config: ModelConfig, w: Weights, tokens: np.ndarray) -> np.ndarray:
    """BigScience 2022, section 3.2: ALiBi, and a norm after the embedding.

    The bias is slope x key position, as released: a row's softmax does not see the query's. Slopes of 3 heads: 2**-4
    and 2**-8 of two, then 2**-2, the first of four.
    """
    assert config.heads == 3
    bias_HT = np.array([[2**-4], [2**-8], [2**-2]]) * np.arange(len(tokens))
    x = layer_norm(w["embedding.weight"][tokens], w["embedding.norm.scale"], w["embedding.norm.bias"])
    for layer in layers_of(w, config):
        x = gpt_block(x, layer, bias_HT)
    return layer_norm(x, w["head.norm.scale"], w["head.norm.bias"]) @ w["embedding.weight"].T


def rotated(x: np.ndarray, theta: float) -> np.ndarray:
    """Su et al. 2021, in complex numbers: the pair (i, i + K/2) turns by position x theta**(-2i/K)."""
    half = x.shape[-1] // 2
    z = x[..., :half] + 1j * x[..., half:]
    z = z * np.exp(1j * np.arange(len(x))[:, None, None] * theta ** (-2 * np.arange(half) / x.shape[-1]))
    return np.concatenate([z.real, z.imag], -1)


def llama(config: ModelConfig, w: Weights, tokens: np.ndarray) -> np.ndarray:
    """Touvron et al. 2023, section 2.2: RMSNorm before, SwiGLU, rotary positions; grouped keys as in Llama 2."""
    x = w["embedding.weight"][tokens]
    for layer in layers_of(w, config):
        y = rms_norm(x, layer["attention_norm.scale"], config.norm_epsilon)
        q, k, v = (project(y, layer, f"attention.{name}") for name in ("query", "key", "value"))
        k, v = (np.repeat(a, config.heads // config.num_kv_heads, axis=1) for a in (k, v))
        x = x + project(mix(rotated(q, config.rope_theta), rotated(k, config.rope_theta), v), layer, "attention.out", 2)
        y = rms_norm(x, layer["mlp_norm.scale"], config.norm_epsilon)
        gate = project(y, layer, "mlp.gate")
        x = x + project(gate / (1 + np.exp(-gate)) * project(y, layer, "mlp.up"), layer, "mlp.down")
    return rms_norm(x, w["head.norm.scale"], config.norm_epsilon) @ w["head.weight"].T


REFERENCES: dict[str, Callable[[ModelConfig, Weights, np.ndarray], np.ndarray]] = {
    "gpt2": gpt2,
    "bloom": bloom,
    "llama": llama,
    "llama grouped": llama,
}


def reference(family: str, weights: Weights) -> np.ndarray:
    """Log probabilities [S, V], float64."""
    logits = REFERENCES[family](FAMILIES[family], weights, TOKENS)
    return logits - np.logaddexp.reduce(logits, -1, keepdims=True)


def double(weights: Weights) -> Weights:
    return {name: x.astype(np.float64) for name, x in weights.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_forward_pass_is_the_papers(family: str) -> None:
    weights = weights_of(FAMILIES[family])
    found = log_probabilities(FAMILIES[family], weights, TOKENS)
    np.testing.assert_allclose(found, reference(family, double(weights)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_weights_gradient_is_the_papers(family: str) -> None:
    """Along a random direction of each, against a central difference of the reference."""
    config = FAMILIES[family]
    weights = weights_of(config)
    batch = batch_of(TOKENS[None])
    gradients = jax.jit(jax.grad(lambda w: Decoder(config).loss(w, whole, batch, None, None)))(weights)
    rng = np.random.default_rng(1)

    def loss(name: str, change: np.ndarray) -> float:
        moved = double(weights) | {name: weights[name] + change}
        return -reference(family, moved)[np.arange(len(TOKENS)), np.asarray(batch.targets[0])].sum()

    largest = max(float(np.abs(gradient).max()) for gradient in gradients.values())
    for name, gradient in gradients.items():
        direction = rng.normal(size=weights[name].shape)
        step = 1e-5 * direction
        expected = (loss(name, step) - loss(name, -step)) / 2e-5
        tolerance = 1e-5 * max(np.linalg.norm(gradient), 1e-2 * largest) * np.linalg.norm(direction)
        assert (gradient * direction).sum() == pytest.approx(expected, abs=tolerance), name


def test_unrolled_layers_are_the_scanned_ones() -> None:
    config = FAMILIES["bloom"]
    weights, batch = weights_of(config), batch_of(TOKENS[None])
    (loss, gradients), (other_loss, other) = (
        jax.jit(jax.value_and_grad(lambda w, c=c: Decoder(c).loss(w, whole, batch, None, None)))(weights)
        for c in (config, dataclasses.replace(config, scan_layers=False))
    )
    np.testing.assert_allclose(loss, other_loss, rtol=1e-6)
    largest = max(float(np.abs(gradient).max()) for gradient in gradients.values())
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, other[name], rtol=1e-4, atol=1e-6 * largest, err_msg=name)
