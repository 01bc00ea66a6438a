"""FLOPs that a step really executes, counted from its traced program: every matmul by its shapes, as often as it runs.

Recomputation is counted, as it is in the program; causal attention is counted whole, as the matmuls are. What a kernel
of our own does inside is not seen: its runs are counted. For the convention that speeds are printed by, see
`trainer.metrics`. Knows nothing of models or of what a matmul is for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from jax.extend.core import ClosedJaxpr, JaxprEqn

from trainer.trace import KERNEL, visits

WITHOUT_RULE = ("conv_general_dilated", "ragged_dot_general")
"""They multiply matrices too."""


def flops(program: ClosedJaxpr, shares: Mapping[str, Fraction]) -> int:
    """FLOPs of the matmuls in one run of `program` on a device, without those inside of kernels; a multiplication and
    an addition are two.

    What the program computes and never uses is left out, as the compiler does. `shares` are those of the device's
    pipeline stage (`trainer.trace.Trace`).

    Raises:
        NotImplementedError: a matmul that has no rule here, or whose number is known only when the program runs.
    """
    total = Fraction(0)
    for equation, _, times in visits(program, shares):
        name = equation.primitive.name
        if name in WITHOUT_RULE:
            raise NotImplementedError(f"no rule for the FLOPs of {name}")
        if name == "dot_general":
            if times is None:
                raise NotImplementedError("a matmul in a branch or loop: how often is known only when it runs")
            total += times * _matmul(equation)
    assert total.denominator == 1, "part of a matmul: some share is wrong"
    return int(total)


def kernels(program: ClosedJaxpr, shares: Mapping[str, Fraction]) -> Counter[str]:
    """How often one run of `program` runs each Pallas kernel, by the kernel's name.

    Raises:
        NotImplementedError: how often is known only when the program runs.
    """
    runs: Counter[str] = Counter()
    for equation, _, times in visits(program, shares):
        if equation.primitive.name == KERNEL:
            if times is None:
                raise NotImplementedError("a kernel in a branch or loop: how often is known only when it runs")
            assert times.denominator == 1, "part of a kernel: some share is wrong"
            runs[equation.params["name"]] += int(times)
    return runs


def _matmul(equation: JaxprEqn) -> int:
    """FLOPs of one dot_general: two for every product of an entry of each operand."""
    (contracted, _), _ = equation.params["dimension_numbers"]
    left: Any = equation.invars[0].aval
    result: Any = equation.outvars[0].aval
    return 2 * math.prod(result.shape) * math.prod(left.shape[dim] for dim in contracted)
