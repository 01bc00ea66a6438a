"""What attention takes of a step's memory with the kernels: q, k, v, the output, its log-sum-exp, and their gradients.

    python -m benchmarks.attention_memory    needs no GPU, and compiles nothing

Llama 3.2 1B, one sequence, `recompute: selective`, read from the traced step: whatever a kernel reads or writes, and
what layers keep for it, beside a formula. Exits with 1 where these differ, or any array of the step is [.., S, S].

Shapes: `S` sequence, `H` heads, `G` key and value heads, `K` head dim, `L` layers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jax.extend.core import Jaxpr

from benchmarks.common import show
from models.config import ModelConfig
from trainer.config import Config
from trainer.description import describe
from trainer.trace import KERNEL, trace_step, used, visits, within

CONFIG = Path(__file__).parents[1] / "configs" / "llama3.2-1b.yaml"
LENGTHS = (8_192, 32_768)
MIB = 2**20

_GIVEN = ("live tiles", "offset", "q", "k", "v", "segments of queries", "segments of keys")
KERNELS = {
    "flash_forward": (*_GIVEN, "o", "lse"),
    "flash_d_queries": (*_GIVEN, "d_o", "lse", "d_lse", "d_q"),
    "flash_d_keys": (*_GIVEN, "d_o", "lse", "d_lse", "d_k", "d_v"),
}
"""What each kernel reads and writes, in its order. `d_lse` is what its gradient goes into: Σ o · d_o - d_lse."""
TABLES = ("live tiles", "offset", "segments of queries", "segments of keys")
KEPT = ("query", "key", "value", "attention", "attention_lse")


def config(length: int) -> Config:
    """One sequence of this length at a time, on one device."""
    overrides = [
        "mesh={data: 1}",
        f"batch={{global: 1, micro: 1, sequence: {length}}}",
        f"model.context={length}",
        "attention.implementation=pallas",
        "recompute=selective",
        "zero.stage=0",
    ]
    return Config.load(CONFIG, overrides)


def kernel_bytes(program: Any) -> tuple[dict[str, int], int]:
    """Bytes of the arrays that the kernels of one layer read or write, by what they are; and of their tables."""
    arrays: dict[str, int] = {}
    tables: dict[tuple[str, str], int] = {}
    for equation in (visit.equation for visit in visits(program, {}) if visit.equation.primitive.name == KERNEL):
        kernel = equation.params["name"]
        for name, variable in zip(KERNELS[kernel], (*equation.invars, *equation.outvars), strict=True):
            aval: Any = variable.aval
            size = aval.size * aval.dtype.itemsize
            if name in TABLES:
                tables[kernel, name] = size
            else:
                assert arrays.setdefault(name, size) == size, f"{name} has two sizes"
    return arrays, sum(tables.values())


def formula(model: ModelConfig, length: int, itemsize: int) -> int:
    """Bytes of q, k, v, o and lse of one layer."""
    heads = 2 * model.heads + 2 * model.num_kv_heads
    return length * (heads * model.dim_per_head * itemsize + 4 * model.heads)


def squares(program: Any, model: ModelConfig, length: int) -> set[tuple[int, ...]]:
    """The shapes of all arrays of a step that are [.., S, S], but for the MLP's, whose width may be S."""
    of_mlp = {(length, model.ffn_size), (model.layers, length, model.ffn_size)}
    shapes = {variable.aval.shape for variable in _variables(used(program)) if hasattr(variable.aval, "shape")}
    return {shape for shape in shapes - of_mlp if shape.count(length) >= 2}


def _variables(program: Jaxpr) -> Iterator[Any]:
    for equation in program.eqns:
        yield from (*equation.invars, *equation.outvars)
        for inner in within(equation):
            yield from _variables(inner)


def main() -> int:
    """Prints the table; how many numbers are not as they should be."""
    rows, wrong = [], 0
    for length in LENGTHS:
        one = config(length)
        program, layers = trace_step(one).program, one.model.layers
        (arrays, tables), expected = kernel_bytes(program), formula(one.model, length, itemsize=2)
        kept = layers * sum(a.bytes for a in describe(one).activations if a.name in KEPT)
        square = squares(program, one.model, length)
        wrong += (sum(arrays.values()) != 2 * expected) + (kept != layers * expected) + len(square)
        sizes = (sum(arrays.values()), 2 * expected, kept, layers * expected)
        rows.append([f"{length:,}", *(f"{size / MIB:,.2f}" for size in sizes), f"{tables / MIB:.2f}", f"{len(square)}"])
    columns = ["kernels of a layer, MiB", "2 x formula", "kept by 16 layers, MiB", "16 x formula", "tables, MiB"]
    title = "Attention, by the formula S · ((2H + 2G) · K · 2 + 4H) bytes: Llama 3.2 1B, bfloat16"
    show(title, ["S", *columns, "S x S arrays"], rows)
    return wrong


if __name__ == "__main__":
    sys.exit(main() > 0)
