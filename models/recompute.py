"""Which activations of a block are kept for its backward pass, and which are computed again."""

from __future__ import annotations

from typing import Literal

import jax

from models.decoder import Policy
from models.layers import SELECTIVE_NAMES

RecomputePolicy = Literal["none", "selective", "full"]


def block_policy(policy: RecomputePolicy, never_saved: str | None) -> Policy | None:
    """The `jax.checkpoint` policy of a block; None where JAX may keep all it wants.

    `never_saved` names values that no policy keeps: weights gathered for one layer.
    """
    policies = jax.checkpoint_policies
    if policy == "full":
        return policies.nothing_saveable
    if policy == "selective":
        return policies.save_only_these_names(*SELECTIVE_NAMES)
    return policies.save_anything_except_these_names(never_saved) if never_saved else None
