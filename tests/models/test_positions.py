"""Rotary angles and ALiBi slopes against transcriptions of what was published."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from models import rope
from models.config import ModelConfig, RopeScaling
from models.layers import alibi_slopes

LLAMA = ModelConfig(hidden=128, heads=1, rope_theta=500_000.0)
SCALED = dataclasses.replace(LLAMA, rope_scaling=RopeScaling(factor=8.0))


def published_frequencies(config: ModelConfig) -> list[float]:
    """Llama 3.1's `apply_scaling`, branch by branch."""
    dim = config.dim_per_head
    scaling = config.rope_scaling
    frequencies = [1 / config.rope_theta ** (2 * i / dim) for i in range(dim // 2)]
    if scaling is None:
        return frequencies
    low_wavelength = scaling.original_context / scaling.low_frequency_factor
    high_wavelength = scaling.original_context / scaling.high_frequency_factor
    scaled = []
    for frequency in frequencies:
        wavelength = 2 * math.pi / frequency
        if wavelength < high_wavelength:
            scaled.append(frequency)
        elif wavelength > low_wavelength:
            scaled.append(frequency / scaling.factor)
        else:
            smooth = scaling.original_context / wavelength - scaling.low_frequency_factor
            smooth /= scaling.high_frequency_factor - scaling.low_frequency_factor
            scaled.append((1 - smooth) * frequency / scaling.factor + smooth * frequency)
    return scaled


@pytest.mark.parametrize("config", [LLAMA, SCALED, dataclasses.replace(SCALED, rope_scaling=RopeScaling(factor=32.0))])
def test_angles_are_the_published_ones(config: ModelConfig) -> None:
    positions = np.array([[0, 1, 2, 500, 8191]])
    cos, sin = rope.angles(config, positions)
    expected = positions[..., None] * np.array(published_frequencies(config))
    assert cos.shape == (1, 5, 64)
    # A float32 angle of 8191 radians is known to 2**-11.
    np.testing.assert_allclose(cos, np.cos(expected), atol=1e-3)
    np.testing.assert_allclose(sin, np.sin(expected), atol=1e-3)
    np.testing.assert_allclose(cos[:, :3], np.cos(expected[:, :3]), atol=1e-6)


def test_scaling_keeps_the_short_and_stretches_the_long_wavelengths() -> None:
    plain, scaled = (np.array(rope.angles(c, np.array([[1]]))[1][0, 0]) for c in (LLAMA, SCALED))
    np.testing.assert_array_equal(plain[:16], scaled[:16])
    np.testing.assert_allclose(plain[-16:] / scaled[-16:], 8, rtol=1e-5)
    ratio = plain / scaled
    assert (np.diff(ratio) > -1e-5).all()
    assert len(set(np.round(ratio, 3))) > 4, "in between it is smooth"


def test_rotation_keeps_lengths_and_sees_only_distances() -> None:
    q, k = np.random.default_rng(0).normal(size=(2, 1, 1, 1, 128)).astype(np.float32)

    def product(i: int, j: int) -> float:
        turned = (rope.rotate(x, rope.angles(LLAMA, np.array([[place]]))) for x, place in ((q, i), (k, j)))
        a, b = (np.asarray(x, np.float64).ravel() for x in turned)
        assert np.linalg.norm(a) == pytest.approx(np.linalg.norm(q), rel=1e-5)
        return float(a @ b)

    assert product(0, 0) == pytest.approx(float(q.ravel() @ k.ravel()), rel=1e-5)
    assert product(7, 3) == pytest.approx(product(104, 100), abs=1e-3)
    assert product(7, 3) != pytest.approx(product(3, 7), abs=1e-1)


def published_slopes(heads: int) -> list[float]:
    """The recipe of Press et al. 2022, as in their code."""

    def of_a_power_of_two(n: int) -> list[float]:
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(heads).is_integer():
        return of_a_power_of_two(heads)
    closest = 2 ** math.floor(math.log2(heads))
    return of_a_power_of_two(closest) + published_slopes(2 * closest)[0::2][: heads - closest]


@pytest.mark.parametrize("heads", [1, 2, 3, 8, 12, 16, 64, 112])
def test_slopes_are_the_published_ones(heads: int) -> None:
    assert alibi_slopes(heads) == pytest.approx(published_slopes(heads), rel=1e-12)


def test_the_slopes_of_8_heads_as_the_paper_prints_them() -> None:
    assert alibi_slopes(8) == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]


@pytest.mark.parametrize(("low", "high"), [(4.0, 4.0), (4.0, 1.0), (0.0, 4.0)])
def test_scaling_that_divides_by_zero_is_refused(low: float, high: float) -> None:
    with pytest.raises(ValueError, match=r"low_frequency_factor=.*Llama 3 uses 1 and 4"):
        RopeScaling(low_frequency_factor=low, high_frequency_factor=high)
