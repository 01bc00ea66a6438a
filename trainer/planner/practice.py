"""How a trainer does its work whatever the layout: what it keeps, sends, repeats and hides. One value for each trainer.

So estimates have no branches on whose run they are of. Elements are of the compute dtype. Knows nothing of sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from models.recompute import RecomputePolicy

Hidden = Literal["tensor", "stages", "ends", "layers", "to_host"]
"""What may travel beside work: collectives of tensor parallelism; activations between stages; gradients in the last
backward of a step and weights in its first forward; gradients and weights of a layer in that of its neighbours;
activations on their way to the host."""


@dataclass(frozen=True)
class Kept:
    """What a block keeps of a micro-batch for its backward pass, in multiples of its arrays."""

    region: float
    """Of the residual stream, as it is between the matmuls: cut over `tensor` under sequence parallelism."""
    whole: float = 0
    """Of the residual stream with the sequence whole, as it goes into column-parallel matmuls."""
    qkv: float = 0
    """Of queries, keys and values."""
    attention: float = 0
    """Of attention's output."""
    ffn: float = 0
    """Of what each matrix makes that goes into the MLP."""
    score_bytes: float = 0
    """Bytes of each attention score, where they are materialised."""


@dataclass(frozen=True)
class Again:
    """The parts of a block's forward pass that its backward pass repeats."""

    matmul: float = 0
    attention: float = 0
    elementwise: float = 0
    tensor: float = 0
    """Of what it sends over `tensor`."""
    last: bool = True
    """The last matmul, too, and what sums its result over `tensor`: only the next block needs it."""


@dataclass(frozen=True, kw_only=True)
class Practice:
    """The habits of one trainer."""

    sequence_parallel: bool
    """Norms and residuals are cut over `tensor`, with gathers and scatters around; else all-reduces."""
    attention: Literal["flash", "materialised"]
    """Scores stay on the chip and only the causal half is computed, or they are written to memory, all of them."""
    flash_backward: int = 5
    """Matmuls of a flash attention's backward, for two of its forward."""
    score_bytes: float
    """Read and written for each score, where they are materialised, between the two matmuls of a forward."""
    scores_at_work: float = 0
    """Bytes held for each score of the block at work besides what it keeps, where they are materialised."""
    kept: Mapping[RecomputePolicy, Kept]
    on_host: Mapping[RecomputePolicy, Kept] = field(default_factory=dict)
    """Of `kept`, what waits on the host where activations are offloaded."""
    again: Mapping[RecomputePolicy, Again]
    hides: frozenset[Hidden] = frozenset()
    lockstep: bool = False
    """All stages work tick by tick, and hold what the largest needs. Else they are asynchronous, the first holds the
    embedding, and the last the head (a copy, where they are tied)."""
    micro_gradients: bool = False
    """The gradients of one micro-batch lie beside their sum, in the compute dtype."""
    adds: Literal["fused", "added", "cast"] = "added"
    """How gradients get into their sum: by the matmul itself; by an addition; or cast first, where dtypes differ."""
    reduces_whole: bool = False
    """Gradients are all-reduced, although a device needs only its share of them."""
    loss_bytes: float
    """Held for each logit while the loss is at work."""
    loss_chunk: int | None = None
    """Tokens whose logits are there at a time; None: all."""
    bucket: float = 0
    """Elements that are copied into one array to be reduced, and as many to be gathered."""
    allocator: float
    """Memory taken from the device for each byte in use, by fragmentation and what is cached."""


_MEGATRON_NONE = Kept(region=5, qkv=1, attention=1, ffn=2, score_bytes=5)  # s·b·h·(34 + 5·a·s/h) bytes, dropout and all
_TORCH = 1.18  # by BLOOM's sweep, of which the fullest run that there was room for still fits

MEGATRON_2021 = Practice(
    sequence_parallel=False,
    attention="materialised",
    score_bytes=9,  # softmax reads and writes 2, dropout likewise, and 1 for its mask
    kept={
        "none": _MEGATRON_NONE,
        "selective": replace(_MEGATRON_NONE, score_bytes=0),
        "full": Kept(region=1),
    },
    again={
        "none": Again(),
        "selective": Again(attention=1),
        "full": Again(matmul=1, attention=1, elementwise=1, tensor=1),
    },
    loss_bytes=10,
    allocator=_TORCH,
)
"""Megatron-LM as in Narayanan et al. 2021 (arXiv 2104.04473)."""

MEGATRON_2022 = replace(MEGATRON_2021, sequence_parallel=True, adds="fused")
"""Megatron-LM with sequence parallelism and selective recomputation: Korthikanti et al. 2022 (arXiv 2205.05198)."""

MEGATRON_DEEPSPEED = replace(MEGATRON_2021, micro_gradients=True, adds="cast", reduces_whole=True, bucket=5e8)
"""Megatron-DeepSpeed of 2021-22 (BLOOM, MT-NLG): DeepSpeed's pipeline engine and its optimizers for 16 bits."""

MEGATRON_CORE = replace(
    MEGATRON_2022,
    attention="flash",
    hides=frozenset({"tensor", "stages", "ends"}),
)
"""Megatron-Core of 2024 as its own tables were made: all that it can overlap, and the distributed optimizer."""

_NAMED = Kept(region=2, qkv=1, attention=1, ffn=1)

MESHWRIGHT = Practice(
    sequence_parallel=True,
    attention="materialised",
    score_bytes=14,  # float32: the matmul writes 2 more, softmax reads and writes 4, and 4 are read and cast
    scores_at_work=9,  # two float32 arrays and the mask, by XLA's buffers for an H100
    kept={
        "none": Kept(region=2, whole=2, qkv=1, attention=2, ffn=1, score_bytes=4),  # float32, whatever is computed in
        "selective": _NAMED,
        "full": Kept(region=1),
    },
    on_host={"none": replace(_NAMED, score_bytes=4), "selective": _NAMED, "full": Kept(region=1)},
    again={
        "none": Again(),
        "selective": Again(attention=1, elementwise=1, tensor=0.5),
        "full": Again(matmul=1, attention=1, elementwise=1, tensor=1, last=False),
    },
    hides=frozenset({"stages", "layers", "to_host"}),  # all that comes back is waited for before a layer's backward
    lockstep=True,
    micro_gradients=True,
    loss_bytes=10,
    loss_chunk=1024,
    allocator=1.0,
)
"""This trainer. What a block keeps is that of `trainer.saved`, and what it sends again that of `docs/recompute.md`."""

MESHWRIGHT_PALLAS = replace(
    MESHWRIGHT,
    attention="flash",
    flash_backward=7,  # scores are made twice, so that no two programs add to one gradient
    kept={**MESHWRIGHT.kept, "none": replace(MESHWRIGHT.kept["none"], attention=1)},
    again={**MESHWRIGHT.again, "selective": replace(MESHWRIGHT.again["selective"], attention=0)},
)
"""With `attention.implementation: pallas`: the output and its log-sum-exp are kept, and no score."""

MESHWRIGHT_CUDNN = replace(MESHWRIGHT_PALLAS, flash_backward=5)
"""With `attention.implementation: cudnn`, which keeps the same and makes scores once."""

OURS = {
    "reference": MESHWRIGHT,
    "pallas": MESHWRIGHT_PALLAS,
    "cudnn": MESHWRIGHT_CUDNN,
}
"""By what computes attention."""
