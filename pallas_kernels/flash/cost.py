"""What a kernel computes and moves at least: for XLA's scheduler, and for rooflines."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax.experimental import pallas as pl

from pallas_kernels.flash.spec import Arrays, Spec


def seen_scores(num_queries: int, num_keys: int, causal: bool, window: int | None) -> int:
    """How many scores of one head are seen, where the first query stands at the first key."""
    queries = np.arange(num_queries)
    last = np.minimum(queries, num_keys - 1) if causal else np.full(num_queries, num_keys - 1)
    first = 0 if window is None else np.maximum(0, queries - window + 1)
    return int(np.maximum(0, last - first + 1).sum())


def cost(spec: Spec, arrays: Arrays, matmuls: int, moved: int) -> pl.CostEstimate:
    """Of a kernel with so many products of each tile, that reads and writes `moved` bytes.

    As if all were one segment and the first query stood at the first key: both are known only when it runs.
    """
    batch, num_queries, heads, head_dim = arrays.queries.shape
    scores = batch * heads * seen_scores(num_queries, arrays.keys.shape[1], spec.causal, spec.window)
    return pl.CostEstimate(flops=2 * matmuls * scores * head_dim, transcendentals=scores, bytes_accessed=moved)


def size(*arrays: Any) -> int:
    """Bytes of arrays or of their types."""
    return sum(array.size * array.dtype.itemsize for array in arrays)
