"""Attention by one of several implementations, behind one signature: which there are, and which one is taken.

None of them sees the mesh; each is called on one device's heads. What an implementation cannot do is refused before
anything is traced, and never done by another one instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import jax

from pallas_kernels import reference
from pallas_kernels.flash import flash_attention
from pallas_kernels.flash.attention import SMALL
from pallas_kernels.flash.tiles import OTHERS, tiles_for

Name = Literal["pallas", "reference"]


class Attend(Protocol):
    """See `pallas_kernels.reference.attention`."""

    def __call__(
        self,
        q_BSHK: jax.Array,
        k_BTGK: jax.Array,
        v_BTGK: jax.Array,
        *,
        segments: tuple[jax.Array, jax.Array] | None = None,
        alibi_slopes_H: jax.Array | None = None,
        window: int | None = None,
        soft_cap: float | None = None,
        query_offset: jax.Array | int = 0,
    ) -> jax.Array: ...


class Choice(NamedTuple):
    """An implementation that was taken."""

    name: Name
    why: str
    attend: Attend


class Implementation(NamedTuple):
    """One way to compute attention."""

    about: str
    cannot: Callable[[int], str | None]
    """Of a head dim, why not."""
    make: Callable[[str | None], Attend]
    """What `jax.Device.device_kind` says of the GPUs, or None on CPU -> the function."""


LARGEST_HEAD_DIM = max(OTHERS)


def _too_large_for_a_kernel(head_dim: int) -> str | None:
    if head_dim <= LARGEST_HEAD_DIM:
        return None
    return f"its head dim can be at most {LARGEST_HEAD_DIM}, and the model's is {head_dim}"


def _flash(gpu: str | None) -> Attend:
    def attend(q_BSHK: jax.Array, k_BTGK: jax.Array, v_BTGK: jax.Array, **options: Any) -> jax.Array:
        tiles = SMALL if gpu is None else tiles_for(gpu, q_BSHK.shape[-1], q_BSHK.dtype)
        return flash_attention(q_BSHK, k_BTGK, v_BTGK, tiles=tiles, interpret=gpu is None, **options)[0]

    return attend


IMPLEMENTATIONS: dict[Name, Implementation] = {
    "pallas": Implementation("flash attention, whose scores never reach memory", _too_large_for_a_kernel, _flash),
    "reference": Implementation(
        "XLA's matmuls, with heads x sequence² scores in memory", lambda _: None, lambda _: reference.attention
    ),
}
AUTO: Name = "reference"
"""No GPU has shown yet that another is right and faster."""


def choose(asked: Name | Literal["auto"], head_dim: int, gpu: str | None) -> Choice:
    """The implementation for a model on GPUs of one kind (`jax.Device.device_kind`), or None: on CPU.

    Raises:
        ValueError: it cannot do what is asked.
    """
    name = AUTO if asked == "auto" else asked
    found = IMPLEMENTATIONS[name]
    if reason := found.cannot(head_dim):
        raise ValueError(f"attention.implementation={name}: {reason}; use reference")
    why = found.about
    if asked == "auto":
        why += "; auto takes pallas once a GPU has proved it"
    elif name == "pallas" and gpu is None:
        why += "; interpreted, as there is no GPU: very slow"
    return Choice(name, why, found.make(gpu))
