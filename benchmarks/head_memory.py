"""Memory of the output matrix, the loss and both their gradients: in chunks of tokens, as ours, and with all logits.

    python -m benchmarks.head_memory    needs what `pip install -e '.[plan]'` adds, and no GPU

16,384 tokens, hidden 4,096 and the 128,256 words of Llama 3, bfloat16, compiled for an H100 that is not there. Exits
with 1 where ours holds an array as large as the logits, or more than a fifth of what all logits take.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.common import show
from sharding import tensor
from sharding.mesh import MeshConfig, make_mesh
from trainer.planner.compiled import absent_gpus
from trainer.planner.gpu import load
from trainer.units import GIB

TOKENS, HIDDEN, VOCAB = 16_384, 4_096, 128_256
CHUNKS = (256, 512, 1_024, 2_048, 4_096, 16_384)
ALLOWED = 1 / 5
ARRAYS = re.compile(r"\b[a-z]+\d+\[([\d,]+)\]")

Loss = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]


def all_logits(x_TD: jax.Array, table_VD: jax.Array, targets_T: jax.Array, weights_T: jax.Array) -> jax.Array:
    """The same loss as one writes it down, its softmax in float32."""
    logits_TV = tensor.logits(x_TD[None], table_VD, VOCAB)[0]
    log_p = jax.nn.log_softmax(logits_TV)
    return -jnp.sum(weights_T * jnp.take_along_axis(log_p, targets_T[:, None], axis=-1)[:, 0])


def compiled(loss: Loss, mesh: Mesh) -> jax.stages.Compiled:
    """The loss and its gradients by activations and table, for one GPU of a mesh."""
    everywhere = PartitionSpec()
    run = jax.shard_map(jax.value_and_grad(loss, (0, 1)), mesh=mesh, in_specs=everywhere, out_specs=everywhere)
    shapes = [
        jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, everywhere))
        for shape, dtype in (
            ((TOKENS, HIDDEN), jnp.bfloat16),
            ((VOCAB, HIDDEN), jnp.bfloat16),
            ((TOKENS,), jnp.int32),
            ((TOKENS,), jnp.float32),
        )
    ]
    with jax.set_mesh(mesh), jax.default_device(mesh.devices.flat[0]):
        return jax.jit(run).lower(*shapes).compile()


def in_chunks(tokens: int, mesh: Mesh) -> jax.stages.Compiled:
    """Ours, with so many tokens at a time."""
    default, tensor.CHUNK_TOKENS = tensor.CHUNK_TOKENS, tokens
    try:
        return compiled(partial(tensor.cross_entropy, vocab=VOCAB), mesh)
    finally:
        tensor.CHUNK_TOKENS = default


def measured(program: jax.stages.Compiled) -> tuple[float, int]:
    """Bytes that XLA sets aside beside arguments and results; elements of the largest array of any instruction."""
    analysis: Any = program.memory_analysis()
    sizes = (math.prod(map(int, shape.split(","))) for shape in ARRAYS.findall(program.as_text() or ""))
    return analysis.temp_size_in_bytes, max(sizes)


def main() -> int:
    """Prints the table; how often ours holds what it should not."""
    jax.config.update("jax_platforms", "cpu")
    mesh = make_mesh(MeshConfig(data=1), absent_gpus(load("h100"), 1))
    programs = {"all logits": lambda: compiled(all_logits, mesh)}
    programs |= {f"{tokens:,}": partial(in_chunks, tokens, mesh) for tokens in CHUNKS}
    found = {name: measured(make()) for name, make in programs.items()}
    rows = [
        [
            name + (" (default)" if name == f"{tensor.CHUNK_TOKENS:,}" else ""),
            f"{size / GIB:.2f}",
            f"{largest / 1e6:,.0f}",
            "yes" if largest >= TOKENS * VOCAB else "no",
        ]
        for name, (size, largest) in found.items()
    ]
    show(
        f"Head and loss: {TOKENS:,} tokens, hidden {HIDDEN:,}, vocabulary {VOCAB:,}, bfloat16",
        ["tokens in a chunk", "temporary GiB", "largest array, M elements", "all logits exist"],
        rows,
    )
    size, largest = found[f"{tensor.CHUNK_TOKENS:,}"]
    return (largest >= TOKENS * VOCAB) + (size > ALLOWED * found["all logits"][0])


if __name__ == "__main__":
    sys.exit(main() > 0)
