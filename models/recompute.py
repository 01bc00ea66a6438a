"""Which activations of a block are kept for its backward pass and where, and which are computed again."""

from __future__ import annotations

from typing import Any, Literal

import jax
from jax.ad_checkpoint import Offloadable

from models.decoder import BLOCK_INPUT, Policy
from models.layers import SELECTIVE_NAMES
from sharding.streamed import DEVICE, HOST

RecomputePolicy = Literal["none", "selective", "full"]

COSTLY = ("dot_general", "pallas_call", "all_gather", "reduce_scatter", "psum", "psum_invariant")
"""Operations whose results are kept where all that is worth it is: matmuls, kernels and exchanges."""


ON_HOST = Offloadable(src=DEVICE, dst=HOST)
"""What a policy answers for an activation that waits for its backward pass in host memory."""


def block_policy(policy: RecomputePolicy, never_saved: str | None, offload: bool = False) -> Policy | None:
    """The `jax.checkpoint` policy of a block; None where JAX may keep all it wants.

    `never_saved` names values that no policy keeps: weights gathered for one layer. With `offload`, what is kept and
    has a name, the block's input among it, goes to host memory.
    """
    if offload:
        return _named_to_host(policy, never_saved)
    policies = jax.checkpoint_policies
    if policy == "full":
        return policies.nothing_saveable
    if policy == "selective":
        return policies.save_only_these_names(*SELECTIVE_NAMES)
    return _all_but(never_saved) if never_saved else None


def _named_to_host(policy: RecomputePolicy, never_saved: str | None) -> Policy:
    """Keeps what `policy` does; of that, all that has a name in host memory."""
    named = {"full": (BLOCK_INPUT,), "selective": (BLOCK_INPUT, *SELECTIVE_NAMES)}.get(policy)
    unnamed = jax.checkpoint_policies.nothing_saveable if named else _all_but(never_saved)

    def place(primitive: Any, *operands: Any, **params: Any) -> Any:
        if primitive.name != "name":
            return unnamed(primitive, *operands, **params)
        name = params["name"]
        return ON_HOST if (name in named if named else name != never_saved) else False

    return place


def _all_but(name: str | None) -> Policy:
    """Saves what is COSTLY or has a name, but not what is called `name`.

    Elementwise work is done again, as without a policy: one that kept it all would keep the inside of norms and
    activation functions too. JAX asks for every operation, but for a custom gradient as a whole.
    """

    def policy(primitive: Any, *_: Any, **params: Any) -> bool:
        if primitive.name == "name":
            return params["name"] != name
        if primitive.name == "custom_vjp_call":
            return all(equation.params.get("name") != name for equation in params["call_jaxpr"].eqns)
        return primitive.name in COSTLY

    return policy
