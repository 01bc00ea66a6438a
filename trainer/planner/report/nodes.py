"""The mesh laid onto nodes: where each axis runs, as rows of a table and as a picture of the first nodes.

GPUs stand in the order of the mesh's axes, the last of them innermost, node after node, as `trainer.planner.links` has
them. Knows sizes only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sharding.mesh import AXES
from trainer.picture import Label, Picture, Rect, Shape
from trainer.planner.plan import Link

SHADES = ("#a8d1ff", "#6fb0f8")
"""Of neighbouring groups of the innermost axis; black letters can be read on both."""
MOST_NODES, MOST_ROWS = 4, 8
"""That are drawn: of nodes, and of rows of GPUs in one."""
COLUMNS, NODES_IN_A_ROW = 8, 2
GPU, LINE, GAP, MARGIN, HEADING, LETTER = 46, 14, 4, 14, 26, 8  # pixels


@dataclass(frozen=True)
class Axis:
    """A mesh axis with several devices."""

    name: str
    size: int
    near: int
    """Of its devices, how many are in one node."""
    stride: int
    """GPUs from one of its devices to the next."""

    @property
    def link(self) -> Link:
        return "nvlink" if self.near == self.size else "network"

    def place(self, gpu: int) -> int:
        """Where a GPU stands along it."""
        return gpu // self.stride % self.size


def axes(mesh: Mapping[str, int], gpus_per_node: int) -> list[Axis]:
    """Those along which there are several devices, outermost first."""
    found = []
    for index, name in enumerate(AXES):
        stride = math.prod(mesh[inner] for inner in AXES[index + 1 :])
        near = min(mesh[name], -(-gpus_per_node // stride))
        if mesh[name] > 1:
            found.append(Axis(name, mesh[name], near, stride))
    return found


def picture(mesh: Mapping[str, int], gpus_per_node: int) -> Picture:
    """The first nodes, each GPU with its place along the axes that vary within its node; how many more there are."""
    gpus = math.prod(mesh.values())
    num_nodes = -(-gpus // gpus_per_node)
    nodes = [range(first, min(first + gpus_per_node, gpus)) for first in range(0, gpus, gpus_per_node)]
    drawn = nodes if num_nodes <= MOST_NODES else nodes[: MOST_NODES - 1]
    along = axes(mesh, gpus_per_node)
    inside = [axis for axis in along if axis.near > 1]
    titles = [f"node {number}{_constant(along, node)}" for number, node in enumerate(drawn)]
    last = f"the last: node {num_nodes - 1}{_constant(along, nodes[-1])}"
    size = _Size.of(len(nodes[0]), max(1, len(inside)), max(map(len, [*titles, last])))
    shapes: list[Shape] = []
    for number, (title, node) in enumerate(zip(titles, drawn, strict=True)):
        shapes += _node(title, node, inside, size, *size.corner(number))
    if left_out := num_nodes - len(drawn):
        shapes += _more(left_out, last, size, len(drawn))
    boxes = len(drawn) + bool(left_out)
    columns, rows = min(boxes, NODES_IN_A_ROW), -(-boxes // NODES_IN_A_ROW)
    width, height = columns * (size.width + MARGIN) - MARGIN, rows * (size.height + MARGIN) - MARGIN
    return Picture(f"{gpus:,} GPUs on {num_nodes:,} nodes", width, height, shapes)


@dataclass(frozen=True)
class _Size:
    """Of a node's box, in pixels."""

    width: int
    height: int
    gpu_height: int

    @classmethod
    def of(cls, gpus: int, lines: int, letters: int) -> _Size:
        """For so many GPUs, with so many lines in each, and titles of so many letters at most."""
        gpu_height = LINE * lines + 12
        columns, rows = min(gpus, COLUMNS), -(-gpus // COLUMNS)
        height = HEADING + min(rows, MOST_ROWS) * (gpu_height + GAP) + (LINE + GAP) * (rows > MOST_ROWS) + 8
        return cls(max(columns * (GPU + GAP), LETTER * letters) + 20, height, gpu_height)

    def corner(self, number: int) -> tuple[float, float]:
        """The top left of the box of node `number`."""
        row, column = divmod(number, NODES_IN_A_ROW)
        return column * (self.width + MARGIN), row * (self.height + MARGIN)


def _constant(along: list[Axis], node: range) -> str:
    """What is the same for all of a node's GPUs, such as ': pipeline 3'."""
    ends = ((axis, {axis.place(gpu) for gpu in node}) for axis in along)
    told = [f"{axis.name} {places.pop()}" for axis, places in ends if len(places) == 1]
    return f": {', '.join(told)}" if told else ""


def _node(title: str, node: range, inside: list[Axis], size: _Size, x: float, y: float) -> Iterator[Shape]:
    yield Rect("idle", x, y, size.width, size.height)
    yield Label("ink", x + 10, y + 18, title, bold=True)
    shown = node[: MOST_ROWS * COLUMNS]
    for index, gpu in enumerate(shown):
        row, column = divmod(index, COLUMNS)
        left, top = x + 10 + column * (GPU + GAP), y + HEADING + row * (size.gpu_height + GAP)
        group = gpu // inside[-1].size if inside else gpu
        yield Rect(SHADES[group % 2], left, top, GPU, size.gpu_height)
        for line, text in enumerate([f"{axis.name[0]}{axis.place(gpu)}" for axis in inside] or [f"{gpu}"]):
            yield Label("number", left + GPU / 2, top + 6 + LINE * (line + 0.8), text, centred=True)
    if len(shown) < len(node):
        yield Label("faint", x + 10, y + size.height - 10, f"and {len(node) - len(shown):,} more GPUs")


def _more(left_out: int, last: str, size: _Size, number: int) -> Iterator[Shape]:
    x, y = size.corner(number)
    yield Rect("idle", x, y, size.width, size.height)
    yield Label("ink", x + 10, y + 18, f"and {left_out:,} more nodes", bold=True)
    yield Label("faint", x + 10, y + 18 + 1.4 * LINE, last)
