"""The same decoder as a loop by hand: one jitted function of dicts for one device, as one writes it in an afternoon.

What meshwright's step is compared with. Imports nothing of meshwright's.

Shapes: `B` batch, `S` sequence, `D` model, `H` heads, `K` head dim, `V` vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import optax

if TYPE_CHECKING:
    from benchmarks.common import Sizes

Dense = Callable[[jax.Array, jax.Array], jax.Array]


def naive(x: jax.Array, weight: jax.Array) -> jax.Array:
    """[B, S, in] x [in, out], as it comes to mind."""
    return x @ weight


def flattened(x: jax.Array, weight: jax.Array) -> jax.Array:
    """The same with tokens as rows of one matrix: XLA's CPU backend is slow at gradients of the other."""
    return (x.reshape(-1, x.shape[-1]) @ weight).reshape(*x.shape[:-1], -1)


def init(sizes: Sizes) -> dict[str, Any]:
    """Weights by name, those of the blocks stacked over layers."""
    D, F, L = sizes.hidden, sizes.ffn, sizes.layers
    shapes = {
        "query": (D, D),
        "key": (D, D),
        "value": (D, D),
        "out": (D, D),
        "gate": (D, F),
        "up": (D, F),
        "down": (F, D),
    }
    keys = iter(jax.random.split(jax.random.key(0), len(shapes) + 2))
    blocks = {name: 0.02 * jax.random.normal(next(keys), (L, *shape)) for name, shape in shapes.items()}
    blocks |= {"attention_norm": jnp.ones((L, D)), "mlp_norm": jnp.ones((L, D))}
    return {
        "embedding": 0.02 * jax.random.normal(next(keys), (sizes.vocab, D)),
        "head": 0.02 * jax.random.normal(next(keys), (D, sizes.vocab)),
        "norm": jnp.ones(D),
        "blocks": blocks,
    }


def norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5) * scale


def rotate(x_BSHK: jax.Array) -> jax.Array:
    half = x_BSHK.shape[-1] // 2
    angle = jnp.arange(x_BSHK.shape[1])[:, None] * 10_000.0 ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angle)[:, None], jnp.sin(angle)[:, None]
    first, second = jnp.split(x_BSHK, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def block(x: jax.Array, w: dict[str, jax.Array], heads: int, dense: Dense) -> jax.Array:
    batch, sequence, _ = x.shape
    y = norm(x, w["attention_norm"])
    q, k, v = (dense(y, w[name]).reshape(batch, sequence, heads, -1) for name in ("query", "key", "value"))
    scores = jnp.einsum("bshk,bthk->bhst", rotate(q), rotate(k)) * q.shape[-1] ** -0.5
    causal = jnp.tril(jnp.ones((sequence, sequence), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf))
    x = x + dense(jnp.einsum("bhst,bthk->bshk", weights, v).reshape(x.shape), w["out"])
    y = norm(x, w["mlp_norm"])
    return x + dense(jax.nn.silu(dense(y, w["gate"])) * dense(y, w["up"]), w["down"])


def loss(
    params: dict[str, Any], tokens: jax.Array, targets: jax.Array, heads: int, dense: Dense, scan: bool
) -> jax.Array:
    """Mean cross entropy, float32 scalar."""
    x = params["embedding"][tokens]
    if scan:
        x, _ = jax.lax.scan(lambda x, w: (block(x, w, heads, dense), None), x, params["blocks"])
    else:
        for layer in range(params["blocks"]["query"].shape[0]):
            x = block(x, jax.tree.map(lambda w, layer=layer: w[layer], params["blocks"]), heads, dense)
    logits = dense(norm(x, params["norm"]), params["head"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


class BareLoop:
    """Calling it trains one step with AdamW, clipped to a norm of 1, and gives the loss."""

    def __init__(self, sizes: Sizes, dense: Dense, scan: bool) -> None:
        optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-4, b2=0.95, weight_decay=0.1))
        self.batch = [jnp.asarray(x) for x in sizes.tokens()]
        self.params = init(sizes)
        self.state = optimizer.init(self.params)

        @partial(jax.jit, donate_argnums=(0, 1))
        def step(params: Any, state: Any, tokens: jax.Array, targets: jax.Array) -> tuple[Any, Any, jax.Array]:
            value, gradient = jax.value_and_grad(loss)(params, tokens, targets, sizes.heads, dense, scan)
            updates, state = optimizer.update(gradient, state, params)
            return optax.apply_updates(params, updates), state, value

        self.step = step

    def __call__(self) -> jax.Array:
        self.params, self.state, value = self.step(self.params, self.state, *self.batch)
        return value
