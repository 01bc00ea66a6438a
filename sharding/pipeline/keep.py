"""What a stage keeps between the forward and the backward of a micro-batch: what came in, or the residuals.

A stage is a function `stage(learned, others, x) -> y`, differentiated by the weights `learned` and the activations `x`;
`others` are the arrays it needs besides. Nothing that follows from `learned` and `others` alone is kept, as both are at
hand in the backward pass: no weight, cast or gathered copy of one ever enters a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.interpreters.partial_eval import dce_jaxpr

Tree = Any
Stage = Callable[[Tree, Tree, jax.Array], jax.Array]


class Keeper(Protocol):
    """How a stage is run forward, and back again from what was kept."""

    def forward(self, learned: Tree, others: Tree, x: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
        """y, and what to keep."""

    def backward(
        self, learned: Tree, others: Tree, kept: Sequence[jax.Array], d_y: jax.Array
    ) -> tuple[Tree, jax.Array]:
        """The gradients of `learned` and of x."""


@dataclass(frozen=True)
class KeepInputs:
    """Keeps x, and runs the whole stage again."""

    stage: Stage

    def forward(self, learned: Tree, others: Tree, x: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
        return self.stage(learned, others, x), [x]

    def backward(
        self, learned: Tree, others: Tree, kept: Sequence[jax.Array], d_y: jax.Array
    ) -> tuple[Tree, jax.Array]:
        _, pullback = jax.vjp(lambda learned, x: self.stage(learned, others, x), learned, kept[0])
        return pullback(d_y)


class KeepResiduals:
    """Keeps what JAX saves for the gradient, as far as it depends on x; the rest is made again.

    JAX's pullback is a tree of arrays. The stage is traced once, on examples, to tell which of them depend on x.
    """

    def __init__(self, stage: Stage, learned: Tree, others: Tree, x: jax.Array) -> None:
        def differentiated(learned: Tree, others: Tree, x: jax.Array) -> tuple[jax.Array, Tree]:
            return jax.vjp(lambda learned, x: stage(learned, others, x), learned, x)

        self.program, (_, pullback) = jax.make_jaxpr(differentiated, return_shape=True)(learned, others, x)
        self.pullback = jax.tree.structure(pullback)
        place_of_x = len(jax.tree.leaves((learned, others)))
        self.keeps = [self._needs(output, place_of_x) for output in range(1, len(self.program.jaxpr.outvars))]
        self.rest, self.inputs_of_rest = self._part([False, *(not keep for keep in self.keeps)])

    def forward(self, learned: Tree, others: Tree, x: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
        y, *residuals = jaxpr_as_fun(self.program)(*jax.tree.leaves((learned, others, x)))
        return y, [residual for residual, keep in zip(residuals, self.keeps, strict=True) if keep]

    def backward(
        self, learned: Tree, others: Tree, kept: Sequence[jax.Array], d_y: jax.Array
    ) -> tuple[Tree, jax.Array]:
        inputs = jax.tree.leaves((learned, others, d_y))  # d_y fills the place of x, which the rest never takes
        rest = iter(
            jaxpr_as_fun(self.rest)(*(x for x, is_used in zip(inputs, self.inputs_of_rest, strict=True) if is_used))
        )
        first = iter(kept)
        return jax.tree.unflatten(self.pullback, [next(first if keep else rest) for keep in self.keeps])(d_y)

    def _needs(self, output: int, place: int) -> bool:
        """Whether an output depends on the input at `place`."""
        _, inputs = self._part([i == output for i in range(len(self.program.jaxpr.outvars))])
        return inputs[place]

    def _part(self, outputs: list[bool]) -> tuple[ClosedJaxpr, list[bool]]:
        """The program of some outputs alone, and which inputs it takes."""
        jaxpr, inputs = dce_jaxpr(self.program.jaxpr, outputs)
        return ClosedJaxpr(jaxpr, self.program.consts), inputs
