"""Would tests notice? Breaks the kernels of flash attention, one line at a time, and runs a few cases on each wreck.

    python -m benchmarks.kernel_mutants    prints what each was noticed by; exits with 1 where one was not

A mutant is a copy of the package with one piece of text replaced. It is noticed when a result differs from the oracle
by more than is allowed, or when its table of live tiles makes the kernels visit tiles that hold nothing. A write that
lost its guard is not among them: the interpreter keeps it within bounds. kernel_compile looks for those.
"""

from __future__ import annotations

import importlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.common import show
from tests.pallas_kernels.cases import Case, allowed, draw, errors, expected, run

PACKAGE = Path(__file__).parents[1] / "pallas_kernels"
VISITS = "visits"
SEED = 1
"""With which the two samples of a case have live tiles that the other one has not."""
CASES = {
    # An offset is chosen where a tile's corner is all of it that is seen, or all that is not: blocks are of 32.
    "all": Case(packing="strangers", alibi=True, window=20, soft_cap=2.0, offset=18),
    "corner seen": Case(offset=33),
    "corner not seen": Case(offset=30),
    "bidirectional": Case(causal=False, window=17, alibi=True, offset=-14),
    "large scores": Case(norm=8.0, soft_cap=None),
    "long documents": Case(packing="documents", keys=128, queries=128, offset=0),
    "windowed": Case(window=20, offset=50),
}


@dataclass(frozen=True)
class Mutant:
    file: str
    old: str
    new: str
    by: str = "all"
    """The case that is tried first."""


SCORES, FORWARD, BACKWARD = "flash/scores.py", "flash/forward.py", "flash/backward.py"
LIVE, OPERANDS, ATTENTION = "flash/live_tiles.py", "flash/operands.py", "flash/attention.py"
MUTANTS = [
    # masks
    Mutant(SCORES, "broadcast_to(other.inside[None, :]", "broadcast_to(one.inside[:, None]", "bidirectional"),
    Mutant(SCORES, "seen &= distance >= 0", "seen &= distance > 0", "corner seen"),
    Mutant(SCORES, "seen &= distance >= 0", "seen &= distance >= -1", "corner seen"),
    Mutant(SCORES, "seen &= distance < spec.window", "seen &= distance <= spec.window"),
    Mutant(SCORES, "seen &= distance < spec.window", "seen &= distance < spec.window - 1"),
    Mutant(SCORES, "one.ids[:, None] == other.ids[None, :]", "one.ids[:, None] >= other.ids[None, :]"),
    Mutant(SCORES, "index < array.shape[0]", "index <= array.shape[0]", "bidirectional"),
    Mutant(SCORES, "first_place + index", "index"),
    # scores
    Mutant(SCORES, "trans_b=True) * spec.scale", "trans_b=True)"),
    Mutant(SCORES, "full_like(logits, spec.scale)", "full_like(logits, 1)", "corner seen"),
    Mutant(SCORES, "slope * (1 - bounded * bounded)", "slope"),
    Mutant(SCORES, "slope * (1 - bounded * bounded)", "slope * (1 - bounded)"),
    Mutant(SCORES, "spec.soft_cap * bounded", "bounded"),
    Mutant(SCORES, "logits -= alibi", "logits += alibi"),
    Mutant(SCORES, "jnp.abs(distance.astype(jnp.float32))", "distance.astype(jnp.float32)", "bidirectional"),
    Mutant(SCORES, "distance = sign * (", "distance = ("),
    # the walk along the table
    Mutant(SCORES, "full_end + i - before", "full_end + i", "windowed"),
    Mutant(SCORES, "jnp.where(i < before, first + i,", "jnp.where(i < before, i,", "windowed"),
    Mutant(SCORES, "0, before + end - full_end", "0, end - full_end", "bidirectional"),
    Mutant(SCORES, "fori_loop(full_first, full_end", "fori_loop(full_first + 1, full_end", "corner seen"),
    Mutant(SCORES, "body(False, j, carry), carry)", "body(False, full_first, carry), carry)", "corner seen"),
    # online softmax
    Mutant(FORWARD, "jnp.where(seen, logits, EMPTY)", "logits", "large scores"),
    Mutant(FORWARD, "weights = jnp.where(seen, weights, 0)", "weights = weights"),
    Mutant(FORWARD, "jnp.maximum(done.highest, jnp.max(logits, axis=1))", "jnp.max(logits, axis=1)"),
    Mutant(FORWARD, "jnp.exp(done.highest - highest)", "jnp.ones_like(highest)", "corner seen"),
    Mutant(FORWARD, "done.out * fading[:, None]", "done.out", "corner seen"),
    Mutant(FORWARD, "done.total * fading", "done.total", "corner seen"),
    Mutant(FORWARD, "out / divisor[:, None]", "out", "corner seen"),
    Mutant(FORWARD, "jnp.where(total == 0, 1, total)", "total"),
    Mutant(FORWARD, "highest + jnp.log(divisor)", "highest", "corner seen"),
    # gradients
    Mutant(ATTENTION, "swapaxes(1, 2) - d_lse", "swapaxes(1, 2)", "corner seen"),
    Mutant(ATTENTION, "swapaxes(1, 2) - d_lse", "swapaxes(1, 2) + d_lse", "corner seen"),
    Mutant(ATTENTION, "jnp.sum(products, axis=-1)", "jnp.sum(products[..., 1:], axis=-1)", "corner seen"),
    Mutant(BACKWARD, "(d_weights - delta[:, None]) * tile_scores.slope", "d_weights * tile_scores.slope"),
    Mutant(BACKWARD, "(d_weights - delta[None, :]) * tile_scores.slope", "d_weights * tile_scores.slope"),
    Mutant(BACKWARD, "(d_weights - delta[:, None]) * tile_scores.slope", "(d_weights - delta[:, None])"),
    Mutant(BACKWARD, "(d_weights - delta[None, :]) * tile_scores.slope", "(d_weights - delta[None, :])"),
    Mutant(BACKWARD, "jnp.where(tile_scores.seen, weights, 0)", "weights"),
    Mutant(BACKWARD, "jnp.exp(tile_scores.logits - lse)", "jnp.exp(tile_scores.logits)"),
    # heads, samples and rows
    Mutant(BACKWARD, "fori_loop(0, sharing, of_one_head", "fori_loop(0, 1, of_one_head", "corner seen"),
    Mutant(BACKWARD, "refs.lse.load(head, span)", "refs.lse.load(0 * head, span)", "corner seen"),
    Mutant(BACKWARD, "refs.delta.load(head, span)", "refs.delta.load(0 * head, span)", "corner seen"),
    Mutant(BACKWARD, "refs.slopes.number(head)", "refs.slopes.number(0 * head)"),
    Mutant(OPERANDS, "(b, 0, h // sharing, 0)", "(b, 0, 0, 0)", "corner seen"),
    Mutant(OPERANDS, "(b, 0, h // sharing, 0)", "(b, 0, h % (array_BNHK.shape[2]), 0)", "corner seen"),
    Mutant(OPERANDS, "(b, 0, g, 0)", "(b, 0, 0, 0)", "corner seen"),
    Mutant(OPERANDS, "lambda i, h, b: (b, h, 0)", "lambda i, h, b: (b, 0, 0)", "corner seen"),
    Mutant(OPERANDS, "lambda i, h, b: (h,)", "lambda i, h, b: (0,)"),
    Mutant(OPERANDS, "0 if alike else b", "0", "long documents"),
    Mutant(OPERANDS, "lambda i, h, b: (b, 0))", "lambda i, h, b: (0, 0))"),
    Mutant("triton.py", "dim) < size", "dim) <= size", "corner seen"),
    # live tiles
    Mutant(LIVE, "live & (farthest >= 0)", "live & (farthest > 0)", "corner seen"),
    Mutant(LIVE, "live & (farthest >= 0)", "live & (farthest >= -1)", VISITS),
    Mutant(LIVE, "full & (nearest >= 0)", "full & (nearest >= -1)", "corner not seen"),
    Mutant(LIVE, "full & (nearest >= 0)", "full & (nearest > 0)", VISITS),
    Mutant(LIVE, "nearest < spec.window)", "nearest < spec.window - 1)", "windowed"),
    Mutant(LIVE, "nearest < spec.window)", "nearest <= spec.window)", VISITS),
    Mutant(LIVE, "farthest < spec.window)", "farthest <= spec.window)", "bidirectional"),
    Mutant(LIVE, "farthest < spec.window)", "farthest < spec.window - 1)", VISITS),
    Mutant(LIVE, "low_q[:, :, None] <= high_k[:, None, :]", "low_q[:, :, None] < high_k[:, None, :]"),
    Mutant(LIVE, "low_k[:, None, :] <= high_q[:, :, None]", "low_k[:, None, :] < high_q[:, :, None]"),
    Mutant(LIVE, "(low_q == high_q)[:, :, None] & ", "", "long documents"),
    Mutant(LIVE, " & (low_k == high_k)[:, None, :]", "", "long documents"),
    Mutant(LIVE, "(first_key + tile.keys <= num_keys)", "(first_key < num_keys)", "bidirectional"),
    Mutant(LIVE, "(first_query + tile.queries <= num_queries)", "(first_query < num_queries)", "corner not seen"),
    Mutant(LIVE, "jnp.minimum(first + block, size) - 1", "first + block - 1", VISITS),
    Mutant(LIVE, 'mode="edge"', 'mode="constant"', VISITS),
    Mutant(LIVE, "_runs(live, live & full)", "_runs(live, full)", "long documents"),
    Mutant(LIVE, "place + 1, 0)", "place, 0)", "corner seen"),
    Mutant(LIVE, "jnp.min(jnp.where(live, place, columns), axis=-1)", "jnp.zeros_like(end)", VISITS),
    Mutant(LIVE, "~full & (place >= full_first[..., None])", "~full", "long documents"),
]


def main() -> int:
    """How many mutants nothing noticed."""
    jax.config.update("jax_platforms", "cpu")
    rows, missed = [], 0
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, folder)
        found = list(noticed_by(build(Path(folder), "original", None), VISITS))
        assert not found, f"the kernels themselves are wrong: {found}"
        for number, mutant in enumerate(MUTANTS):
            notice = next(noticed_by(build(Path(folder), f"mutant_{number}", mutant), mutant.by), None)
            missed += notice is None
            rows.append([mutant.file.removeprefix("flash/"), mutant.old, mutant.new, notice or "NOTHING"])
            print(*rows[-1], sep="  |  ", file=sys.stderr, flush=True)
    show("Mutants of flash attention", ["file", "text", "replaced by", "noticed by"], rows)
    print(f"{missed} of {len(MUTANTS)} went unnoticed." if missed else f"All {len(MUTANTS)} were noticed.")
    return missed


def build(folder: Path, name: str, mutant: Mutant | None) -> ModuleType:
    """A package `name` of the kernels, with the mutant's change."""
    shutil.copytree(PACKAGE, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    if mutant is not None:
        path = folder / name / mutant.file
        assert mutant.old in path.read_text(), f"{mutant.file} no longer has {mutant.old}"
        path.write_text(path.read_text().replace(mutant.old, mutant.new))
    for path in (folder / name).rglob("*.py"):
        path.write_text(path.read_text().replace("pallas_kernels", name))
    importlib.invalidate_caches()
    return importlib.import_module(f"{name}.flash")


def noticed_by(package: ModuleType, first: str) -> Iterator[str]:
    """What finds the package wrong, beginning with what is most likely to."""
    for name in sorted((VISITS, *CASES), key=lambda name: name != first):
        if name == VISITS:
            if needless_visits(package):
                yield VISITS
            continue
        case = CASES[name]
        arrays = draw(case, SEED)
        try:
            wanted = expected(case, arrays)
            found, limits = errors(run(case, arrays, package.flash_attention), wanted), allowed(case, arrays, wanted)
        except Exception as error:  # whatever it is, it was noticed
            yield f"{name}: {type(error).__name__}"
            continue
        ratios = {result: found[result] / limits[result] for result in found}
        worst = max(ratios, key=lambda result: ratios[result])
        if ratios[worst] > 1:
            yield f"{name}: {worst} off by {found[worst]:.0e}"


def needless_visits(package: ModuleType) -> bool:
    """Whether kernels would visit tiles that hold nothing, or mask those that are seen whole."""
    live_tiles = importlib.import_module(f"{package.__name__}.live_tiles").live_tiles
    spec_of = importlib.import_module(f"{package.__name__}.spec")
    size, block = 100, 16
    tile = spec_of.Tile(block, block, 4, 2)
    ids = np.repeat([[3, 5, 8]], [32, 48, 20], axis=1).astype(np.int32)
    for causal, window, offset, segments in (
        (True, None, 0, None),
        (True, None, 15, None),
        (True, None, -16, None),
        (False, 32, 0, None),
        (True, None, -4, None),
        (False, 32, -16, None),
        (False, 32, 35, None),
        (True, 17, 32, None),
        (False, None, 0, (ids, ids)),
    ):
        spec = spec_of.Spec(1.0, causal, window, None, None, True)
        table = np.asarray(live_tiles(spec, tile, size, size, jnp.int32(offset), segments))[0]
        some, whole = _tiles(causal, window, offset, ids if segments else None, size, block)
        if (table[:, 3] - table[:, 0]).sum() != some or (table[:, 2] - table[:, 1]).sum() != whole:
            return True
    return False


def _tiles(causal: bool, window: int | None, offset: int, ids: np.ndarray | None, size: int, block: int) -> tuple:
    """How many tiles hold something, and how many are whole; rows beyond the last query are not missed."""
    distance = offset + np.arange(size)[:, None] - np.arange(size)
    seen = (distance >= 0) | (not causal)
    if window is not None:
        seen &= distance < window
    if ids is not None:
        seen &= ids[0][:, None] == ids[0]
    blocks = range(0, size, block)
    tiles = [(seen[i : i + block, j : j + block], j + block <= size) for i in blocks for j in blocks]
    return sum(tile.any() for tile, _ in tiles), sum(tile.all() and inside for tile, inside in tiles)


if __name__ == "__main__":
    sys.exit(main() > 0)
