"""Arrays of a checkpoint that are made when they are written. Knows nothing of files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import jax
import numpy as np

Read = Callable[[Collection[str]], dict[str, jax.Array]]
"""Names -> the arrays of a checkpoint, each placed as it was asked for beforehand."""


@dataclass(frozen=True, eq=False)
class Later:
    """An array that is made when it is written, and dropped once it is."""

    abstract: jax.ShapeDtypeStruct
    make: Callable[[], jax.Array]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.abstract.shape

    @property
    def dtype(self) -> np.dtype:
        return self.abstract.dtype


def made(arrays: Mapping[str, jax.Array | Later]) -> dict[str, jax.Array]:
    """The arrays, with those that are made later made now."""
    return {name: array.make() if isinstance(array, Later) else array for name, array in arrays.items()}
