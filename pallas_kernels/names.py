"""Names of what attention leaves for its backward pass, by which a policy of recomputation keeps it."""

from __future__ import annotations

ATTENTION = "attention"
"""The output."""
WEIGHTS = "attention_weights"
"""The softmax, where scores are in memory."""
LOG_SUM_EXP = "attention_lse"
"""Of each query's logits, where scores are made again from it."""
