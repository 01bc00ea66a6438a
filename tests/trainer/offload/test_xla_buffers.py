"""What is copied between a running program and the host is what was there, also as CUDA's driver is asked for it."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sharding.mesh import MeshConfig, make_mesh
from trainer.offload.xla_buffers import OnCpu, OnCuda, call


def test_a_program_is_given_what_the_host_has_and_the_host_what_it_made() -> None:
    copies, found = OnCpu(), np.zeros(6, np.float32)

    def swap(context: Any, result: Any, operand: Any) -> None:
        copies.take(context, operand, found)
        copies.give(context, result, np.arange(6, dtype=np.float32))

    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    swapped = jax.jit(call(mesh, swap, jax.ShapeDtypeStruct((2, 3), jnp.float32), acts=True))
    np.testing.assert_array_equal(swapped(jnp.full((2, 3), 7.0)), [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(found, 7)


class Driver:
    """CUDA's, of a GPU whose memory is the host's; fails as it is told."""

    def __init__(self, error: int = 0) -> None:
        self.error, self.waited_for = error, 0

    def cuMemcpyHtoDAsync_v2(self, to: Any, source: Any, num_bytes: Any, stream: Any) -> int:
        ctypes.memmove(to.value, source.value, num_bytes.value)
        return self.error

    cuMemcpyDtoHAsync_v2 = cuMemcpyHtoDAsync_v2

    def cuStreamSynchronize(self, stream: Any) -> int:
        self.waited_for = stream.value
        return 0


def on_gpu(array: np.ndarray) -> Any:
    return SimpleNamespace(__cuda_array_interface__={"data": (array.ctypes.data, False)})


def test_a_gpu_is_asked_on_the_stream_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    copies, driver, memory, context = OnCuda(), Driver(), np.zeros(4, np.uint16), SimpleNamespace(stream=12)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    copies.give(context, on_gpu(memory), np.arange(4, dtype=np.uint16))
    into = np.zeros(4, np.uint16)
    copies.take(context, on_gpu(memory), into)
    assert memory.tolist() == into.tolist() == [0, 1, 2, 3]
    assert driver.waited_for == 12


def test_what_the_driver_cannot_do_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(error=700))
    with pytest.raises(RuntimeError, match=r"CUDA's cuMemcpyHtoDAsync_v2 failed with error 700"):
        OnCuda().give(SimpleNamespace(stream=1), on_gpu(np.zeros(1)), np.ones(1))
