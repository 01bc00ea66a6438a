"""What a pipeline's step is made of: its loops over ticks in the traced program, and what XLA made of them.

A ring is what stages keep between forward and backward: arrays with an entry for each slot, that go from tick to tick.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from jax.extend.core import ClosedJaxpr, JaxprEqn

from trainer.trace import scan_carry, visits

MOVES = ("copy", "transpose")
UNITS = ("conditional", "while")
TRAVELLERS = "activation", "cotangent"
PHASES = {("activation",): "warm-up", TRAVELLERS: "steady", ("cotangent",): "drain"}
"""By what travels in its loop."""
_INSTRUCTION = re.compile(r"%([\w.-]+) = (.*?) ([a-z][a-z0-9-]*)\(")
_PAIRS = re.compile(r" collective-permute-start\(.*source_target_pairs=\{(\{.*?\})\}")


class Transit(NamedTuple):
    """A collective-permute, and what XLA schedules between its start and its end."""

    phase: str
    what: str
    """One of TRAVELLERS, by its direction."""
    units: int
    """Forwards and backwards of embedding, stages and head: branches and loops."""
    fusions: int


def tick_loops(step: ClosedJaxpr) -> list[JaxprEqn]:
    """The scan of each phase: those that send from stage to stage in what they repeat."""
    loops = (equation for equation, _, _ in visits(step, {}) if equation.primitive.name == "scan")
    return [loop for loop in loops if any(e.primitive.name == "ppermute" for e in loop.params["jaxpr"].jaxpr.eqns)]


def ring(step: ClosedJaxpr, slots: int) -> list[Any]:
    """Type of each array of the ring, [slots, ...]; with gpipe also the inbox of cotangents, which has as many."""
    loop = tick_loops(step)[0]
    _, carried = scan_carry(loop)
    carry: list[Any] = [variable.aval for variable in loop.outvars[:carried]]
    return [array for array in carry if array.ndim > 1 and array.shape[0] == slots]


def moved_each_tick(text: str, ring: list[Any]) -> int:
    """Instructions of a compiled program that move a whole array of the ring, in a loop."""
    sizes = {math.prod(array.shape) for array in ring}
    computations = _computations(text)
    loops = set(re.findall(r" body=%([\w.-]+)", text))
    return sum(
        match[3] in MOVES and _elements(match[2]) in sizes
        for name in loops
        for line in _with_fusions(name, computations)
        if (match := _INSTRUCTION.search(line))
    )


def transits(text: str) -> list[Transit]:
    """Of every collective-permute in the loops of a compiled program."""
    found = []
    for lines in _computations(text).values():
        here = list(_transits(lines))
        phase = PHASES.get(tuple(sorted(what for what, _ in here)), "")
        found += [Transit(phase, what, sum(kinds[kind] for kind in UNITS), kinds["fusion"]) for what, kinds in here]
    return found


def _transits(lines: list[str]) -> Iterator[tuple[str, Counter[str]]]:
    """What travels in a computation, and the kinds of instructions meanwhile."""
    instructions = [_INSTRUCTION.search(line) for line in lines]
    for start, line in enumerate(lines):
        if (pairs := _PAIRS.search(line)) and (this := instructions[start]):
            end = next(i for i, later in enumerate(lines) if f"-done(%{this[1]})" in later)
            kinds = Counter(other[3] for other in instructions[start + 1 : end] if other)
            forward = [int(a) < int(b) for a, b in re.findall(r"\{(\d+),(\d+)\}", pairs[1])]
            yield TRAVELLERS[2 * sum(forward) < len(forward)], kinds  # the last stage may send around, to the first


def _computations(text: str) -> dict[str, list[str]]:
    """Name -> instructions, as they are scheduled."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if head := re.match(r"(?:ENTRY )?%([\w.-]+) \(", line):
            instructions = found.setdefault(head[1], [])
        elif line.startswith(" "):
            instructions.append(line)
    return found


def _with_fusions(name: str, computations: dict[str, list[str]]) -> Iterator[str]:
    for line in computations[name]:
        yield line
        for called in re.findall(r" calls=%([\w.-]+)", line):
            yield from _with_fusions(called, computations)


def _elements(kind: str) -> int:
    """Of an array, by its type such as bf16[7,2]{1,0}."""
    dims = re.match(r"\w+\[([\d,]*)\]", kind)
    return math.prod(map(int, filter(None, dims[1].split(",")))) if dims else 0
