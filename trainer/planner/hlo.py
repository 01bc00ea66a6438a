"""Reads a program as XLA prints it after compiling, scheduled: `jax.stages.Compiled.as_text()`.

A computation's instructions stand in the order in which they are issued. The text alone is read, as every release of
jax has it; a form that is not known here is an error, never passed over. Knows nothing of models, meshes or GPUs.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

BITS = (
    dict.fromkeys(("s4", "u4"), 4)
    | dict.fromkeys(("pred", "s8", "u8", "f8e4m3fn", "f8e5m2"), 8)
    | dict.fromkeys(("s16", "u16", "f16", "bf16"), 16)
    | dict.fromkeys(("s32", "u32", "f32"), 32)
    | dict.fromkeys(("s64", "u64", "f64", "c64"), 64)
    | {"c128": 128, "token": 0}
)
COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute", "reduce-scatter")
# Opcode -> the attributes that name the computations which it runs.
RUNS = {
    "async": ("calls",),
    "call": ("to_apply",),
    "conditional": ("branch_computations", "true_computation", "false_computation"),
    "custom-call": ("called_computations",),
    "fusion": ("calls",),
    "while": ("condition", "body"),
}
# These apply a computation of scalars to their elements.
APPLY = ("all-reduce", "map", "reduce", "reduce-scatter", "reduce-window", "scatter", "select-and-scatter", "sort")
PLAIN = frozenset(
    [
        "abs",
        "add",
        "add-dependency",
        "after-all",
        "and",
        "atan2",
        "bitcast",
        "bitcast-convert",
        "broadcast",
        "cbrt",
        "ceil",
        "cholesky",
        "clamp",
        "clz",
        "compare",
        "complex",
        "concatenate",
        "constant",
        "convert",
        "convolution",
        "copy",
        "cosine",
        "divide",
        "dot",
        "dynamic-reshape",
        "dynamic-slice",
        "dynamic-update-slice",
        "erf",
        "exponential",
        "exponential-minus-one",
        "fft",
        "floor",
        "gather",
        "get-tuple-element",
        "imag",
        "infeed",
        "iota",
        "is-finite",
        "log",
        "log-plus-one",
        "logistic",
        "maximum",
        "minimum",
        "multiply",
        "negate",
        "not",
        "opt-barrier",
        "optimization-barrier",
        "or",
        "outfeed",
        "pad",
        "parameter",
        "partition-id",
        "popcnt",
        "power",
        "real",
        "reduce-precision",
        "remainder",
        "replica-id",
        "reshape",
        "reverse",
        "rng",
        "rng-bit-generator",
        "rng-get-and-update-state",
        "round-nearest-afz",
        "round-nearest-even",
        "rsqrt",
        "select",
        "shift-left",
        "shift-right-arithmetic",
        "shift-right-logical",
        "sign",
        "sine",
        "slice",
        "sqrt",
        "subtract",
        "tan",
        "tanh",
        "topk",
        "transpose",
        "triangular-solve",
        "tuple",
        "xor",
    ]
)
KNOWN = PLAIN.union(COLLECTIVES, RUNS, APPLY)
PHASES = ("start", "update", "done")

_COMMENT = re.compile(r"/\*.*?\*/")
_HEADER = re.compile(r"^(ENTRY )?%([\w.\-]+) \(.*\{$")
_HEAD = re.compile(r"^  (ROOT )?%([\w.\-]+) = ")
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\](?:\{[^}]*\})?")
_OPCODE = re.compile(r" ([a-z0-9\-]+)\(")
_NAME = re.compile(r"%([\w.\-]+)")
_NESTING = re.compile(r'"(?:[^"\\]|\\.)*"|[()\[\]{}]|, ')
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_COPY = re.compile(r"\.remat.*$")
_TABLES = re.compile(r"^(FileNames|FunctionNames|FileLocations|StackFrames|\d+ .*|)$")
_LISTED = re.compile(r"^\{(\{\d+(,\d+)*\},?)*\}$")
_MESH = re.compile(r"^mesh\[((?:'\w+'=\d+,?)+)\] \{((?:'\w+',?)+)\}$")
_IOTA = re.compile(r"^\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?$")


class HloError(ValueError):
    """The text has something in a form that is not known here."""


@dataclass(frozen=True)
class Array:
    dtype: str
    """In XLA's words: f32, bf16, pred."""
    dims: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.dims)

    @property
    def num_bytes(self) -> int:
        return -(-self.elements * BITS[self.dtype] // 8)


@dataclass(frozen=True)
class Instruction:
    name: str
    opcode: str
    """Without -start, -update or -done."""
    phase: str | None
    """One of `PHASES`, of what is begun here and ended by another instruction."""
    results: tuple[Array, ...]
    """Those of a tuple one by one, however nested. A `start` has its operands among them: see `Computation.made`."""
    operands: tuple[str, ...]
    literal: str
    """What stands in the place of operands: the number of a parameter, a constant's value."""
    attributes: Mapping[str, str]
    """As they are written."""
    is_root: bool

    @property
    def op_name(self) -> str:
        """Where jax made it: scopes of functions, loops and branches, joined by /. Empty where XLA lost it."""
        found = _OP_NAME.search(self.attributes.get("metadata", ""))
        return found[1] if found else ""

    @property
    def runs(self) -> tuple[str, ...]:
        """The computations that it runs: a fusion's, a call's, a loop's condition and body, a conditional's branches in
        the order of their indices, of which 0 is taken where a bool is false."""
        names = {key: _names(self.attributes.get(key, "")) for key in RUNS.get(self.opcode, ())}
        if self.opcode == "conditional" and not names["branch_computations"]:
            return names["false_computation"] + names["true_computation"]
        return sum(names.values(), ())

    @property
    def trip_count(self) -> int | None:
        """How often a loop's body runs; None where XLA does not know."""
        count = self.backend_config.get("known_trip_count")
        return int(count["n"]) if count else None

    @property
    def backend_config(self) -> dict[str, Any]:
        return dict(json.loads(self.attributes.get("backend_config", "{}")))

    @property
    def groups(self) -> np.ndarray | None:
        """int [groups, members]: the devices, by their place in the mesh, that a collective is among; None where it is
        among all.

        Raises:
            HloError: the groups are of another kind, or differ in size.
        """
        if self.attributes.get("use_global_device_ids") != "true":
            raise HloError(f"{self.name}: its groups are not of devices")
        text = self.attributes["replica_groups"]
        return None if text == "{}" else _groups(text)

    @property
    def pairs(self) -> np.ndarray:
        """int [pairs, 2]: who sends to whom in a collective-permute."""
        return _listed(self.attributes["source_target_pairs"])

    def integers(self, attribute: str) -> tuple[int, ...]:
        """Of a list such as `lhs_contracting_dims={0,1}`; empty where it is not there."""
        return tuple(_integers(self.attributes.get(attribute, "{}").strip("{}")))


@dataclass(frozen=True)
class Computation:
    name: str
    instructions: tuple[Instruction, ...]
    """In the order in which they are issued."""

    @cached_property
    def by_name(self) -> dict[str, Instruction]:
        return {instruction.name: instruction for instruction in self.instructions}

    @cached_property
    def root(self) -> Instruction:
        return next(instruction for instruction in self.instructions if instruction.is_root)

    @cached_property
    def parameters(self) -> dict[int, Instruction]:
        return {int(found.literal): found for found in self.instructions if found.opcode == "parameter"}

    @cached_property
    def done(self) -> dict[str, Instruction]:
        """The name of a `start` -> the instruction that ends it."""
        ends = {}
        for instruction in self.instructions:
            if instruction.phase == "done":
                begun = self.by_name[instruction.operands[0]]
                while begun.phase == "update":
                    begun = self.by_name[begun.operands[0]]
                ends[begun.name] = instruction
        return ends

    @cached_property
    def repeated(self) -> frozenset[str]:
        """The names of what is run again because keeping it would take too much memory.

        XLA calls a copy as the first, with .remat after it.
        """
        seen: set[str] = set()
        again: set[str] = set()
        for instruction in self.instructions:
            first = _COPY.sub("", instruction.name)
            if first in seen:
                again.add(instruction.name)
            seen.add(first)
        return frozenset(again)

    def taken(self, instruction: Instruction) -> tuple[Array, ...]:
        """The arrays that an instruction is given."""
        return tuple(array for name in instruction.operands for array in self.by_name[name].results)

    def made(self, instruction: Instruction) -> tuple[Array, ...]:
        """The arrays that an instruction makes, those of a `start` when it is done."""
        return self.done[instruction.name].results if instruction.phase == "start" else instruction.results


@dataclass(frozen=True)
class Module:
    """A whole program, of one device."""

    name: str
    computations: Mapping[str, Computation]
    entry: Computation


def read(text: str) -> Module:
    """The program of a text.

    Raises:
        HloError: something in it has a form that is not known here, or it is not scheduled.
    """
    lines = iter(_COMMENT.sub("", text.rstrip()).split("\n"))
    title = next(lines, "")
    if not title.startswith("HloModule ") or "is_scheduled=true" not in title:
        raise HloError(f"no scheduled program: {title[:80]!r}")
    computations, entry = {}, None
    for line in lines:
        if header := _HEADER.match(line):
            computation = Computation(header[2], tuple(_body(lines)))
            computations[computation.name] = computation
            entry = computation if header[1] else entry
        elif not _TABLES.match(line):
            raise HloError(f"neither a computation nor a table: {line[:200]!r}")
    if entry is None:
        raise HloError("a program without a beginning")
    return Module(title.split()[1].rstrip(","), computations, entry)


def _body(lines: Iterator[str]) -> Iterator[Instruction]:
    for line in lines:
        if line.startswith("}"):
            return
        yield _instruction(line)
    raise HloError("a computation without an end")


def _instruction(line: str) -> Instruction:
    head = _HEAD.match(line)
    if not head:
        raise HloError(f"no instruction: {line[:200]!r}")
    shape_end = _close(line, head.end()) if line[head.end()] == "(" else _shape_end(line, head.end())
    opcode = _OPCODE.match(line, shape_end)
    if not opcode:
        raise HloError(f"no opcode after the shape: {line[:200]!r}")
    end = _close(line, opcode.end() - 1)
    name, phase = _phase(opcode[1])
    if name not in KNOWN:
        raise HloError(f"an instruction of an unknown kind, {opcode[1]}: {line[:200]!r}")
    inside = line[opcode.end() : end - 1]
    operands = () if name in ("constant", "parameter") else tuple(_NAME.findall(inside))
    instruction = Instruction(
        name=head[2],
        opcode=name,
        phase=phase,
        results=_arrays(line[head.end() : shape_end]),
        operands=operands,
        literal="" if operands else inside,
        attributes=_attributes(line[end:]),
        is_root=head[1] is not None,
    )
    _check(instruction)
    return instruction


def _check(instruction: Instruction) -> None:
    """Every computation that is named has a meaning here."""
    meant = (*RUNS.get(instruction.opcode, ()), *(("to_apply",) if instruction.opcode in APPLY else ()))
    for key, value in instruction.attributes.items():
        if "%" in value and key not in (*meant, "control-predecessors", "metadata", "backend_config"):
            raise HloError(f"{instruction.name}: {instruction.opcode} with {key}={value[:80]}")


def _phase(opcode: str) -> tuple[str, str | None]:
    name, _, phase = opcode.rpartition("-")
    return (name, phase) if phase in PHASES and name else (opcode, None)


def _arrays(shape: str) -> tuple[Array, ...]:
    """Of a shape, or of a tuple of them."""
    arrays = []
    for dtype, dims in _ARRAY.findall(shape):
        if dtype not in BITS:
            raise HloError(f"elements of an unknown type, {dtype}: {shape[:200]!r}")
        arrays.append(Array(dtype, tuple(_integers(dims))))
    if rest := re.sub(r"[(), ]", "", _ARRAY.sub("", shape)):
        raise HloError(f"an unknown shape, {rest[:80]!r}: {shape[:200]!r}")
    return tuple(arrays)


def _shape_end(line: str, start: int) -> int:
    found = _ARRAY.match(line, start)
    if not found:
        raise HloError(f"an unknown shape: {line[:200]!r}")
    return found.end()


def _close(line: str, start: int) -> int:
    """The place after the bracket that closes the one at `start`."""
    depth = 0
    for found in _NESTING.finditer(line, start):
        depth += (found[0] in "([{") - (found[0] in ")]}")
        if depth == 0:
            return found.end()
    raise HloError(f"a bracket that is not closed: {line[:200]!r}")


def _attributes(text: str) -> dict[str, str]:
    """Of `, a=1, b={2, 3}`."""
    parts, depth, start = [], 0, 0
    for found in _NESTING.finditer(text):
        if found[0] == ", " and depth == 0:
            parts.append(text[start : found.start()])
            start = found.end()
        elif len(found[0]) == 1:
            depth += 1 if found[0] in "([{" else -1
    pairs = [part.partition("=") for part in (*parts, text[start:]) if part]
    if odd := [key for key, equals, _ in pairs if not equals]:
        raise HloError(f"no attributes: {odd[0][:80]!r} in {text[:200]!r}")
    return {key: value for key, _, value in pairs}


def _names(value: str) -> tuple[str, ...]:
    return tuple(_NAME.findall(value))


def _groups(text: str) -> np.ndarray:
    """Of {{0,1},{2,3}}, of [2,2]<=[4], [2,2]<=[2,2]T(1,0), or of mesh['data'=2,'tensor'=2] {'tensor'}."""
    if iota := _IOTA.match(text):
        shape, dims, order = (_integers(part or "") for part in iota.groups())
        return np.arange(math.prod(dims)).reshape(dims).transpose(order or range(len(dims))).reshape(shape)
    if mesh := _MESH.match(text):
        sizes = {axis: int(size) for axis, size in re.findall(r"'(\w+)'=(\d+)", mesh[1])}
        inside = re.findall(r"'(\w+)'", mesh[2])
        order = [*(axis for axis in sizes if axis not in inside), *inside]
        devices = np.arange(math.prod(sizes.values())).reshape([*sizes.values()])
        return devices.transpose([[*sizes].index(axis) for axis in order]).reshape(
            -1, math.prod(sizes[axis] for axis in inside)
        )
    return _listed(text)


def _listed(text: str) -> np.ndarray:
    """Of {{0,1},{2,3}}."""
    if not _LISTED.match(text):
        raise HloError(f"unknown groups of devices: {text[:80]}")
    rows = [_integers(row) for row in re.findall(r"\{([\d,]+)\}", text)]
    if len({len(row) for row in rows}) > 1:
        raise HloError(f"groups that differ in size: {text[:80]}")
    return np.array(rows, int)


def _integers(text: str) -> list[int]:
    return [int(n) for n in text.split(",") if n]
