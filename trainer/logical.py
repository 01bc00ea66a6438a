"""Between the training state as the devices hold it and its logical arrays by name.

A logical array is what a user knows: without padding, the same on every mesh and under every ZeRO stage. Its name is
its path in the state, such as `parameters.embedding.weight`, `optimizer.mu.embedding.weight` or `step`.
Knows nothing of files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from functools import cache, lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, Sharding
from jax.tree_util import DictKey, GetAttrKey, KeyPath

from sharding.layout import Layout
from trainer.loss_scale import LossScale
from trainer.program import Program, Tree
from trainer.step import TrainState

Arrays = dict[str, jax.Array]
SCALAR = Layout(())
SMALL = 2**20
"""Bytes of an array that no device minds to hold whole."""


def names(program: Program) -> list[str]:
    """The names of all arrays of the training state, in the state's order."""
    return list(_view(program).layouts)


def to_logical(program: Program, state: TrainState, names: Collection[str] | None = None) -> Arrays:
    """A copy of the state by name, all of it or `names`, that the train step may not touch when it donates the state.

    Each device copies its own shard; only where a size does not divide is there an exchange. The copy takes as much
    device memory as the state, so drop it before the next step.
    """
    return _view(program).to_logical(state, names)


def from_logical(
    program: Program, arrays: Mapping[str, jax.Array], held: Mapping[str, jax.Array] | None = None
) -> TrainState:
    """The state made of logical arrays and of those that are `held` by the devices as they shall be; None for the rest.

    Where nothing is padded it is the same memory: do not use them again.
    """
    return _view(program).from_logical(arrays, held or {})


def outgrown(program: Program) -> list[str]:
    """The names of large arrays that take much more of a device as logical arrays: to be had one at a time.

    They have no dim that divides by the mesh axes that cut them, and JAX cuts no array unevenly.
    """
    return list(_view(program).outgrown)


def to_logical_alone(program: Program, state: TrainState, name: str) -> jax.Array:
    """One array of `to_logical`."""
    return to_logical(program, state, [name])[name]


def as_held(program: Program, name: str, array: jax.Array) -> jax.Array:
    """One logical array as the devices hold it in the state."""
    return _leaf(program.mesh, _view(program).layouts[name])[0](array)


def abstract_logical(program: Program) -> dict[str, jax.ShapeDtypeStruct]:
    """The shape, dtype and sharding of each logical array, as `to_logical` gives and `from_logical` takes it."""
    return _view(program).abstract


def as_stored(program: Program, name: str, array: jax.Array) -> jax.Array:
    """A logical array of the shape of parameter `name`, as the devices hold it."""
    return _leaf(program.mesh, program.layouts[name])[0](array)


def as_logical(program: Program, name: str, array: jax.Array) -> jax.Array:
    """Undoes `as_stored`."""
    return _leaf(program.mesh, program.layouts[name])[1](array)


@lru_cache(maxsize=256)
def _leaf(mesh: Mesh, layout: Layout) -> tuple[Callable[[jax.Array], jax.Array], Callable[[jax.Array], jax.Array]]:
    """What stores an array of this layout, and what makes it logical again; as it is where that changes nothing."""
    if layout.is_logical:
        return (lambda x: x), (lambda x: x)
    stored, cut = NamedSharding(mesh, layout.spec), NamedSharding(mesh, layout.logical_spec)
    store = jax.jit(lambda array: _pad(layout, cut, array), out_shardings=stored)
    return store, jax.jit(lambda array: _unpad(layout, cut, array), out_shardings=cut)


def _pad(layout: Layout, cut: Sharding, array: jax.Array) -> jax.Array:
    """Cut as the logical array is to the end, so that no dim with padding or of another order is."""
    return jax.lax.with_sharding_constraint(layout.store(array), cut)


def _unpad(layout: Layout, cut: Sharding, array: jax.Array) -> jax.Array:
    """Undoes `_pad`, cut in the same way from the start."""
    return layout.logical(jax.lax.with_sharding_constraint(array, cut))


class _View(NamedTuple):
    layouts: dict[str, Layout]
    abstract: dict[str, jax.ShapeDtypeStruct]
    to_logical: Callable[[TrainState, Collection[str] | None], Arrays]
    from_logical: Callable[[Mapping[str, jax.Array], Mapping[str, jax.Array]], TrainState]
    outgrown: list[str]


@lru_cache(maxsize=4)  # for the sake of the compiled functions; no arrays are kept
def _view(program: Program) -> _View:
    state = program.abstract_state()
    layouts = _by_name(_layouts(program, state))
    leaves, form = jax.tree.flatten(state)
    stored = dict(zip(layouts, leaves, strict=True))
    abstract = {
        name: jax.ShapeDtypeStruct(
            layout.shape, stored[name].dtype, sharding=NamedSharding(program.mesh, layout.logical_spec)
        )
        for name, layout in layouts.items()
    }
    padded = [name for name, layout in layouts.items() if not layout.is_logical]

    def unpad(arrays: Arrays) -> Arrays:
        # Without the copy, jit might hand back the very buffers that the next step donates.
        return {name: jnp.copy(_unpad(layouts[name], abstract[name].sharding, array)) for name, array in arrays.items()}

    @cache
    def unpad_all(names: frozenset[str]) -> Callable[[Arrays], Arrays]:
        return jax.jit(unpad, out_shardings=_shardings({name: abstract[name] for name in names}))

    def pad(arrays: Arrays) -> Arrays:
        return {name: _pad(layouts[name], abstract[name].sharding, array) for name, array in arrays.items()}

    @cache
    def pad_all(names: frozenset[str]) -> Callable[[Arrays], Arrays]:
        return jax.jit(pad, out_shardings=_shardings({name: stored[name] for name in names}))

    def to_logical(state: TrainState, names: Collection[str] | None) -> Arrays:
        arrays = dict(zip(layouts, jax.tree.leaves(state), strict=True))
        wanted = {name: arrays[name] for name in (arrays if names is None else names)}
        return unpad_all(frozenset(wanted))(wanted)

    def from_logical(arrays: Mapping[str, jax.Array], held: Mapping[str, jax.Array]) -> TrainState:
        to_pad = {name: arrays[name] for name in padded if name in arrays}
        arrays = {**arrays, **pad_all(frozenset(to_pad))(to_pad), **held}
        leaves = [jax.device_put(arrays[name], x.sharding) if name in arrays else None for name, x in stored.items()]
        return jax.tree.unflatten(form, leaves)

    outgrown = [
        name for name in padded if _bytes_of_shard(abstract[name]) > max(SMALL, 2 * _bytes_of_shard(stored[name]))
    ]
    return _View(layouts, abstract, to_logical, from_logical, outgrown)


def _bytes_of_shard(array: jax.ShapeDtypeStruct) -> int:
    return math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize


def _shardings(abstract: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, Any]:
    return {name: x.sharding for name, x in abstract.items()}


def _layouts(program: Program, state: Tree) -> Tree:
    """The layout of every array of the state: moments lie as their parameters do, all else are scalars."""
    moments = optax.tree_utils.tree_map_params(
        program.optimizer,
        lambda _, layout: layout,
        state.optimizer,
        {name: layout for name, layout in program.layouts.items() if name not in program.offloaded},
        transform_non_params=lambda _: SCALAR,
    )
    parameters = {name: program.layouts[name] for name in state.parameters}
    fields: dict[str, Any] = {"parameters": parameters, "optimizer": moments}
    scale = LossScale(*[SCALAR] * len(LossScale._fields))  # type: ignore[arg-type]
    return TrainState(SCALAR, SCALAR, scale, **fields)  # type: ignore[arg-type]


def _by_name(layouts: Tree) -> dict[str, Layout]:
    paths, _ = jax.tree_util.tree_flatten_with_path(layouts)
    named = {_name(path): layout for path, layout in paths}
    assert len(named) == len(paths), f"two arrays of one name among {[_name(path) for path, _ in paths]}"
    return named


def _name(path: KeyPath) -> str:
    """Attributes and keys; the indices of optax's chain say nothing to a user, and change with its length."""
    parts = [
        key.name if isinstance(key, GetAttrKey) else key.key for key in path if isinstance(key, GetAttrKey | DictKey)
    ]
    return ".".join(parts)
