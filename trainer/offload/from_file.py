"""What a compiled program calls for layers that are in files: see `sharding.streamed.Outside`.

A program is made before there are files: `serve` tells who has them. What goes wrong in a call is kept for `check`, and
the program goes on with numbers that mean nothing: one device that stopped would have the others wait for ever.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.typing import DTypeLike

from sharding import collectives
from sharding.layout import Layout
from sharding.mesh import AXES
from trainer.offload.layers import Layers
from trainer.offload.xla_buffers import Copies, OnCpu, OnCuda, call

Task = Callable[..., None]
"""Told the context, the result's buffer, the device that it is for, which layer, and the operands' buffers."""


class FromFile:
    """For the parameters of these layouts on this mesh; weights in `dtype`."""

    def __init__(self, mesh: Mesh, layouts: Mapping[str, Layout], dtype: DTypeLike, on_cpu: bool) -> None:
        self._mesh, self._layouts, self._dtype = mesh, layouts, jnp.dtype(dtype)
        self._copies: Copies = OnCpu() if on_cpu else OnCuda()
        self._layers: Callable[[], Layers | None] = lambda: None  # weak: they go with who keeps the state
        self._failure: BaseException | None = None

    def serve(self, layers: Layers) -> None:
        """From now on, from these."""
        self._layers = weakref.ref(layers)
        self._failure = None

    def check(self) -> None:
        """Whether all was well in the calls of a program that is over.

        Raises:
            OffloadError: a file could not be read or written.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def settle(self) -> None:
        """`check`, and all gradients are in their file."""
        self.check()
        self._served.settle()

    def weight(self, name: str, layer: jax.Array, learns: bool) -> jax.Array:
        bits = jnp.dtype(f"uint{8 * self._dtype.itemsize}")
        found = self._call(partial(self._give_weight, name, learns), self._shard(name, bits), False, layer)
        return jax.lax.bitcast_convert_type(found, self._dtype)

    def total(self, name: str, layer: jax.Array, after: jax.Array) -> jax.Array:
        return self._call(partial(self._give_total, name), self._shard(name, jnp.float32), True, layer, after)

    def keep(self, name: str, layer: jax.Array, gradient: jax.Array) -> jax.Array:
        scalar = jax.ShapeDtypeStruct((), jnp.int32)
        return self._call(partial(self._take_gradient, name), scalar, True, layer, gradient) > 0

    def _shard(self, name: str, dtype: DTypeLike) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self._layouts[name].shard_shape[1:], dtype)

    def _call(self, task: Task, result: jax.ShapeDtypeStruct, acts: bool, *operands: jax.Array) -> jax.Array:
        """The first operand is the layer."""
        layer, *others = operands
        where = jnp.stack([jnp.int32(collectives.place(AXES)), layer])
        made = call(self._mesh, partial(self._guarded, task), result, acts=acts)(where, *others)
        return collectives.varying(made, AXES)

    def _guarded(self, task: Task, context: Any, result: Any, where: Any, *operands: Any) -> None:
        if self._failure is not None:
            return
        try:
            place = np.empty(2, np.int32)
            self._copies.take(context, where, place)
            device = self._mesh.devices.flat[place[0]]
            task(context, result, device, int(place[1]), *operands)
        except BaseException as error:
            self._failure = error

    def _give_weight(self, name: str, learns: bool, context: Any, result: Any, device: jax.Device, layer: int) -> None:
        bits = np.dtype(f"uint{8 * self._dtype.itemsize}")
        self._served.weight(name, device, layer, learns, lambda row: self._copies.give(context, result, row.view(bits)))

    def _give_total(self, name: str, context: Any, result: Any, device: jax.Device, layer: int, after: Any) -> None:
        self._served.total(name, device, layer, lambda row: self._copies.give(context, result, row))

    def _take_gradient(
        self, name: str, context: Any, result: Any, device: jax.Device, layer: int, gradient: Any
    ) -> None:
        counts = self._served.keep(name, device, layer, lambda row: self._copies.take(context, gradient, row))
        self._copies.give(context, result, np.array([counts], np.int32))

    @property
    def _served(self) -> Layers:
        layers = self._layers()
        assert layers is not None, "a program runs, and nobody keeps the weights of its layers"
        return layers


def checked(program: Callable[..., Any], outside: FromFile) -> Callable[..., Any]:
    """`program`, that raises what went wrong outside while it ran."""

    def run(*arrays: Any) -> Any:
        made = jax.block_until_ready(program(*arrays))
        outside.check()
        return made

    return run
