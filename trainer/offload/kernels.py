"""The update rules as loops over host memory, compiled by numba at their first call and kept for later runs.

Each does to the last bit what XLA's train step does of optax's rule on a CPU. That fixes which product goes unrounded
into its sum (`_fma`; with clipping it may be another one), that Adam divides once, by both corrections, and that
subnormal numbers are zeros. A kernel is serial, and without the GIL; it knows neither configs nor threads.
"""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload

BLOCK = 4096
"""Elements that a kernel updates before it rounds them: 16 KiB of each array, so that they are still in the cache."""

Floats = np.ndarray  # float32 [n]

_compiled = njit(nogil=True, cache=True, error_model="numpy")


@_compiled
def adamw(
    master: Floats,
    moments: tuple[Floats, ...],
    gradient: Floats,
    weights: np.ndarray | None,
    factor: np.float32 | None,
    decay: np.float32,
    rate: np.float32,
    constants: tuple[np.float32, ...],
) -> None:
    """`constants` are b1, 1 - b1, b2, 1 - b2, 1 - b1**t, 1 - b2**t and epsilon; all scalars are float32."""
    b1, rest1, b2, rest2, correction1, correction2, epsilon = constants
    for start in range(0, master.size, BLOCK):
        p, g = master[start : start + BLOCK], gradient[start : start + BLOCK]
        mu, nu = moments[0][start : start + BLOCK], moments[1][start : start + BLOCK]
        for i in range(p.size):
            clipped = g[i] if factor is None else g[i] * factor
            square = clipped * clipped
            mu[i] = _fma(clipped, rest1, mu[i] * b1)
            nu[i] = _fma(square, rest2, nu[i] * b2) if factor is None else _fma(nu[i], b2, square * rest2)
            direction = mu[i] / (correction1 * (np.sqrt(nu[i] / correction2) + epsilon))
            p[i] = _fma(-rate, _fma(p[i], decay, direction), p[i])
        _round_into(weights, start, p)


@_compiled
def lion(
    master: Floats,
    moments: tuple[Floats, ...],
    gradient: Floats,
    weights: np.ndarray | None,
    factor: np.float32 | None,
    decay: np.float32,
    rate: np.float32,
    constants: tuple[np.float32, ...],
) -> None:
    """`constants` are b1, 1 - b1, b2 and 1 - b2."""
    b1, rest1, b2, rest2 = constants
    for start in range(0, master.size, BLOCK):
        p, g = master[start : start + BLOCK], gradient[start : start + BLOCK]
        mu = moments[0][start : start + BLOCK]
        for i in range(p.size):
            clipped = g[i] if factor is None else g[i] * factor
            direction = np.sign(_fma(clipped, rest1, mu[i] * b1))
            mu[i] = _fma(clipped, rest2, mu[i] * b2)
            p[i] = _fma(-rate, _fma(p[i], decay, direction), p[i])
        _round_into(weights, start, p)


@_compiled
def sgd(
    master: Floats,
    moments: tuple[Floats, ...],
    gradient: Floats,
    weights: np.ndarray | None,
    factor: np.float32 | None,
    decay: np.float32,
    rate: np.float32,
    constants: tuple[np.float32, ...],
) -> None:
    """`constants` are the momentum alone."""
    (momentum,) = constants
    for start in range(0, master.size, BLOCK):
        p, g = master[start : start + BLOCK], gradient[start : start + BLOCK]
        trace = moments[0][start : start + BLOCK]
        for i in range(p.size):
            trace[i] = _fma(trace[i], momentum, g[i]) if factor is None else _fma(g[i], factor, trace[i] * momentum)
            p[i] = _fma(-rate, _fma(p[i], decay, trace[i]), p[i])
        _round_into(weights, start, p)


@njit(nogil=True, cache=True)
def flush_subnormals() -> None:
    """From now on this thread takes subnormal numbers for zeros, as XLA's do on a CPU."""
    _flush_subnormals()


@intrinsic
def _flush_subnormals(typing: Any) -> Any:
    """Sets bits of the register that says how this thread computes, which no one resets."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _FLUSH[platform.machine()](builder)
        return context.get_dummy_value()

    return types.none(), build


def _flush_x86(builder: ir.IRBuilder) -> None:
    """Sets the bits `flush to zero` and `denormals are zeros` of MXCSR."""
    register = builder.alloca(ir.IntType(32))
    access = ir.FunctionType(ir.VoidType(), [register.type])
    builder.call(builder.module.declare_intrinsic("llvm.x86.sse.stmxcsr", fnty=access), [register])
    builder.store(builder.or_(builder.load(register), ir.Constant(ir.IntType(32), 0x8040)), register)
    builder.call(builder.module.declare_intrinsic("llvm.x86.sse.ldmxcsr", fnty=access), [register])


def _flush_arm(builder: ir.IRBuilder) -> None:
    """Sets the bit `flush to zero` of FPCR."""
    word, module = ir.IntType(64), builder.module
    get = module.declare_intrinsic("llvm.aarch64.get.fpcr", fnty=ir.FunctionType(word, []))
    put = module.declare_intrinsic("llvm.aarch64.set.fpcr", fnty=ir.FunctionType(ir.VoidType(), [word]))
    builder.call(put, [builder.or_(builder.call(get, []), ir.Constant(word, 1 << 24))])


_FLUSH = {"x86_64": _flush_x86, "aarch64": _flush_arm, "arm64": _flush_arm}


@intrinsic
def _fma(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return types.float32(types.float32, types.float32, types.float32), build


@intrinsic
def _bits(typing: Any, value: Any) -> Any:
    """The bits of a float32."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.uint32(types.float32), build


@intrinsic
def _float16_bits(typing: Any, value: Any) -> Any:
    """The bits of the float16 nearest to a float32."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(builder.fptrunc(arguments[0], ir.HalfType()), ir.IntType(16))

    return types.int16(types.float32), build


@njit
def _bfloat16_bits(value: np.float32) -> np.uint16:
    """The bits of the bfloat16 nearest to a float32, to even between two; a NaN stays one, and loses its payload."""
    bits = _bits(value)
    high = bits >> np.uint32(16)
    nearest = (bits + np.uint32(0x7FFF) + (high & np.uint32(1))) >> np.uint32(16)
    return np.uint16(high & np.uint32(0x8000) | np.uint32(0x7FC0) if value != value else nearest)


_ROUNDED = {
    types.float32: njit(lambda value: value),
    types.uint16: _bfloat16_bits,
    types.int16: njit(lambda value: _float16_bits(value)),
}
"""How `weights` are written: float32, the bits of bfloat16 (unsigned), the bits of float16 (signed)."""


def _round_into(weights, start, master):
    """Writes a block of masters at `start` of the weights, if there are any, in their precision."""


@overload(_round_into)
def _round_into_compiled(weights, start, master):
    if weights is types.none:
        return lambda weights, start, master: None
    rounded = _ROUNDED[weights.dtype]

    def write(weights, start, master):
        block = weights[start : start + master.size]
        for i in range(master.size):
            block[i] = rounded(master[i])

    return write
