"""Calls from a compiled program to Python functions that fill its buffers, or look at them, where they are.

JAX's other callbacks copy what they are given through its CPU devices: several CPU devices then wait for each other for
ever, and GPUs that are not there cannot be compiled for. Knows nothing of what the buffers hold.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, Protocol

import jax
import numpy as np
from jax.experimental.buffer_callback import Buffer, ExecutionContext, buffer_callback
from jax.sharding import Mesh

_numbers = itertools.count()  # of calls that are only compiled, so that no two are the same

Callback = Callable[..., None]
"""(context, the buffer of the result, those of the operands)."""

ON_GPU = "xla_buffer_python_gpu_callback"
"""What `buffer_callback` has a program for GPUs call."""


def call(mesh: Mesh, callback: Callback, result: jax.ShapeDtypeStruct, *, acts: bool) -> Callable[..., jax.Array]:
    """`callback` as a function of arrays, for each device of a manual region over `mesh`.

    On devices that are not there it can be compiled, to the same program, and not run. Unless it `acts`, XLA may leave
    a call out, or do it again.
    """
    if _are_there(mesh):
        return buffer_callback(callback, result, has_side_effect=acts)
    return partial(jax.ffi.ffi_call(ON_GPU, result, has_side_effect=acts), index=np.uint64(next(_numbers)))


def _are_there(mesh: Mesh) -> bool:
    return isinstance(mesh, Mesh) and mesh.devices.flat[0].client.runtime_type != "compile_only_runtime"


class Copies(Protocol):
    """Between a program's buffers and host memory: arrays of the buffer's dtype, flat."""

    def give(self, context: ExecutionContext, buffer: Buffer, data: np.ndarray) -> None:
        """Fills the buffer; `data` may be changed afterwards."""

    def take(self, context: ExecutionContext, buffer: Buffer, into: np.ndarray) -> None:
        """Copies what is in the buffer."""


class OnCpu:
    """The buffers are in host memory."""

    def give(self, context: ExecutionContext, buffer: Buffer, data: np.ndarray) -> None:
        np.asarray(buffer).reshape(-1)[:] = data

    def take(self, context: ExecutionContext, buffer: Buffer, into: np.ndarray) -> None:
        into[:] = np.asarray(buffer).reshape(-1)


class OnCuda:
    """The buffers are in a GPU's memory, and are written and read on the program's stream."""

    def give(self, context: ExecutionContext, buffer: Buffer, data: np.ndarray) -> None:
        self._copy("cuMemcpyHtoDAsync_v2", context, _address(buffer), data.ctypes.data, data.nbytes)

    def take(self, context: ExecutionContext, buffer: Buffer, into: np.ndarray) -> None:
        self._copy("cuMemcpyDtoHAsync_v2", context, into.ctypes.data, _address(buffer), into.nbytes)

    def _copy(self, function: str, context: ExecutionContext, to: int, source: int, num_bytes: int) -> None:
        stream = ctypes.c_void_p(context.stream)
        self._call(function, ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_size_t(num_bytes), stream)
        self._call("cuStreamSynchronize", stream)

    def _call(self, function: str, *arguments: Any) -> None:
        if error := getattr(self._driver, function)(*arguments):
            raise RuntimeError(f"CUDA's {function} failed with error {error}")

    @cached_property
    def _driver(self) -> ctypes.CDLL:
        return ctypes.CDLL("libcuda.so.1")


def _address(buffer: Buffer) -> int:
    return int(buffer.__cuda_array_interface__["data"][0])
