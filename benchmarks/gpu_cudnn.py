"""cuDNN's attention on the device that is there, against float64: every kind that it takes, and its gradients.

By FlashAttention's own rule, as in `benchmarks.gpu_correctness`: an error may be twice that of plain attention in the
same dtype on the same device, and 1e-5. Whether bits are the same twice is told, and not asked of it. In a dry run the
reference stands in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from benchmarks.gpu_correctness import ALLOWED, plain
from pallas_kernels.attention import Wanted, choose
from tests.pallas_kernels.cases import Case, draw, errors, expected
from tests.pallas_kernels.oracle import Results
from trainer.bench.speed import problem_of
from trainer.tables import make_table, wide_console

LENGTHS = 70, 512, 1000
CASES = [
    Case(queries=length, keys=length, heads=4, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype, window=window)
    for dtype in ("bfloat16", "float16")
    for length, kv_heads, head_dim, window in zip(LENGTHS, (4, 2, 1), (64, 128, 80), (None, None, 100), strict=True)
]


def check(device: jax.Device, dry: bool) -> list[str]:
    """Prints each attention's errors; returns what is wrong, a line each."""
    table = make_table("Errors, in parts of what is allowed", ["attention"], [*Results._fields, "same bits"])
    wrong = []
    for case in CASES[:1] if dry else CASES:
        title = f"{case.dtype}, {case.queries} x {case.heads}/{case.kv_heads} x {case.head_dim}, window {case.window}"
        wanted = Wanted(case.head_dim, case.dtype, None if dry else device.device_kind)
        try:
            with jax.default_device(device):
                parts, same = _parts(choose("reference" if dry else "cudnn", wanted).attend, case)
        except Exception as error:  # whatever a library or a driver raises: the others are tried all the same
            wrong.append(f"{title}: {problem_of(error)}")
            continue
        table.add_row(title, *(f"{part:.2f}" for part in parts.values()), "yes" if same else "no")
        wrong += [f"{title}: {name} is {part:.2f} of what is allowed" for name, part in parts.items() if not part <= 1]
    wide_console().print(table)
    return wrong


def _parts(attend: Callable[..., Any], case: Case) -> tuple[dict[str, float], bool]:
    """Result -> its error in parts of what is allowed; and whether two runs gave the same bits."""
    arrays = draw(case)
    arrays.d_lse[:] = 0  # only the output is differentiated
    wanted = expected(case, arrays)
    inputs = arrays.q, arrays.k, arrays.v, arrays.d_out
    run, run_plain = _with_gradients(attend, case), _with_gradients(_plain, case)
    ours, again, theirs = (_results(one, inputs, wanted.lse) for one in (run, run, run_plain))
    limits = {name: 2 * error + ALLOWED for name, error in errors(theirs, wanted).items()}
    parts = {name: error / limits[name] for name, error in errors(ours, wanted).items()}
    return parts, all(a.tobytes() == b.tobytes() for a, b in zip(ours, again, strict=True))


def _with_gradients(attend: Callable[..., jax.Array], case: Case) -> Callable[..., Sequence[jax.Array]]:
    @jax.jit
    def run(q: jax.Array, k: jax.Array, v: jax.Array, d_out: jax.Array) -> Sequence[jax.Array]:
        out, pull = jax.vjp(partial(attend, window=case.window), q, k, v)
        return out, *pull(d_out)

    return run


def _results(run: Callable[..., Sequence[jax.Array]], inputs: Sequence[np.ndarray], lse: np.ndarray) -> Results:
    """In float64; the log-sum-exp, which cuDNN does not give, is taken as right."""
    out, *gradients = (np.asarray(x, np.float64) for x in run(*inputs))
    return Results(out, lse, *gradients)


def _plain(q: jax.Array, k: jax.Array, v: jax.Array, window: int | None) -> jax.Array:
    nothing: dict[str, Any] = {"segments": None, "alibi_slopes_H": None, "soft_cap": None, "scale": None}
    return plain(q, k, v, causal=True, window=window, query_offset=jax.numpy.int32(0), **nothing)[0]
