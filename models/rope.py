"""Rotary position embedding (Su et al. 2021), in the half-split form of Llama, with Llama 3's frequency scaling."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from models.config import ModelConfig, RopeScaling


def angles(config: ModelConfig, positions_BS: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines of the rotation of each position, [B, S, K/2] float32."""
    half = config.dim_per_head // 2
    frequencies = config.rope_theta ** -(np.arange(half) / half)
    if config.rope_scaling is not None:
        frequencies = _stretch(frequencies, config.rope_scaling)
    angle = positions_BS[..., None].astype(jnp.float32) * jnp.asarray(frequencies, jnp.float32)
    return jnp.cos(angle), jnp.sin(angle)


def rotate(x_BSHK: jax.Array, rope: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Turns each pair (x[i], x[i + K/2]) of every head by its position's angle."""
    cos, sin = (a[:, :, None, None, :] for a in rope)
    halves = x_BSHK.astype(jnp.float32).reshape(*x_BSHK.shape[:3], 2, -1)
    # The halves are exchanged by `flip`: XLA's CPU backend is slow at the elements of a concatenation.
    turned = halves * cos + jnp.flip(halves, axis=-2) * jnp.concatenate([-sin, sin], axis=-2)
    return turned.reshape(x_BSHK.shape).astype(x_BSHK.dtype)


def _stretch(frequencies: np.ndarray, scaling: RopeScaling) -> np.ndarray:
    """Wavelengths over original_context / low factor are stretched, those under original_context / high factor kept."""
    turns = scaling.original_context * frequencies / (2 * math.pi)
    span = scaling.high_frequency_factor - scaling.low_frequency_factor
    kept = np.clip((turns - scaling.low_frequency_factor) / span, 0, 1)
    return frequencies * (kept + (1 - kept) / scaling.factor)
