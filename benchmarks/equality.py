"""Every layout trains as one device does: each row of the table of layouts against one device.

    python -m benchmarks.equality            the whole table; writes benchmarks/results/equality-DATE.txt
    python -m benchmarks.equality ROW...     the named rows, and writes nothing

Each row trains five steps in float32 on virtual CPU devices. Compared are the loss and the gradient norm of each step,
the gradients of the first, and in the end every weight and every moment. Exits with 1 where one differs by more than
its limit.
"""

from __future__ import annotations

import datetime
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from models.inputs import Batch
from sharding.mesh import make_mesh
from tests.trainer.layouts import AMPLIFY_ROUNDING, ROWS, STEPS, Row, Task, batches
from trainer import logical
from trainer.devices import put_batch
from trainer.program import Program
from trainer.run_folder import describe_environment
from trainer.step import Metrics, TrainState

Arrays = dict[str, np.ndarray]

FIRST_MOMENTS = ("optimizer.trace.", "optimizer.mu.")
"""Of SGD; of AdamW and Lion. After one step it is the gradient, times a constant."""
NO_GRADIENT = "attention.key.bias"
"""Softmax is invariant under what it adds, so its gradient is rounding and nothing else: it is measured against a
thousandth of the largest leaf. All others are measured against their own largest entry."""
QUANTITIES = ("losses", "norms", "gradients", "weights", "moments")
QUICK: dict[str, Any] = {"xla_backend_optimization_level": 0}
"""Compiler options: half the time to compile. The program and its collectives are the same."""
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Difference:
    """How far one quantity is from what it is on one device, at its worst step or leaf."""

    quantity: str
    where: str
    size: float
    limit: float

    @property
    def fits(self) -> bool:
        return self.size <= self.limit  # not so for NaN

    def __str__(self) -> str:
        return f"{self.quantity}: {self.where} differs by {self.size:.1e}, and may by {self.limit:.0e}"


@dataclass(frozen=True)
class Trajectory:
    """What a run leaves behind."""

    states: dict[int, Arrays]
    """After 0, 1 and all steps: logical arrays by name."""
    losses: np.ndarray
    norms: np.ndarray


def differences(row: Row) -> list[Difference]:
    """All that a row is compared by, against the same task on one device from the same initial weights."""
    one = reference(row.task)
    many = train(row, one.states[0])
    of_the_end = _of_the_model if row.task.optimizer in AMPLIFY_ROUNDING else _of_each_leaf
    return [*_of_the_course(one, many), *of_the_end(one.states[STEPS], many.states[STEPS])]


@cache
def reference(task: Task) -> Trajectory:
    """The task on one device: nothing cut, accumulated, recomputed or unrolled."""
    return train(Row(task), None)


def train(row: Row, start: Arrays | None) -> Trajectory:
    """Trains on the first devices that JAX has, from the state `start` or as the config initialises it."""
    program = Program(row.config, make_mesh(row.config.mesh, jax.devices()[: row.num_devices]))
    step = compiled(program)
    state = program.init() if start is None else logical.from_logical(program, jax.tree.map(jnp.array, start))
    states = {0: jax.device_get(logical.to_logical(program, state))}
    history: list[Metrics] = []
    for finished, host in enumerate(batches(row.task.text), 1):
        state, metrics = step(state, on_devices(program, host))
        history.append(metrics)
        if finished in (1, STEPS):
            states[finished] = jax.device_get(logical.to_logical(program, state))
    losses, norms = (np.array([getattr(metrics, name) for metrics in history]) for name in ("loss", "grad_norm"))
    return Trajectory(states, losses, norms)


def compiled(program: Program) -> Callable[[TrainState, Batch], tuple[TrainState, Metrics]]:
    """The train step, sooner than by calling it."""
    step: Any = program.step
    return step.lower(program.abstract_state(), program.abstract_batch()).compile(QUICK)


def on_devices(program: Program, host: Arrays) -> Batch:
    """A global batch from host memory, as the step takes it."""

    def rows(low: int, high: int) -> Arrays:
        return {name: array[low:high] for name, array in host.items()}

    return put_batch(program.mesh, program.batch_specs, program.config.batch.global_, rows)


def _of_the_course(one: Trajectory, many: Trajectory) -> Iterator[Difference]:
    for quantity, limit in (("losses", 1e-5), ("norms", 1e-4)):
        expected, found = getattr(one, quantity), getattr(many, quantity)
        sizes = np.abs(found - expected) / np.abs(expected)
        yield _worst(quantity, ((f"step {step}", size) for step, size in enumerate(sizes, 1)), limit)
    yield _worst("gradients", _leaves(one.states[1], many.states[1], FIRST_MOMENTS), 1e-5)


def _of_each_leaf(one: Arrays, many: Arrays) -> Iterator[Difference]:
    yield _worst("weights", _leaves(one, many, ["parameters."]), 1e-4)
    yield _worst("moments", _leaves(one, many, [*FIRST_MOMENTS, "optimizer.nu."]), 1e-4)


def _of_the_model(one: Arrays, many: Arrays) -> Iterator[Difference]:
    names = [name for name in one if name.startswith("parameters.")]
    apart, whole = (_norm(many[name] - one[name] for name in names), _norm(one[name] for name in names))
    yield _worst("weights", [("the L2 norm of all", apart / whole)], 1e-4)


def _norm(leaves: Iterable[np.ndarray]) -> float:
    return float(np.linalg.norm([np.linalg.norm(leaf) for leaf in leaves]))


def _leaves(one: Arrays, many: Arrays, prefixes: Iterable[str]) -> Iterator[tuple[str, float]]:
    """(name, largest difference) of each leaf, relative to the leaf's largest entry."""
    for prefix in prefixes:
        expected = {name: np.abs(x).max() for name, x in one.items() if name.startswith(prefix)}
        for name, size in expected.items():
            if name.endswith(NO_GRADIENT):
                size = max(size, 1e-3 * max(expected.values()))
            yield name, np.abs(many[name] - one[name]).max() / size


def _worst(quantity: str, found: Iterable[tuple[str, float]], limit: float) -> Difference:
    """NaN is worst of all."""
    where, size = max(found, key=lambda item: np.nan_to_num(item[1], nan=np.inf))
    return Difference(quantity, where, float(size), limit)


def main(names: list[str]) -> int:
    """Prints one line a row; how many rows have a difference that is too large."""
    rows = [row for row in ROWS if str(row) in names or not names]
    unknown = set(names) - {str(row) for row in rows}
    if unknown:
        raise SystemExit(f"no row is called {', '.join(sorted(unknown))}; rows are called such as {ROWS[0]}")
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", max(row.num_devices for row in rows))
    header = _header()  # of the code that runs: it may change meanwhile
    width = max(len(str(row)) for row in rows)
    lines = [f"{'row':<{width}}" + "".join(f"{quantity:>11}" for quantity in QUANTITIES)]
    print(lines[0])
    failed = 0
    for row in rows:
        found = {difference.quantity: difference for difference in differences(row)}
        cells = [f"{found[quantity].size:11.1e}" if quantity in found else f"{'-':>11}" for quantity in QUANTITIES]
        violations = [f"  {difference}" for difference in found.values() if not difference.fits]
        failed += bool(violations)
        lines += [f"{row!s:<{width}}" + "".join(cells), *violations]
        print("\n".join(lines[-1 - len(violations) :]), flush=True)
    lines.append(f"{failed} of {len(rows)} rows differ by more than they may.")
    print(lines[-1])
    if not names:
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"equality-{datetime.date.today()}.txt"
        path.write_text("\n".join(header + lines) + "\n")
        print(f"written to {path}")
    return failed


def _header() -> list[str]:
    """What ran, and where."""
    environment = describe_environment([], None)
    packages = ", ".join(
        f"{name} {environment['packages'][name]}" for name in ("jax", "jaxlib", "flax", "optax", "numpy")
    )
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    return [
        "command:  python -m benchmarks.equality",
        f"date:     {environment['start']}",
        f"commit:   {environment['git_commit']}",
        f"machine:  {machine}, {len(jax.devices())} virtual CPU devices",
        f"versions: python {environment['python']}, {packages}",
        f"measured: {STEPS} steps in float32 against one device, relative to the largest entry on one device, at the",
        "          worst step or leaf. Limits: losses 1e-5, norms 1e-4, gradients (step 1) 1e-5, weights and moments",
        "          1e-4; with AdamW's epsilon 1e-8 and Lion weights as a whole, by the L2 norm, 1e-4.",
        "",
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
