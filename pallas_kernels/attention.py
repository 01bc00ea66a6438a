"""Attention by one of several implementations, behind one signature: what each can do, and which one is taken.

None of them sees the mesh; each is called on one device's heads. What an implementation cannot do is refused before
anything is traced, and never done by another one instead.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, Protocol

import jax

from pallas_kernels import cudnn, reference
from pallas_kernels.flash import flash_attention
from pallas_kernels.flash.attention import SMALL
from pallas_kernels.flash.tiles import OTHERS, tiles_for

Name = Literal["pallas", "cudnn", "reference"]


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


class Wanted(NamedTuple):
    """What a model asks of attention while it trains, as far as an implementation may not have it."""

    head_dim: int
    dtype: str
    """That it computes in."""
    gpu: str | None
    """What `jax.Device.device_kind` says of the GPUs; "" where a step is only traced; None on CPU."""
    documents: bool = False
    """Those that are packed into a sequence do not see each other."""
    alibi: bool = False
    soft_cap: bool = False


class Choice(NamedTuple):
    """An implementation that was taken."""

    name: Name
    why: str
    attend: Attend


class Implementation(NamedTuple):
    """One way to compute attention: what it is, how it is made, and what it can do."""

    about: str
    make: Callable[[Wanted], Attend]
    """Raises ValueError where what it needs is not installed, or does not take this GPU."""
    head_dims: range = range(1, sys.maxsize)
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16")
    on_cpu: bool = True
    cannot: Mapping[str, str] = {}
    """Field of `Wanted` -> why it is not done."""


def _flash(wanted: Wanted) -> Attend:
    gpu = wanted.gpu

    def attend(q_BSHK: jax.Array, k_BTGK: jax.Array, v_BTGK: jax.Array, **options: Any) -> jax.Array:
        tiles = SMALL if gpu is None else tiles_for(gpu, q_BSHK.shape[-1], q_BSHK.dtype)
        return flash_attention(q_BSHK, k_BTGK, v_BTGK, tiles=tiles, interpret=gpu is None, **options)[0]

    return attend


def _cudnn(wanted: Wanted) -> Attend:
    if wanted.gpu == "":
        return cudnn.traced
    cudnn.check(wanted.head_dim, wanted.dtype)
    return cudnn.attention


IMPLEMENTATIONS: dict[Name, Implementation] = {
    "pallas": Implementation(
        "flash attention, whose scores never reach memory",
        _flash,
        head_dims=range(1, max(OTHERS) + 1),
    ),
    "cudnn": Implementation(
        "NVIDIA's flash attention, whose gradients need not be the same to the bit twice",
        _cudnn,
        head_dims=range(8, 257, 8),
        dtypes=("bfloat16", "float16"),
        on_cpu=False,
        cannot={
            "documents": "keeps packed documents apart (attention.over=document) only by a mask of sequence² in memory",
            "alibi": "adds ALiBi (model.positions=alibi) only as heads x sequence² numbers in memory",
            "soft_cap": "has no cap on logits (model.soft_cap)",
        },
    ),
    "reference": Implementation(
        "XLA's matmuls, with heads x sequence² scores in memory", lambda _: reference.attention
    ),
}
INSTEAD = {"documents": "attention.over=sequence"}
"""Field of `Wanted` -> the setting that asks for less."""


UNTRIED = "not tried on this GPU"
TO_BE_TRIED = "which auto takes where a GPU shows it to be right and fastest"
INTERPRETED = "interpreted, as there is no GPU: very slow"


def able(wanted: Wanted) -> list[Name]:
    """The implementations that can do what is wanted."""
    return [name for name, found in IMPLEMENTATIONS.items() if not any(_objections(found, wanted))]


def preferred(wanted: Wanted) -> Name:
    """What `auto` takes where nothing has been measured: the first of `IMPLEMENTATIONS` that can do it; on CPU, where
    kernels are interpreted, the reference."""
    return "reference" if wanted.gpu is None else able(wanted)[0]


def objections(asked: Name | Literal["auto"], wanted: Wanted) -> list[str]:
    """Why an implementation cannot do what is wanted: the reason, its setting, and what to use instead."""
    name = preferred(wanted) if asked == "auto" else asked
    others = " or ".join(able(wanted))
    return [
        f"attention.implementation={name} {reason}; use {instead}attention.implementation={others}"
        for reason, instead in _objections(IMPLEMENTATIONS[name], wanted)
    ]


def _objections(found: Implementation, wanted: Wanted) -> Iterator[tuple[str, str]]:
    """Each reason, and the settings to use instead, if there are any."""
    if wanted.gpu is None and not found.on_cpu:
        yield "runs on NVIDIA GPUs alone, and here is none", ""
    if wanted.head_dim not in found.head_dims:
        step, last = found.head_dims.step, found.head_dims[-1]
        multiples = f" in steps of {step}" if step > 1 else ""
        yield f"takes head dims up to {last}{multiples}, and the model's is {wanted.head_dim}", ""
    if wanted.dtype not in found.dtypes:
        instead = " or ".join(found.dtypes)
        yield f"does not compute in {wanted.dtype} (precision.compute)", f"precision.compute={instead}, or "
    for field, reason in found.cannot.items():
        if getattr(wanted, field):
            yield reason, f"{INSTEAD[field]}, or " if field in INSTEAD else ""


def choose(asked: Name | Literal["auto"], wanted: Wanted) -> Choice:
    """The implementation for a model, and why it is taken.

    Raises:
        ValueError: it cannot do what is wanted, or is not installed.
    """
    if problems := objections(asked, wanted):
        raise ValueError("\n".join(problems))
    if asked == "auto":
        name, because = preferred(wanted), UNTRIED if wanted.gpu else TO_BE_TRIED if wanted.gpu == "" else ""
    else:
        name, because = asked, INTERPRETED if asked == "pallas" and wanted.gpu is None else ""
    return take(name, wanted, because)


def take(name: Name, wanted: Wanted, because: str = "") -> Choice:
    """An implementation that can do what is wanted.

    Raises:
        ValueError: it is not installed.
    """
    found = IMPLEMENTATIONS[name]
    over = "" if wanted.documents else "over whole sequences, whatever documents are in them"
    return Choice(name, "; ".join(filter(None, (found.about, because, over))), found.make(wanted))
