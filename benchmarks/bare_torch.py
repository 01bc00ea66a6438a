"""The same decoder as a PyTorch loop, eager: what a step costs where no program is compiled.

torch is no dependency of meshwright; without it this is not imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from benchmarks.common import Sizes


class Block(nn.Module):
    """Pre-norm attention with rotary positions, then SwiGLU."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        D, F = sizes.hidden, sizes.ffn
        self.heads = sizes.heads
        self.attention_norm, self.mlp_norm = nn.RMSNorm(D), nn.RMSNorm(D)
        self.query, self.key, self.value, self.out = (nn.Linear(D, D, bias=False) for _ in range(4))
        self.gate, self.up, self.down = nn.Linear(D, F, False), nn.Linear(D, F, False), nn.Linear(F, D, False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.attention_norm(x)
        q, k, v = (
            project(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for project in (self.query, self.key, self.value)
        )
        attended = functional.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        y = self.mlp_norm(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def rotate(x_BHSK: torch.Tensor) -> torch.Tensor:
    half = x_BHSK.shape[-1] // 2
    angle = torch.arange(x_BHSK.shape[2])[:, None] * 10_000.0 ** (-torch.arange(half) / half)
    first, second = x_BHSK.chunk(2, dim=-1)
    return torch.cat([first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()], dim=-1)


class TorchLoop:
    """Calling it trains one step with AdamW, clipped to a norm of 1, and gives the loss."""

    def __init__(self, sizes: Sizes) -> None:
        torch.manual_seed(0)
        self.tokens, self.targets = (torch.from_numpy(x).long() for x in sizes.tokens())
        blocks = [Block(sizes) for _ in range(sizes.layers)]
        head = nn.Linear(sizes.hidden, sizes.vocab, bias=False)
        self.model = nn.Sequential(nn.Embedding(sizes.vocab, sizes.hidden), *blocks, nn.RMSNorm(sizes.hidden), head)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 3e-4, (0.9, 0.95), weight_decay=0.1)

    def __call__(self) -> float:
        logits = self.model(self.tokens)
        loss = functional.cross_entropy(logits.flatten(0, 1), self.targets.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()
