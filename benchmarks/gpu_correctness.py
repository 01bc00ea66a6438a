"""Flash attention on the device that is there, against float64: every option, its gradients, and the same bits twice.

FlashAttention's own rule: an error may be twice that of plain attention in the same dtype on the same device, and 1e-5.
Log-sum-exp is float32 whatever the dtype, and may be off by 1e-5. Errors are the largest of an array over the array's
largest value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.kernel_correctness import programs, variants
from pallas_kernels.flash import flash_attention
from pallas_kernels.flash.attention import SMALL
from pallas_kernels.flash.spec import EMPTY
from pallas_kernels.flash.tiles import tiles_for
from tests.pallas_kernels.cases import QUICK, Arrays, Case, draw, errors, expected
from tests.pallas_kernels.oracle import Results
from trainer.bench.speed import problem_of
from trainer.tables import make_table, wide_console

PROGRAMS, RUNS = 14, 4
LENGTHENED = 5
"""Cases are for the interpreter, which is slow: a GPU's tiles are larger than some of them."""
COMPILERS = 8
ALLOWED = 1e-5


@dataclass(frozen=True)
class Finding:
    """Of one case."""

    case: Case
    parts: dict[str, float]
    """Result -> its error, in parts of what is allowed."""
    same_bits: bool


def check(device: jax.Device, dry: bool) -> list[str]:
    """Prints the worst error of each dtype; returns what is wrong, a line each."""
    rng = np.random.default_rng(29)
    number, runs, longer = (2, 2, 1) if dry else (PROGRAMS, RUNS, LENGTHENED)
    cases = [_lengthened(program, longer) for program in programs(number, rng)]
    if dry:
        cases = [replace(case, head_dim=16) for case in cases]
    with jax.default_device(device), ThreadPoolExecutor(COMPILERS) as pool:
        compiled = list(pool.map(partial(_caught, partial(_compiled, device)), cases))
        found: list[Finding | str] = []
        for case, functions in zip(cases, compiled, strict=True):
            if isinstance(functions, str):
                found.append(f"{case}: {functions}")
                continue
            for seed, variant in enumerate(variants(case, runs, rng)):
                finding = _caught(partial(_finding, functions, seed=seed), variant)
                found.append(f"{variant}: {finding}" if isinstance(finding, str) else finding)
    findings = [one for one in found if isinstance(one, Finding)]
    _show(findings)
    return [one for one in found if isinstance(one, str)] + [line for one in findings for line in _wrong(one)]


def plain(
    q_BSHK: jax.Array,
    k_BTGK: jax.Array,
    v_BTGK: jax.Array,
    *,
    causal: bool,
    segments: tuple[jax.Array, jax.Array] | None,
    alibi_slopes_H: jax.Array | None,
    window: int | None,
    soft_cap: float | None,
    query_offset: jax.Array,
    scale: float | None,
) -> tuple[jax.Array, jax.Array]:
    """What `flash_attention` computes, with logits and weights rounded to the dtype of the queries."""
    dtype, sharing = q_BSHK.dtype, q_BSHK.shape[2] // k_BTGK.shape[2]
    scale = q_BSHK.shape[-1] ** -0.5 if scale is None else scale
    k_BTHK, v_BTHK = (jnp.repeat(x, sharing, axis=2) for x in (k_BTGK, v_BTGK))
    logits = jnp.einsum("bshk,bthk->bhst", q_BSHK * scale, k_BTHK, precision="highest")
    if soft_cap is not None:
        logits = jnp.tanh(logits / soft_cap) * soft_cap
    distance_ST = query_offset + jnp.arange(q_BSHK.shape[1])[:, None] - jnp.arange(k_BTGK.shape[1])
    if alibi_slopes_H is not None:
        logits = logits - (alibi_slopes_H[:, None, None] * jnp.abs(distance_ST)).astype(dtype)
    seen = distance_ST >= 0 if causal else jnp.ones(distance_ST.shape, bool)
    if window is not None:
        seen &= distance_ST < window
    if segments is not None:
        seen = seen & (segments[0][:, None, :, None] == segments[1][:, None, None, :])
    logits = jnp.where(seen, logits.astype(jnp.float32), EMPTY)
    lse_BHS = jax.nn.logsumexp(logits, axis=-1)
    weights = jnp.where(seen, jnp.exp(logits - lse_BHS[..., None]), 0).astype(dtype)
    return jnp.einsum("bhst,bthk->bshk", weights, v_BTHK, precision="highest"), lse_BHS


Compiled = Callable[..., Any]


def _compiled(device: jax.Device, case: Case) -> tuple[Compiled, Compiled]:
    """Ours and the plain one, each with its gradients, for all variants of a case."""
    on_cpu = device.platform == "cpu"
    tiles = SMALL if on_cpu else tiles_for(device.device_kind, case.head_dim, case.dtype)
    arrays = asdict(draw(case))

    def compile(attention: Callable[..., Any]) -> Compiled:
        def with_gradients(q: Any, k: Any, v: Any, d_out: Any, d_lse: Any, **traced: Any) -> Any:
            static = {"causal": case.causal, "window": case.window, "soft_cap": case.soft_cap, "scale": case.scale}
            results, pull = jax.vjp(partial(attention, **static, **traced), q, k, v)
            return *results, *pull((d_out, d_lse))

        with jax.default_device(device):  # which is a thread's own
            options: Any = QUICK if on_cpu else None
            return jax.jit(with_gradients).lower(**arrays).compile(options)

    return compile(partial(flash_attention, tiles=tiles, interpret=on_cpu)), compile(plain)


def _finding(functions: tuple[Compiled, Compiled], case: Case, seed: int) -> Finding:
    arrays = draw(case, seed)
    ours, again, theirs = (_results(function, arrays) for function in (functions[0], *functions))
    wanted = expected(case, arrays)
    limits = {name: 2 * error + ALLOWED for name, error in errors(theirs, wanted).items()} | {"lse": ALLOWED}
    parts = {name: error / limits[name] for name, error in errors(ours, wanted).items()}
    return Finding(case, parts, all(a.tobytes() == b.tobytes() for a, b in zip(ours, again, strict=True)))


def _results(function: Compiled, arrays: Arrays) -> Results:
    """In float64, which holds every bit."""
    return Results(*(np.asarray(x, np.float64) for x in function(**asdict(arrays))))


def _lengthened(case: Case, times: int) -> Case:
    window = case.window and 1 + (case.window - 1) * times
    return replace(case, queries=case.queries * times, keys=case.keys * times, window=window)


def _caught(function: Callable[[Case], Any], case: Case) -> Any:
    """What it gives, or in one line why it does not: the others are tried all the same."""
    try:
        return function(case)
    except Exception as error:
        return problem_of(error)


def _wrong(finding: Finding) -> Iterator[str]:
    beyond = [f"{name} {part:.2f}" for name, part in finding.parts.items() if not part <= 1]
    if beyond:
        yield f"{finding.case}: beyond what is allowed: {', '.join(beyond)}"
    if not finding.same_bits:
        yield f"{finding.case}: not the same bits twice"


def _show(findings: list[Finding]) -> None:
    table = make_table(
        "The worst error, in parts of what is allowed", ["dtype"], ["attentions", *Results._fields, "same bits"]
    )
    for dtype in sorted({finding.case.dtype for finding in findings}):
        found = [finding for finding in findings if finding.case.dtype == dtype]
        worst = (f"{max(finding.parts[name] for finding in found):.2f}" for name in Results._fields)
        same = sum(finding.same_bits for finding in found)
        table.add_row(dtype, str(len(found)), *worst, f"{same} of {len(found)}")
    wide_console().print(table)
