"""Which implementation of attention is right and fastest on the GPU that is there, tried on a few heads.

Shapes: `B` = 1 sequence, `S` positions, `H` query heads, `G` key and value heads, `K` head dim.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from models.layers import alibi_slopes
from pallas_kernels import reference
from pallas_kernels.attention import IMPLEMENTATIONS, Attend, Choice, Name, Wanted, able, preferred, take
from trainer.attention import assumed, wanted
from trainer.bench.speed import problem_of, seconds
from trainer.config import Config
from trainer.errors import ConfigError
from trainer.processes.membership import current, is_first, of_first, process_count, process_index
from trainer.run_folder import version

CACHE = Path("~/.cache/meshwright/attention")
"""A file for each GPU, software and shape that was tried."""
MOST_POSITIONS, MOST_HEADS = 2048, 16
"""The largest attention that is tried: enough to keep a GPU busy, with scores of 256 MiB."""
ALLOWED, ALLOWED_TIMES = 2e-3, 3.0
"""An error may be so many times that of the reference in the same dtype, and so much more."""
ROUND = 0.02
"""Seconds of calls whose mean is a measurement, at least."""
_KERNELS = Path(reference.__file__).parent
_DRIVER = Path("/proc/driver/nvidia/version")

Results = list[np.ndarray]
"""The output, and the gradients of queries, keys and values, in float32."""
Time = Callable[[Callable[[], Any]], float]


class Shape(NamedTuple):
    """What is tried of a model's attention."""

    positions: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: str
    documents: bool
    alibi: bool
    soft_cap: float | None
    window: int | None


class Tried(NamedTuple):
    """What was found of one implementation: what is wrong with it, or how long forward and backward take."""

    name: Name
    seconds: float
    problem: str = ""


class Verdict(NamedTuple):
    """What is taken, and why, in a line."""

    name: Name
    why: str


def check_here(
    config: Config,
    devices: Sequence[jax.Device],
    kept: Callable[[], Name | None],
    say: Callable[[str], None],
    cache: Path = CACHE,
) -> Choice | None:
    """What computes attention on these GPUs, where the config leaves it open; None where nothing was tried.

    Process 0 tries, and tells all: they have to run one program.

    Args:
        kept: says what the run was trained with, which stays while it is right; asked in process 0.

    Raises:
        ConfigError: what process 0 has found is not installed here.
    """
    if config.attention.implementation != "auto" or devices[0].platform == "cpu":
        return None
    if current() is None and process_count() > 1:  # joined by somebody else, and could be told nothing
        return None
    asked = wanted(config, devices[0].device_kind)
    told = ""
    if is_first():
        here = next((device for device in devices if device.process_index == process_index()), None)
        told = json.dumps(
            Verdict(preferred(asked), "not tried: process 0 has none of the GPUs")
            if here is None
            else decide(_found(asked, shape_of(config), here, say, cache), kept())
        )
    name, why = json.loads(of_first("attention", told))
    if name != assumed(config):
        say(f"attention: {name} is taken, where plans assume {assumed(config)}: its memory and time are others")
    try:
        return take(name, asked, why)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _found(asked: Wanted, shape: Shape, device: jax.Device, say: Callable[[str], None], cache: Path) -> list[Tried]:
    """What each implementation is like on this GPU, as it was found before or is found now."""
    candidates = {name: _made(partial(IMPLEMENTATIONS[name].make, asked)) for name in able(asked)}
    file = cache / f"{_key(device, shape)}.json"
    if (before := _read(file)) is not None and [one.name for one in before] == list(candidates):
        return before
    say("attention: trying what is right and fastest on this GPU")
    with jax.default_device(device):
        tried = try_all(candidates, shape)
    if not any(one.problem for one in tried if not isinstance(candidates[one.name], Exception)):
        _write(file, tried)  # but for what may be mended at the next start
    return tried


def shape_of(config: Config) -> Shape:
    """As many queries to a key head as the model has, of as few key heads as are worth trying."""
    model = config.model
    kv_heads = model.kv_heads or model.heads
    sharing = model.heads // kv_heads
    groups = min(kv_heads, max(1, MOST_HEADS // sharing))
    positions = min(config.batch.sequence, MOST_POSITIONS)
    return Shape(
        positions=positions,
        heads=groups * sharing,
        kv_heads=groups,
        head_dim=model.dim_per_head,
        dtype=config.precision.compute,
        documents=config.attention.over == "document",
        alibi=model.positions == "alibi",
        soft_cap=model.soft_cap,
        window=model.window and min(model.window, positions // 2 + 1),  # so that it cuts something off
    )


def try_all(
    candidates: Mapping[Name, Attend | Exception], shape: Shape, time: Time = partial(seconds, least=ROUND)
) -> list[Tried]:
    """Each of them on the default device, beside the reference; what raises, or is wrong, says so.

    Args:
        candidates: implementations, or why one could not be made.
        time: seconds of a call.
    """
    try:
        arguments, options = _draw(shape)
        with jax.default_matmul_precision("highest"):
            truth = _results(_compiled(reference.attention, options)(*(x.astype(jnp.float32) for x in arguments)))
        plain = _results(_compiled(reference.attention, options)(*arguments))
    except Exception as error:  # whatever a compiler or a driver raises
        return [Tried(name, 0.0, f"there is nothing to compare it with: {problem_of(error)}") for name in candidates]
    limits = [ALLOWED_TIMES * error + ALLOWED for error in _errors(plain, truth)]
    return [_try(name, attend, options, arguments, truth, limits, time) for name, attend in candidates.items()]


def decide(tried: Sequence[Tried], kept: Name | None) -> Verdict:
    """The fastest that is right; what a run was last trained with, where that is right."""
    right = sorted((one for one in tried if not one.problem), key=lambda one: one.seconds)
    wrong = [f"{one.name} is left out: {one.problem}" for one in tried if one.problem]
    if not right:
        return Verdict("reference", "; ".join(["nothing could be tried", *wrong]))
    taken = next((one for one in right if one.name == kept), right[0])
    times = ", ".join(f"{one.name} {one.seconds * 1e3:.3g} ms" for one in right)
    because = "as the run was last trained" if taken.name == kept else "the fastest that is right on this GPU"
    if kept is not None and taken.name != kept:
        because += f"; the run was last trained with {kept}, and is rounded otherwise from here on"
    return Verdict(taken.name, "; ".join([f"{because} ({times})", *wrong]))


def _try(
    name: Name,
    attend: Attend | Exception,
    options: Mapping[str, Any],
    arguments: Sequence[jax.Array],
    truth: Results,
    limits: Sequence[float],
    time: Time,
) -> Tried:
    if isinstance(attend, Exception):
        return Tried(name, 0.0, problem_of(attend))
    try:
        run = _compiled(attend, options)
        errors = _errors(_results(run(*arguments)), truth)
        if not all(error <= limit for error, limit in zip(errors, limits, strict=True)):  # NaN is wrong too
            return Tried(name, 0.0, f"its numbers are wrong by {max(errors):.2g} of the largest")
        return Tried(name, time(lambda: run(*arguments)))
    except Exception as error:  # whatever a compiler or a driver raises: there are others
        return Tried(name, 0.0, problem_of(error))


def _compiled(attend: Attend, options: Mapping[str, Any]) -> Callable[..., Any]:
    """The output and the gradients, of queries, keys, values and the output's gradient."""

    def run(q: jax.Array, k: jax.Array, v: jax.Array, d_out: jax.Array) -> Any:
        out, pull = jax.vjp(lambda *inputs: attend(*inputs, **options), q, k, v)
        return out, *pull(d_out)

    return jax.jit(run)


def _draw(shape: Shape) -> tuple[tuple[jax.Array, ...], dict[str, Any]]:
    """Queries, keys, values and the output's gradient; and what else attention is given."""
    keys = jax.random.split(jax.random.key(0), 4)
    dims = [(1, shape.positions, heads, shape.head_dim) for heads in (shape.heads, *[shape.kv_heads] * 2, shape.heads)]
    q, k, v, d_out = (jax.random.normal(key, dim, shape.dtype) for key, dim in zip(keys, dims, strict=True))
    options: dict[str, Any] = {"soft_cap": shape.soft_cap, "window": shape.window}
    if shape.documents:  # three of them, none of which ends where a kernel's tile does
        ids = jnp.searchsorted(
            jnp.array([shape.positions // 3, shape.positions // 2 + 1]), jnp.arange(shape.positions), side="right"
        )
        options["segments"] = (ids[None].astype(jnp.int32),) * 2
    if shape.alibi:
        options["alibi_slopes_H"] = jnp.asarray(alibi_slopes(shape.heads))
    return (q, k, v, d_out), options


def _results(arrays: Sequence[jax.Array]) -> Results:
    return [np.asarray(array, np.float32) for array in arrays]


def _errors(found: Results, truth: Results) -> list[float]:
    """The largest of each array, over the array's largest value."""
    return [float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(found, truth, strict=True)]


def _made(make: Callable[[], Attend]) -> Attend | Exception:
    try:
        return make()
    except ValueError as error:
        return error


def _key(device: jax.Device, shape: Shape) -> str:
    """Of all that a verdict depends on."""
    driver = _DRIVER.read_text() if _DRIVER.exists() else ""
    packages = [version(name) for name in ("jax", "jaxlib", "nvidia-cudnn-cu13")]
    kernels = hashlib.sha256(b"".join(file.read_bytes() for file in sorted(_KERNELS.rglob("*.py")))).hexdigest()
    software = *packages, kernels, device.client.platform_version, driver
    return hashlib.sha256(repr((device.device_kind, software, shape)).encode()).hexdigest()[:16]


def _read(file: Path) -> list[Tried] | None:
    with suppress(OSError, RuntimeError, ValueError, TypeError):  # RuntimeError: there is no home
        return [Tried(str(name), float(took), str(problem)) for name, took, problem in json.loads(_text(file))]  # type: ignore[arg-type]
    return None


def _text(file: Path) -> str:
    return file.expanduser().read_text(encoding="utf-8")


def _write(file: Path, tried: Sequence[Tried]) -> None:
    """A disk that takes nothing costs a second at the next start."""
    with suppress(OSError, RuntimeError):
        file = file.expanduser()
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}.tmp")
        part.write_text(json.dumps(tried), encoding="utf-8")
        part.replace(file)
