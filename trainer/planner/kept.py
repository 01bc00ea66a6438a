"""Bytes of what blocks keep of a micro-batch for their backward passes, on the device and on the host.

Closed forms; the multiples are a trainer's (`practice`), the widths a model's (`sizes`).
"""

from __future__ import annotations

from dataclasses import replace

from trainer.planner.arrangement import Arrangement
from trainer.planner.practice import Kept
from trainer.planner.sizes import Block


def bytes_kept(a: Arrangement, block: Block, kept: Kept) -> float:
    """Of one block for one micro-batch."""
    per_token = (
        kept.region * a.region * a.model.hidden
        + kept.whole * a.model.hidden
        + kept.qkv * block.qkv
        + kept.attention * block.attention
        + kept.ffn * block.ffn
    )
    return a.tokens * per_token * a.itemsize + scores(a, block) * kept.score_bytes


def bytes_on_device(a: Arrangement, block: Block) -> float:
    """Of what one block keeps for one micro-batch, those that wait on the device."""
    kept = a.practice.kept[a.recompute]
    if a.offload and a.tensor == 1:  # elementwise work is done again, norms before matmuls too: none is gathered
        kept = replace(kept, whole=0)
    return bytes_kept(a, block, kept) - bytes_on_host(a, block)


def bytes_on_host(a: Arrangement, block: Block) -> float:
    """Of what one block keeps for one micro-batch, those that wait on the host."""
    return bytes_kept(a, block, a.practice.on_host[a.recompute]) if a.offload else 0.0


def scores(a: Arrangement, block: Block) -> float:
    """Elements of a block's attention scores, where they are materialised."""
    return a.tokens * block.heads * a.sequence if a.practice.attention == "materialised" else 0.0
