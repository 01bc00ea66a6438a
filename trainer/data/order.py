"""The order of samples: a pure function of (seed, position), with no state and no table.

So a resumed, re-meshed or extended run sees the same samples, and a trillion samples cost no memory. Each
epoch is a permutation of all items by a keyed Feistel network on the next power of four, walked until it
lands inside (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). Knows nothing of what the
items are.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

_ROUNDS = 8
_BLOCK = 4096
"""Positions that are shuffled together."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def shuffled(seed: int, position: np.ndarray, num_items: int) -> np.ndarray:
    """The item at each position of an endless stream: epoch after epoch, each a new order of all items.

    Args:
      seed: any integer; its low 64 bits count.
      position: int64 [...], from 0 on; position // num_items is the epoch.
      num_items: below 2**62.

    Returns:
      int64 [...], each in [0, num_items).
    """
    position = np.atleast_1d(np.asarray(position, dtype=np.int64))
    epoch, index = np.divmod(position, num_items)
    keys = _round_keys(seed, epoch.astype(np.uint64))
    half_bits = np.uint64(max(1, ((num_items - 1).bit_length() + 1) // 2))
    item = _permute(index.astype(np.uint64), keys, half_bits)
    while (outside := item >= num_items).any():
        item[outside] = _permute(item[outside], keys[:, outside], half_bits)
    return item.astype(np.int64)


def in_order(seed: int, first: int, last: int, num_items: int) -> np.ndarray:
    """`shuffled` at the positions first up to last, [last - first]: a step's samples follow each other.

    They are made by the block, and the last blocks kept: a few cost hardly less than some thousand.
    """
    blocks = range(first // _BLOCK, -(-last // _BLOCK))
    items = np.concatenate([np.zeros(0, np.int64), *(_block(seed, block, num_items) for block in blocks)])
    skipped = blocks.start * _BLOCK
    return items[first - skipped : last - skipped]


@lru_cache(maxsize=4)
def _block(seed: int, block: int, num_items: int) -> np.ndarray:
    return shuffled(seed, block * _BLOCK + np.arange(_BLOCK, dtype=np.int64), num_items)


def _permute(value: np.ndarray, keys: np.ndarray, half_bits: np.uint64) -> np.ndarray:
    """One pass of the network over values of 2 x half_bits bits: a bijection for any keys [rounds, ...]."""
    mask = (np.uint64(1) << half_bits) - np.uint64(1)
    left, right = value >> half_bits, value & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << half_bits) | right


def _round_keys(seed: int, epoch: np.ndarray) -> np.ndarray:
    """uint64 [rounds, ...]: independent for every seed, epoch and round."""
    seeded = _mix(np.array([seed & 0xFFFF_FFFF_FFFF_FFFF], dtype=np.uint64))
    rounds = np.arange(1, _ROUNDS + 1, dtype=np.uint64).reshape(-1, *[1] * epoch.ndim)
    return _mix(_mix(seeded ^ _mix(epoch)) + rounds * _GOLDEN)


def _mix(value: np.ndarray) -> np.ndarray:
    """splitmix64's step and finaliser (Steele, Lea and Flood, 2014), uint64 that wraps."""
    value = value + _GOLDEN
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
