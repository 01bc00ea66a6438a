"""What a plan says stays on a GPU from step to step is what a trainer's state really takes of each device."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import jax
import pytest

from tests.trainer.planner.arrangements import tiny
from trainer.planner import plan
from trainer.trainer import Trainer

LAYOUTS = [
    *(("mesh={data: 4, tensor: 2}", f"zero.stage={stage}") for stage in range(4)),
    ("mesh={pipeline: 2, replica: 2, tensor: 2}", "zero.stage=1"),
]
UNEVEN = "model.vocab=317"
"""Rows of padding have to be counted, too."""


@pytest.mark.parametrize("layout", LAYOUTS, ids=" ".join)
def test_masters_and_moments_take_what_is_planned(layout: tuple[str, ...], tmp_path: Path) -> None:
    config = tiny(*layout, UNEVEN, f"run.dir={tmp_path}", "run.compile_cache=null")
    state, planned = Trainer(config).restored_state, plan(config).memory
    assert on_devices(state.parameters) == dict.fromkeys(jax.devices(), planned.master)
    moments = [leaf for leaf in jax.tree.leaves(state.optimizer) if leaf.shape]
    assert on_devices(moments) == dict.fromkeys(jax.devices(), planned.optimizer)
    scalars = [leaf for leaf in jax.tree.leaves(state) if not leaf.shape]
    everything = planned.master + planned.optimizer + sum(leaf.nbytes for leaf in scalars)
    assert on_devices(state) == dict.fromkeys(jax.devices(), everything)


def on_devices(arrays: object) -> dict[jax.Device, int]:
    """Bytes that each device holds of them."""
    held: Counter[jax.Device] = Counter()
    for array in jax.tree.leaves(arrays):
        for shard in array.addressable_shards:
            held[shard.device] += shard.data.nbytes
    return dict(held)
