"""Elements on one device: the matrices of a block, what flows between them, and what each pipeline stage holds.

Counts only, in elements. Knows layouts as `Arrangement` has them; no GPU, no bytes, no seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from models.config import ModelConfig
from models.presets import linear_shapes
from sharding.tensor import num_kv_heads
from trainer.planner.arrangement import Arrangement

ROW_PARALLEL = ("output", "down")
"""Matrices whose input is cut over `tensor`; of the others the output is."""


@dataclass(frozen=True)
class Block:
    """One block on one device. Widths are elements for each token."""

    hidden: int
    qkv: float
    attention: float
    ffn: float
    """Of what goes into the MLP's activation function: of both its matrices, where it has a gate."""
    num_into_ffn: int
    """Those matrices."""
    heads: float
    """Query heads."""
    matrices: tuple[tuple[float, float], ...]
    """(inputs, outputs) of each."""
    vectors: float
    """Elements of norms and biases."""

    @property
    def elements(self) -> float:
        """Parameters."""
        return sum(inputs * outputs for inputs, outputs in self.matrices) + self.vectors


def block(model: ModelConfig, tensor: int) -> Block:
    """A block on one of `tensor` devices. With fewer KV heads than devices, each has one."""
    head, heads = model.dim_per_head, model.heads / tensor
    kv_heads = num_kv_heads(max(1, model.heads // tensor), model.heads, model.num_kv_heads)
    widths = {"query": heads * head, "key": kv_heads * head, "value": kv_heads * head, "output": heads * head}
    ffn = model.ffn_size / tensor
    matrices = []
    for name, _ in linear_shapes(model).items():
        width = widths.get(name, ffn)
        matrices.append((width, model.hidden) if name in ROW_PARALLEL else (model.hidden, width))
    num_into_ffn = 2 if model.activation == "swiglu" else 1
    qkv = widths["query"] + widths["key"] + widths["value"]
    biases = qkv + num_into_ffn * ffn + 2 * model.hidden if model.bias else 0
    return Block(
        hidden=model.hidden,
        qkv=qkv,
        attention=widths["output"],
        ffn=num_into_ffn * ffn,
        num_into_ffn=num_into_ffn,
        heads=heads,
        matrices=tuple(matrices),
        vectors=2 * norm(model) + biases,
    )


def norm(model: ModelConfig) -> int:
    """Elements of one norm."""
    return model.hidden * (2 if model.norm == "layernorm" else 1)


def vocab(arrangement: Arrangement) -> float:
    """Rows of the embedding, and of the output matrix, on a device that holds any."""
    return arrangement.model.vocab / arrangement.tensor / (arrangement.pipeline if arrangement.spread else 1)


@dataclass(frozen=True)
class Stage:
    """Parameters that one device of a pipeline stage holds."""

    layers: int
    blocks: float
    embedding: float
    """With learned positions, and its norm."""
    head: float
    """Its matrix, or its copy of the embedding where they are tied and apart; and the last norm."""

    @property
    def elements(self) -> float:
        return self.blocks + self.embedding + self.head

    def streamed(self, arrangement: Arrangement) -> float:
        """Those that stay on the host until they are used."""
        return self.blocks if arrangement.streamed else 0.0


def stages(arrangement: Arrangement) -> list[Stage]:
    """What each stage holds. In lockstep all have room for the deepest chunks, and hold embedding and head alike."""
    a, model = arrangement, arrangement.model
    of_block = block(model, a.tensor).elements
    table = vocab(a) * model.hidden
    positions = model.context * model.hidden if model.positions == "learned" else 0
    embedding = table + positions + (norm(model) if model.embedding_norm else 0)
    held = []
    for index in range(a.pipeline):
        first = a.practice.lockstep or index == 0
        last = a.practice.lockstep or index == a.pipeline - 1
        layers = a.chunks * a.depth if a.practice.lockstep else sum(a.layers[index :: a.pipeline])
        untied = last and not (first and model.tied)
        held.append(
            Stage(
                layers=layers,
                blocks=layers * of_block,
                embedding=embedding if first else 0,
                head=(table if untied else 0) + (norm(model) if last else 0),
            )
        )
    return held
