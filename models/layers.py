"""The pieces of a decoder block: projections, norms, attention, MLP.

Each layer reads the same on one device and under tensor parallelism: local shapes come from the weights at hand, and
the pairs `enter`/`leave` of `sharding.tensor` do nothing on one device. Tokens are flattened before each matmul, which
XLA's CPU backend needs for speed. Activations a recompute policy may keep are named where they are made.

Shapes: `B` batch, `S` sequence (`s` = this device's slice), `T` = B x S tokens, `D` model, `H` heads, `G` key and value
heads, `K` head dim, `F` feed-forward. Head and feed-forward dims are this device's.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from models.config import ModelConfig
from models.inputs import Cache, Inputs
from models.parameter import ONES, ZEROS, Init, parameter
from models.rope import rotate
from pallas_kernels.names import ATTENTION, LOG_SUM_EXP
from sharding import collectives, randomness, tensor

# Activations by the names that `recompute: selective` keeps: the inputs and outputs of matmuls that cost a matmul to
# make again. Recomputed instead: norms, attention's scores and softmax, activation functions, and gathers before
# matmuls.
SELECTIVE_NAMES = ("query", "key", "value", ATTENTION, LOG_SUM_EXP, "attention_residual", "gate", "up")


def recomputed(function: Callable[..., jax.Array], config: ModelConfig) -> Callable[..., jax.Array]:
    """`function`, that keeps nothing but its arguments for backward, whatever the recompute policy.

    For elementwise work, which is cheaper to do again than to write down and read.
    """
    return jax.checkpoint(function, prevent_cse=not config.scan_layers)  # a scan's passes share nothing as they are


class Norm(nnx.Module):
    """RMSNorm (Zhang & Sennrich 2019) or LayerNorm over the last dim, computed in float32."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.scale = parameter((config.hidden,), ("embed",), ONES)
        if config.norm == "layernorm":
            self.bias = parameter((config.hidden,), ("embed",), ZEROS)

    def __call__(self, x: jax.Array) -> jax.Array:
        return recomputed(self._normalise, self.config)(x)

    def _normalise(self, x: jax.Array) -> jax.Array:
        y = x.astype(jnp.float32)
        if self.config.norm == "layernorm":
            y -= jnp.mean(y, axis=-1, keepdims=True)
        y *= jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + self.config.norm_epsilon)
        y *= self.scale[...]
        if self.config.norm == "layernorm":
            y += self.bias[...]
        return y.astype(x.dtype)


class Projection(nnx.Module):
    """x · weight (+ bias): contracts the last `num_in` dims of `x` with the first of the weight."""

    def __init__(self, config: ModelConfig, dims_in: dict[str, int], dims_out: dict[str, int], *, std: float) -> None:
        self.num_in = len(dims_in)
        axes = tuple(dims_in) + tuple(dims_out)
        self.weight = parameter((*dims_in.values(), *dims_out.values()), axes, Init(std=std))
        self.bias = parameter(tuple(dims_out.values()), tuple(dims_out), ZEROS) if config.bias else None

    def matmul(self, x: jax.Array, weight: jax.Array) -> jax.Array:
        """[T, in...] x [in..., out...] -> [T, out...], without the bias."""
        contract = tuple(range(1, 1 + self.num_in)), tuple(range(self.num_in))
        return jax.lax.dot_general(x, weight, (contract, ((), ())))

    def column(self, x_TD: jax.Array) -> jax.Array:
        """Column-parallel: the whole input, this device's outputs."""
        y = self.matmul(x_TD, self.weight[...])
        return y if self.bias is None else y + self.bias[...]

    def row(self, x_TF: jax.Array, batch: int, split: bool) -> jax.Array:
        """Row-parallel, [T, in...] -> [B, s, D]: this device's inputs, summed over devices; then the bias, once."""
        y = self.matmul(x_TF, self.weight[...])
        y = tensor.leave(y.reshape(batch, -1, y.shape[-1]), split)
        return y if self.bias is None else y + self.bias[...]


def flat(x_BSX: jax.Array) -> jax.Array:
    """[B, S, ...] -> [T, ...]. Once for all matmuls of a branch: each reshape would be kept for backward on its own."""
    return x_BSX.reshape(-1, *x_BSX.shape[2:])


class Attention(nnx.Module):
    """Multi-head attention with rotary or ALiBi positions, or none, and grouped key and value heads."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        embed, heads = {"embed": config.hidden}, {"heads": config.heads, "head_dim": config.dim_per_head}
        kv_heads = {"kv_heads": config.num_kv_heads, "head_dim": config.dim_per_head}
        self.query = Projection(config, embed, heads, std=config.init_std)
        self.key = Projection(config, embed, kv_heads, std=config.init_std)
        self.value = Projection(config, embed, kv_heads, std=config.init_std)
        self.out = Projection(config, heads, embed, std=config.init_std / math.sqrt(2 * config.layers))

    def __call__(self, x_BsD: jax.Array, inputs: Inputs, cache: Cache | None) -> tuple[jax.Array, Cache | None]:
        x_TD = flat(tensor.enter(x_BsD, inputs.split))
        q = self.query.column(x_TD)
        k, v = self._kv(x_TD, self.key, q.shape[-2]), self._kv(x_TD, self.value, q.shape[-2])
        q, k, v = (y.reshape(x_BsD.shape[0], -1, *y.shape[1:]) for y in (q, k, v))
        if inputs.rope is not None:
            q, k = rotate(q, inputs.rope), rotate(k, inputs.rope)
        q, k, v = checkpoint_name(q, "query"), checkpoint_name(k, "key"), checkpoint_name(v, "value")
        if cache is not None:
            cache = cache.write(k, v, inputs.offset)
            k, v = cache.keys, cache.values
        out = inputs.attend(
            q,
            k,
            v,
            segments=inputs.segments,
            alibi_slopes_H=self._slopes(q.shape[-2]),
            window=self.config.window,
            soft_cap=self.config.soft_cap,
            query_offset=inputs.offset,
        )
        return self.out.row(flat(out), x_BsD.shape[0], inputs.split), cache

    def _kv(self, x_TD: jax.Array, projection: Projection, query_heads: int) -> jax.Array:
        heads, kv_heads = self.config.heads, self.config.num_kv_heads
        weight = tensor.own_kv_heads(projection.weight[...], query_heads, heads, kv_heads)
        y = projection.matmul(x_TD, weight)
        if projection.bias is None:
            return y
        return y + tensor.own_kv_heads(projection.bias[...], query_heads, heads, kv_heads)

    def _slopes(self, query_heads: int) -> jax.Array | None:
        if self.config.positions != "alibi":
            return None
        first = collectives.axis_index(tensor.AXIS) * query_heads
        return jax.lax.dynamic_slice_in_dim(jnp.asarray(alibi_slopes(self.config.heads)), first, query_heads)


class MLP(nnx.Module):
    """SwiGLU (Shazeer 2020): silu(x · gate) x (x · up) · down; or gelu(x · up) · down."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        embed, ffn = {"embed": config.hidden}, {"ffn": config.ffn_size}
        if config.activation == "swiglu":
            self.gate = Projection(config, embed, ffn, std=config.init_std)
        self.up = Projection(config, embed, ffn, std=config.init_std)
        self.down = Projection(config, ffn, embed, std=config.init_std / math.sqrt(2 * config.layers))

    def __call__(self, x_BsD: jax.Array, split: bool) -> jax.Array:
        x_TD = flat(tensor.enter(x_BsD, split))
        up = checkpoint_name(self.up.column(x_TD), "up")
        gate = checkpoint_name(self.gate.column(x_TD), "gate") if self.config.activation == "swiglu" else None

        def down(up: jax.Array, gate: jax.Array | None) -> jax.Array:
            hidden = jax.nn.gelu(up, approximate=True) if gate is None else jax.nn.silu(gate) * up
            return self.down.row(hidden, x_BsD.shape[0], split)

        return recomputed(down, self.config)(up, gate)


class Block(nnx.Module):
    """Pre-norm: x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: ModelConfig) -> None:
        self.dropout = config.dropout
        self.attention_norm = Norm(config)
        self.attention = Attention(config)
        self.mlp_norm = Norm(config)
        self.mlp = MLP(config)

    def __call__(
        self, x: jax.Array, inputs: Inputs, layer: jax.Array | int, cache: Cache | None = None
    ) -> tuple[jax.Array, Cache | None]:
        """[B, s, D] -> [B, s, D]; `layer` (0-based) keys the dropout."""
        branch, cache = self.attention(self.attention_norm(x), inputs, cache)
        x = x + drop(branch, inputs, self.dropout, 2 * layer + 1)
        x = checkpoint_name(x, "attention_residual")
        return x + drop(self.mlp(self.mlp_norm(x), inputs.split), inputs, self.dropout, 2 * layer + 2), cache


def drop(x_BsD: jax.Array, inputs: Inputs, rate: float, place: jax.Array | int) -> jax.Array:
    """Dropout, keyed by (seed, step, place in the model, global sample, position, feature): the same on every mesh."""
    if inputs.dropout_key is None or inputs.samples is None or rate == 0:
        return x_BsD
    positions = jnp.arange(x_BsD.shape[1])
    if inputs.split:
        positions += collectives.axis_index(tensor.AXIS) * x_BsD.shape[1]
    key = jax.random.fold_in(inputs.dropout_key, place)
    keep = checkpoint_name(randomness.keep_mask(key, inputs.samples, positions, x_BsD.shape[-1], rate), "dropout_mask")
    return jnp.where(keep, x_BsD / (1 - rate), 0).astype(x_BsD.dtype)


def alibi_slopes(heads: int) -> list[float]:
    """Press et al. 2022: a geometric series from 2^(-8/n); heads beyond a power of two take every other of the next."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    between = [2 ** (-4 * (i + 1) / power) for i in range(0, 2 * power, 2)]
    return slopes + between[: heads - power]
