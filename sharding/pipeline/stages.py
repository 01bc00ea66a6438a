"""Which layers each stage holds, and in which order its stack of them lies at rest. Plain arithmetic.

Virtual stage k of P·V is chunk k // P of stage k % P. In one SPMD program every chunk has the same depth: shorter ones
are padded with layers that do not exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Stages:
    """The split of a model's layers over `num_stages` devices."""

    num_stages: int
    num_layers: tuple[int, ...]
    """Of every virtual stage, in the order of the model."""

    @property
    def num_chunks(self) -> int:
        """Of each stage."""
        return len(self.num_layers) // self.num_stages

    @property
    def depth(self) -> int:
        """Layers that each chunk has room for."""
        return max(self.num_layers)

    @property
    def num_layers_held(self) -> int:
        """Layers that each stage has room for."""
        return self.num_chunks * self.depth

    @property
    def numbers(self) -> np.ndarray:
        """int32 [stages, chunks, depth]: the number of each layer in the model; -1 where there is none."""
        first = np.cumsum([0, *self.num_layers[:-1]])
        place = np.arange(self.depth)
        virtual = np.where(place < np.array(self.num_layers)[:, None], first[:, None] + place, -1)
        stacked = virtual.reshape(self.num_chunks, self.num_stages, self.depth).swapaxes(0, 1)
        return stacked.astype(np.int32)

    @property
    def missing(self) -> bool:
        """Whether some chunk is shorter than its room."""
        return min(self.num_layers) < self.depth

    @property
    def order(self) -> tuple[int, ...]:
        """`sharding.layout.Dim.order` of the stacked layers: none where they lie as they come."""
        numbers = self.numbers.ravel().tolist()
        return () if numbers == list(range(len(numbers))) else tuple(numbers)


def split_layers(layers: int, num_stages: int, num_chunks: int, explicit: Sequence[int] | None) -> Stages:
    """`layers` over num_stages x num_chunks virtual stages: as written, or evenly, the first ones having one more.

    Raises:
        ValueError: some virtual stage would be empty, or `explicit` does not add up.
    """
    virtual = num_stages * num_chunks
    if explicit is None:
        if virtual > layers:
            raise ValueError(
                f"mesh.pipeline={num_stages} x pipeline.virtual_stages={num_chunks} = {virtual} stages are more than "
                f"the {layers} layers of the model (model.layers); use at most {layers} in all"
            )
        fewest, more = divmod(layers, virtual)
        return Stages(num_stages, tuple(fewest + (stage < more) for stage in range(virtual)))
    if len(explicit) != virtual:
        raise ValueError(
            f"pipeline.layers has {len(explicit)} numbers, and there are {virtual} virtual stages: mesh.pipeline="
            f"{num_stages} x pipeline.virtual_stages={num_chunks}; give one number for each"
        )
    if min(explicit) < 1:
        stage = next(stage for stage, number in enumerate(explicit) if number < 1)
        raise ValueError(
            f"pipeline.layers gives {explicit[stage]} layers to virtual stage {stage}; each has 1 at least"
        )
    if sum(explicit) != layers:
        raise ValueError(
            f"pipeline.layers adds up to {sum(explicit)}, and the model has {layers} layers; "
            f"{'take away' if sum(explicit) > layers else 'add'} {abs(sum(explicit) - layers)}"
        )
    return Stages(num_stages, tuple(explicit))
