"""The optimizer's update in host memory: the numbers of the jitted train step, whatever the arrays are views of."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest

import trainer.offload
from trainer.errors import ConfigError
from trainer.offload.update import HostUpdate
from trainer.optimizer import RULES, make_optimizer
from trainer.settings import OptimizerConfig

pytestmark = pytest.mark.optimised  # the last bits are those of a user's program

STEPS = 50
SIZE = 5003  # more than a kernel's block, and no multiple of anything
RATE, FACTOR = np.float32(3e-3), np.float32(0.37)


@cache
def jitted(name: str, decay: bool, clip: bool) -> tuple[Any, Callable[..., Any]]:
    """(a fresh state of the optimizer, the update as the train step does it) for weights `w` of SIZE elements.

    A second array is the rest of the model: for one alone XLA would divide by Adam's corrections in another way.
    """
    optimizer = make_optimizer(OptimizerConfig(name=name), {"w": decay, "rest": True})  # type: ignore[arg-type]

    @jax.jit
    def step(weights: Any, state: Any, gradients: Any, rate: Any, factor: Any) -> Any:
        if clip:
            gradients = {key: value * factor for key, value in gradients.items()}
        updates, state = optimizer.update(gradients, state, weights)
        return {key: weights[key] - rate * updates[key] for key in weights}, state

    return optimizer.init({"w": jnp.zeros(SIZE), "rest": jnp.zeros(3)}), step


def gradients(step: int, size: int = SIZE) -> np.ndarray:
    """Of all sizes, down to those whose squares are subnormal, with some zeros."""
    rng = np.random.default_rng(step)
    values = rng.standard_normal(size) * 10.0 ** rng.integers(-24, 2, size)
    return np.where(rng.random(size) < 0.02, 0, values).astype(np.float32)


def masters(size: int = SIZE) -> np.ndarray:
    return np.random.default_rng(99).standard_normal(size).astype(np.float32)


def on_host(
    update: HostUpdate, master: np.ndarray, moments: list[np.ndarray], steps: int, weights: np.ndarray | None = None
) -> None:
    for count in range(steps):
        gradient = gradients(count, master.size)
        update(master, moments, gradient, weights, decays=True, count=count, rate=RATE, factor=FACTOR)


def same_bits(ours: np.ndarray, theirs: Any) -> None:
    np.testing.assert_array_equal(ours.view(np.uint32), np.asarray(theirs).view(np.uint32))


@pytest.mark.parametrize("name", RULES)  # of the trainer: one without a version for the host fails here
@pytest.mark.parametrize("decays", [True, False])
@pytest.mark.parametrize("clip", [True, False])
def test_fifty_steps_are_those_of_the_jitted_update_to_the_last_bit(name: str, decays: bool, clip: bool) -> None:
    update = HostUpdate(OptimizerConfig(name=name), threads=2)  # type: ignore[arg-type]
    state, step = jitted(name, decays, clip)
    master = masters()
    weights = {"w": jnp.asarray(master.copy()), "rest": jnp.ones(3)}
    moments = [np.zeros_like(master) for _ in update.moments]
    for count in range(STEPS):
        rate = np.float32(RATE * (count + 1) / STEPS)
        factor = FACTOR if clip else None
        update(master, moments, gradients(count), None, decays=decays, count=count, rate=rate, factor=factor)
        weights, state = step(weights, state, {"w": gradients(count), "rest": jnp.ones(3)}, rate, FACTOR)
        same_bits(master, weights["w"])
        for moment, key in zip(moments, update.moments, strict=True):
            same_bits(moment, optax.tree.get(state, key)["w"])


@pytest.mark.parametrize("size", [1, 15, 16, 17, 4095, 4097])
def test_neither_size_nor_threads_nor_alignment_change_a_number(size: int) -> None:
    config = OptimizerConfig()
    plain = [masters(size), np.zeros(size, np.float32), np.zeros(size, np.float32)]
    on_host(HostUpdate(config, threads=1), plain[0], plain[1:], steps=3)

    odd = [np.frombuffer(bytearray(4 * size + 1 + shift), np.float32, size, 1 + shift) for shift in range(3)]
    odd[0][:] = masters(size)
    on_host(HostUpdate(config, threads=3), odd[0], odd[1:], steps=3)
    for one, other in zip(plain, odd, strict=True):
        np.testing.assert_array_equal(one, other)


def test_nothing_outside_of_the_views_is_written() -> None:
    buffers = [np.full(SIZE + 2, 7, np.float32) for _ in range(4)]
    views = [buffer[1:-1] for buffer in buffers]
    views[1][:] = views[2][:] = 0
    on_host(HostUpdate(OptimizerConfig(), threads=2), views[0], views[1:3], steps=2, weights=views[3])
    assert all(buffer[0] == buffer[-1] == 7 for buffer in buffers)
    np.testing.assert_array_equal(views[3], views[0])


SPECIAL = [
    *(
        0.0,
        -0.0,
        1.0,
        np.inf,
        -np.inf,
        np.nan,
        -np.nan,
        65504,
        65519.99,
        65520,
        -65520,
        3.3895e38,
        3.4e38,
        6e-8,
        6.1e-5,
    ),
    *(2.98e-8, 2.9802322e-8, 2.9802326e-8, 6.097555e-5, 1.17549435e-38),
    *(1 + odd * 2**-bit for bit in (8, 11) for odd in (1, 3)),  # half way between two of bfloat16, of float16
    *(1 + 2**-8 + 2**-20, 1 + 2**-11 + 2**-20, 1 + 2**-8 - 2**-20, 1 + 2**-11 - 2**-20),
]


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
def test_weights_are_the_new_masters_rounded_to_nearest_even(dtype: Any) -> None:
    """A step with a zero gradient and no decay leaves the masters, and all that is written are their roundings."""
    random = np.random.default_rng(3).integers(0, 2**32, 20_000, dtype=np.uint32).view(np.float32)
    master = np.concatenate([np.array(SPECIAL, np.float32), random])
    master[np.abs(master) < np.finfo(np.float32).tiny] = 0  # the update itself makes zeros of subnormal masters
    weights, zeros = np.empty(master.size, dtype), np.zeros(master.size, np.float32)
    update = HostUpdate(OptimizerConfig(name="sgd"), threads=2)
    update(master, [zeros.copy()], zeros, weights, decays=False, count=0, rate=np.float32(0), factor=None)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = master.astype(dtype)
    numbers = ~np.isnan(master)
    bits = np.uint32 if dtype is np.float32 else np.uint16
    np.testing.assert_array_equal(weights.view(bits)[numbers], expected.view(bits)[numbers])
    assert np.isnan(weights[~numbers].astype(np.float32)).all()


def test_other_threads_run_meanwhile() -> None:
    update = HostUpdate(OptimizerConfig(), threads=1)
    master = masters(2**22)
    moments = [np.zeros_like(master) for _ in range(2)]
    gradient = gradients(0, master.size)

    def step(count: int) -> None:
        update(master, moments, gradient, None, decays=True, count=count, rate=RATE, factor=None)

    step(0)  # compiles
    worker = threading.Thread(target=lambda: [step(count) for count in range(1, 6)])
    worker.start()
    turns = 0
    while worker.is_alive():
        turns += 1
        time.sleep(0)
    assert turns > 50


def test_a_missing_numba_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(trainer.offload, "kernels", raising=False)
    monkeypatch.setitem(sys.modules, "trainer.offload.kernels", None)
    with pytest.raises(ConfigError, match=r"pip install 'meshwright\[offload\]'"):
        HostUpdate(OptimizerConfig())
