"""Which activations of a block are kept for its backward pass, and which are computed again."""

from __future__ import annotations

from typing import Any, Literal

import jax

from models.decoder import Policy
from models.layers import SELECTIVE_NAMES

RecomputePolicy = Literal["none", "selective", "full"]

DERIVING = ("convert_element_type", "broadcast_in_dim", "dynamic_slice")
"""Operations that make a weight's equal in another form: a norm's scale in float32, the KV heads of one device."""


def block_policy(policy: RecomputePolicy, never_saved: str | None) -> Policy | None:
    """The `jax.checkpoint` policy of a block; None where JAX may keep all it wants.

    `never_saved` names values that no policy keeps: weights gathered for one layer.
    """
    policies = jax.checkpoint_policies
    if policy == "full":
        return policies.nothing_saveable
    if policy == "selective":
        return policies.save_only_these_names(*SELECTIVE_NAMES)
    return _all_but(never_saved) if never_saved else None


def _all_but(name: str) -> Policy:
    """Saves all but what is called `name`, and but what a custom gradient calls so on the inside.

    JAX asks for every operation. A name is one of its own: where only its result is refused, the same value before it
    has a name is saved instead. A custom gradient is asked for as a whole.
    """

    def policy(primitive: Any, *_: Any, **params: Any) -> bool:
        if primitive.name in DERIVING:
            return False
        inside = params["call_jaxpr"].eqns if primitive.name == "custom_vjp_call" else ()
        return name not in (params.get("name"), *(equation.params.get("name") for equation in inside))

    return policy
