"""The optimizer's update in host memory: masters and moments that no device holds, on all cores.

The numbers are those of the train step, to the last bit: optax's rule, decoupled decay and the learning rate as XLA
computes them on a CPU. Knows flat arrays only; what they are views of, and who fills them, is not known here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from types import ModuleType

import numpy as np

from trainer.errors import ConfigError
from trainer.settings import OptimizerConfig

_LINE = 16
"""Elements of a cache line of 64 bytes, which no two threads write to."""

_PART = 2**20
"""Elements that a thread takes at a time, at most: one that the machine holds up leaves the rest to the others."""

_AS_COMPILED = {"float32": np.float32, "bfloat16": np.uint16, "float16": np.int16}
"""The dtype of the new weights -> what the kernels take them for: numba has no bfloat16, and no float16 on a CPU."""


@dataclass(frozen=True)
class Rule:
    """What a kernel, which has the rule's name, is given."""

    moments: tuple[str, ...]
    """As optax's state names them."""
    constants: Callable[[OptimizerConfig, int], tuple[float | np.float32, ...]]
    """(config, number of this update, from 1) -> what the kernel takes as its constants."""


def _correction(decay: float, step: int) -> np.float32:
    """Adam's 1 - decay**step, in float32 throughout."""
    return np.float32(1) - np.float32(decay) ** np.float32(step)


# One for each of `trainer.optimizer.RULES`.
RULES = {
    "adamw": Rule(
        ("mu", "nu"),
        lambda c, step: (
            *(c.beta1, 1 - c.beta1, c.beta2, 1 - c.beta2),
            *(_correction(c.beta1, step), _correction(c.beta2, step)),
            c.epsilon,
        ),
    ),
    "lion": Rule(("mu",), lambda c, step: (c.beta1, 1 - c.beta1, c.beta2, 1 - c.beta2)),
    "sgd": Rule(("trace",), lambda c, step: (c.beta1,)),
}


@dataclass(frozen=True)
class HostUpdate:
    """One optimizer's update of flat arrays in host memory, in place, by `threads` threads of its own.

    Raises ConfigError when numba, which compiles it, is not installed.
    """

    config: OptimizerConfig
    threads: int = os.cpu_count() or 1

    def __post_init__(self) -> None:
        _compiled()

    @property
    def moments(self) -> tuple[str, ...]:
        """The moments in the order in which they are passed, as optax's state names them."""
        return RULES[self.config.name].moments

    def __call__(
        self,
        master: np.ndarray,
        moments: Sequence[np.ndarray],
        gradient: np.ndarray,
        weights: np.ndarray | None,
        *,
        decays: bool,
        count: int,
        rate: np.float32,
        factor: np.float32 | None,
    ) -> None:
        """Moves masters and moments, float32 [n], by a finite gradient, float32 [n]; other threads may run meanwhile.

        The new masters are also written to `weights`, [n] of float32, bfloat16 or float16, rounded to nearest even.
        `decays`: whether these weights decay; `count`: updates before this one; `rate`: the learning rate; `factor`:
        what clipping scales the gradient by, None without clipping. No array may overlap another.
        A gradient with NaN or infinity would spoil the moments for good: the caller skips such a step, as the train
        step does. The first call for a rule and precision on a machine compiles, for a second or two.
        """
        rule = RULES[self.config.name]
        assert len(moments) == len(rule.moments), f"{self.config.name} has the moments {rule.moments}"
        floats = (master, *moments, gradient)
        assert all(x.dtype == np.float32 for x in floats), "masters, moments and gradients are float32"
        arrays = floats if weights is None else (*floats, weights)
        assert all(x.shape == (master.size,) and x.flags.c_contiguous for x in arrays), "flat, and of one size"

        if weights is not None:
            weights = weights.view(_AS_COMPILED[weights.dtype.name])
        kernel = getattr(_compiled(), self.config.name)
        constants = tuple(np.float32(x) for x in rule.constants(self.config, count + 1))
        decay = np.float32(self.config.weight_decay if decays else 0)
        factor = None if factor is None else np.float32(factor)

        parts = iter(_parts(master.size, self.threads))

        def work(_: int) -> None:
            for part in parts:
                out = None if weights is None else weights[part]
                own = tuple(moment[part] for moment in moments)
                kernel(master[part], own, gradient[part], out, factor, decay, np.float32(rate), constants)

        for _ in self._pool.map(work, range(self.threads)):
            pass

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.threads, "host-update", initializer=_compiled().flush_subnormals)


def _parts(size: int, threads: int) -> list[slice]:
    """0 to `size` in parts of nearly the same size, cut between cache lines: as many for each thread."""
    num = threads * max(1, -(-size // (threads * _PART)))
    lines = -(-size // _LINE)
    cuts = [min(lines * part // num * _LINE, size) for part in range(num + 1)]
    return [slice(low, high) for low, high in pairwise(cuts) if low < high]


def _compiled() -> ModuleType:
    """The kernels; importing numba takes half a second, and only what is offloaded needs it."""
    try:
        from trainer.offload import kernels
    except ModuleNotFoundError as error:
        raise ConfigError("an optimizer in host memory needs numba: pip install 'meshwright[offload]'") from error
    return kernels
