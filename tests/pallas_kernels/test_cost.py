"""How many scores are seen, which rooflines and XLA's scheduler are told."""

from __future__ import annotations

from itertools import product

import pytest

from pallas_kernels.flash.cost import seen_scores


@pytest.mark.parametrize(("num_queries", "num_keys"), [(1, 1), (9, 9), (5, 12), (12, 5)])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 1, 4, 100])
def test_scores_are_counted_as_the_masks_have_them(
    num_queries: int, num_keys: int, causal: bool, window: int | None
) -> None:
    seen = [
        (q >= k or not causal) and (window is None or q - k < window)
        for q, k in product(range(num_queries), range(num_keys))
    ]
    assert seen_scores(num_queries, num_keys, causal, window) == sum(seen)


def test_a_million_tokens_are_counted_at_once() -> None:
    """It is counted while a kernel is traced."""
    tokens = 2**20
    assert seen_scores(tokens, tokens, True, None) == tokens * (tokens + 1) // 2
    assert seen_scores(tokens, tokens, True, 4096) == 4096 * tokens - 4096 * 4095 // 2
