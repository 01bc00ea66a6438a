"""What a decoder is made of: one description that GPT-2, BLOOM and Llama are three values of.

Knows nothing of meshes, data or optimizers.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from models.float32 import Float32

_STRICT = ConfigDict(extra="forbid")
MOST_ENTRIES = 2**32
"""Of one matrix: what `sharding.randomness` can number."""


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class RopeScaling:
    """Llama 3's frequency scaling: long wavelengths are stretched by `factor`, short ones kept."""

    factor: Annotated[float, Float32(ge=1)] = 8.0
    """How much long wavelengths are stretched."""
    low_frequency_factor: Annotated[float, Float32()] = 1.0
    """Wavelengths over original_context / this are stretched in full."""
    high_frequency_factor: Annotated[float, Float32()] = 4.0
    """Wavelengths under original_context / this are kept."""
    original_context: int = Field(default=8192, ge=1, le=1_000_000_000)
    """The context that the unscaled frequencies were trained with."""

    def __post_init__(self) -> None:
        low, high = self.low_frequency_factor, self.high_frequency_factor
        if not 0 < low < high:
            raise ValueError(
                f"model.rope_scaling: low_frequency_factor={low} must be above 0 and below "
                f"high_frequency_factor={high}; Llama 3 uses 1 and 4"
            )


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class ModelConfig:
    """A decoder-only transformer. Sizes default to a model that trains in minutes on a laptop."""

    preset: str | None = None
    """A published model ([list](models.md#presets)); keys written beside it override its own."""
    layers: int = Field(default=4, ge=1, le=10_000)
    """Blocks."""
    hidden: int = Field(default=256, ge=1, le=1_000_000)
    """Width of the residual stream."""
    heads: int = Field(default=4, ge=1, le=100_000)
    """Query heads."""
    kv_heads: int | None = Field(default=None, ge=1, le=100_000)
    """Key and value heads (grouped-query attention); as many as `heads` unless given."""
    head_dim: int | None = Field(default=None, ge=1, le=100_000)
    """hidden / heads unless given."""
    ffn: int | None = Field(default=None, ge=1, le=100_000_000)
    """Width of the MLP; 4 x hidden unless given."""
    vocab: int = Field(default=8192, ge=1, le=100_000_000)
    """Rows of the embedding and of the output matrix; every token id is below it."""
    context: int = Field(default=2048, ge=1, le=1_000_000_000)
    """The longest sequence: the size of a learned position table, and the limit of generation."""

    positions: Literal["rope", "alibi", "learned"] = "rope"
    """How tokens know where they are: rotary, ALiBi, or a learned table of `context` rows."""
    rope_theta: Annotated[float, Float32(ge=1)] = 10_000.0
    """Base of the rotary frequencies."""
    rope_scaling: RopeScaling | None = None
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    """Of each branch's input and before the head; computed in float32."""
    norm_epsilon: Annotated[float, Float32(gt=0)] = 1e-5
    """Added to the mean square (the variance)."""
    activation: Literal["swiglu", "gelu"] = "swiglu"
    """swiglu has a gate matrix; gelu is the tanh approximation that GPT-2 and BLOOM use."""
    bias: bool = False
    """Projections have biases."""
    tied: bool = False
    """The output matrix is the token embedding."""
    embedding_norm: bool = False
    """BLOOM normalises the embeddings before the first block."""
    window: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """Sliding-window attention: a query sees this many keys, itself included."""
    soft_cap: Annotated[float | None, Float32(gt=0)] = None
    """Attention logits become cap * tanh(logits / cap)."""
    dropout: Annotated[float, Float32(ge=0, lt=1)] = 0.0
    """After the embedding and at the end of each attention and MLP branch; not on attention weights."""
    init_std: Annotated[float, Float32(gt=0)] = 0.02
    """Of normal initial weights; / √(2 · layers) for the matrices that end a branch."""
    scan_layers: bool = True
    """One compiled block scanned over the layers; false unrolls them: more to compile, and XLA sees across layers."""

    def __post_init__(self) -> None:
        if self.head_dim is None and self.hidden % self.heads:
            raise ValueError(
                f"model.hidden={self.hidden} does not divide into model.heads={self.heads}; "
                f"use {self.hidden - self.hidden % self.heads or self.heads} or "
                f"{self.hidden + self.heads - self.hidden % self.heads}, or give model.head_dim"
            )
        if self.heads % self.num_kv_heads:
            divisors = [n for n in range(1, self.heads + 1) if self.heads % n == 0]
            raise ValueError(
                f"model.kv_heads={self.kv_heads} does not divide model.heads={self.heads}; use one of {divisors}"
            )
        if self.positions == "rope" and self.dim_per_head % 2:
            raise ValueError(f"rotary positions need an even head dim, not {self.dim_per_head}")
        if self.rope_scaling is not None and self.positions != "rope":
            raise ValueError(f"model.rope_scaling means nothing with model.positions={self.positions}; leave it out")
        for sizes, entries in self._matrices.items():
            if entries >= MOST_ENTRIES:
                raise ValueError(
                    f"{sizes}: a matrix of {entries:,} entries, and one can have {MOST_ENTRIES - 1:,} at most: each "
                    "entry's random bits are numbered in 32 bits; make one of the two smaller"
                )

    @property
    def _matrices(self) -> dict[str, int]:
        """The largest of a layer and of the ends, in the user's words, and how many entries each has."""
        attention, hidden = self.heads * self.dim_per_head, self.hidden
        matrices = {
            f"model.vocab={self.vocab} x model.hidden={hidden}": self.vocab * hidden,
            f"model.hidden={hidden} x model.ffn={self.ffn_size}": hidden * self.ffn_size,
            f"model.hidden={hidden} x model.heads={self.heads} x a head dim of {self.dim_per_head}": hidden * attention,
        }
        if self.positions == "learned":
            matrices[f"model.context={self.context} x model.hidden={hidden}"] = self.context * hidden
        return matrices

    @property
    def num_kv_heads(self) -> int:
        return self.kv_heads or self.heads

    @property
    def dim_per_head(self) -> int:
        return self.head_dim or self.hidden // self.heads

    @property
    def ffn_size(self) -> int:
        return self.ffn or 4 * self.hidden
