"""The roofline of a step: FLOPs for each byte that is moved, and FLOP/s, of what a GPU does in a layer and an update.

FLOPs and seconds are those of `trainer.planner.cost`, of one layer's forward and backward for one micro-batch, nothing
repeated; bytes are what those seconds were made of. The picture is that of Williams, Waterman and Patterson 2009.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from trainer.picture import Area, Label, Picture, Rect, Shape
from trainer.planner.arrangement import Arrangement
from trainer.planner.cost import KERNELS_BACKWARD, KERNELS_FORWARD, SCORE_BACKWARD
from trainer.planner.gpu import Gpu
from trainer.planner.links import Cluster
from trainer.planner.report.colours import SECONDS
from trainer.planner.seconds import Step

WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 24, 24, 50
POINT, LINE, NAME = 12, 2.5, 110  # pixels


@dataclass(frozen=True)
class Roof:
    """What is possible, in FLOP/s and bytes/s."""

    flops: float
    bandwidth: float

    def at(self, intensity: float) -> float:
        """FLOP/s, with so many FLOPs for each byte."""
        return min(self.flops, self.bandwidth * intensity)

    @property
    def ridge(self) -> float:
        """FLOPs for each byte, from which on bytes are not what is waited for."""
        return self.flops / self.bandwidth


@dataclass(frozen=True)
class Work:
    """A part of a step."""

    name: str
    flops: float
    num_bytes: float
    seconds: float

    @property
    def intensity(self) -> float:
        """FLOPs for each byte."""
        return self.flops / self.num_bytes

    @property
    def speed(self) -> float:
        """FLOP/s."""
        return self.flops / self.seconds


def reached(gpu: Gpu, itemsize: int) -> Roof:
    """What a training step reaches, at best."""
    return Roof(gpu.flops(itemsize), gpu.bytes_per_second)


def peak(gpu: Gpu, itemsize: int) -> Roof:
    """What the data sheet says."""
    return Roof(gpu.peak(itemsize), gpu.memory_bandwidth)


def parts(arrangement: Arrangement, gpu: Gpu, gpus_per_node: int) -> list[Work]:
    """Matmuls, attention and elementwise work of a layer, and the update.

    Of the last two the plan counts bytes alone: a FLOP is taken for each element that is read or written.
    """
    a, step = arrangement, Step(arrangement, Cluster(gpu, gpus_per_node))
    layer = step.costs.forward + step.costs.backward
    matrices = step.costs.block.matrices
    matmul = 3 * 2 * a.tokens * sum(inputs * outputs for inputs, outputs in matrices)
    arrays = sum(a.tokens * (inputs + outputs) + inputs * outputs for inputs, outputs in matrices)
    launches = (KERNELS_FORWARD + KERNELS_BACKWARD) * gpu.launch_seconds
    elementwise = (layer.elementwise - launches) * gpu.bytes_per_second
    update = step.optimizer * gpu.bytes_per_second
    return [
        Work("matmul", matmul, 3 * arrays * a.itemsize, layer.matmul),
        Work("attention", layer.flops - matmul, _attention_bytes(step), layer.attention),
        Work("elementwise", elementwise / a.itemsize, elementwise, layer.elementwise),
        Work("optimizer", update / 4, update, step.optimizer),  # float32
    ]


def _attention_bytes(step: Step) -> float:
    """Read and written in a forward and a backward: the scores of each matmul and the work on them, or none of them."""
    a, block = step.a, step.costs.block
    if a.practice.attention == "flash":
        return 3 * a.tokens * (block.qkv + block.attention) * a.itemsize  # and their gradients
    keys = min(a.model.window or a.sequence, a.sequence)
    scores = a.micro_batch * block.heads * a.sequence * keys
    return scores * (6 * a.itemsize + (1 + SCORE_BACKWARD) * a.practice.score_bytes)


def picture(found: list[Work], reached: Roof, peak: Roof) -> Picture:
    """The two roofs, and every part as a point with its name; both axes are logarithmic."""
    axes = _Axes.around(found, peak)
    shapes = [*axes.grid(), *axes.under(reached), *axes.line(peak), *_key(reached, peak)]
    for index, work in enumerate(found):
        crowded = any(axes.are_close(work, other) for other in found[:index])
        shapes += axes.point(work, below=crowded or work.intensity > reached.ridge)
    return Picture("Roofline: FLOP/s against FLOPs for each byte", WIDTH, HEIGHT, shapes)


@dataclass(frozen=True)
class _Axes:
    """Powers of ten that the picture shows, first and last."""

    x: tuple[int, int]
    y: tuple[int, int]

    @classmethod
    def around(cls, found: list[Work], peak: Roof) -> _Axes:
        intensities = [work.intensity for work in found] + [2 * peak.ridge]
        speeds = [work.speed for work in found] + [peak.flops]
        return cls(_decades(intensities), _decades(speeds))

    def at(self, intensity: float, speed: float) -> tuple[float, float]:
        """Where it is, in pixels."""
        (x0, x1), (y0, y1) = self.x, self.y
        right = (math.log10(intensity) - x0) / (x1 - x0)
        up = (math.log10(speed) - y0) / (y1 - y0)
        return LEFT + right * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    def are_close(self, one: Work, other: Work) -> bool:
        """Whether their names would run into each other."""
        (x, y), (other_x, other_y) = (self.at(work.intensity, work.speed) for work in (one, other))
        return abs(x - other_x) < NAME and abs(y - other_y) < 18

    def grid(self) -> Iterator[Shape]:
        (x0, x1), (y0, y1) = self.x, self.y
        for power in range(x0, x1 + 1):
            x, bottom = self.at(10**power, 10**y0)
            yield Rect("edge", x - 0.5, TOP, 1, bottom - TOP)
            yield Label("faint", x, bottom + 18, f"{10**power:,g}", centred=True)
        for power in range(y0, y1 + 1):
            left, y = self.at(10**x0, 10**power)
            yield Rect("edge", left, y - 0.5, WIDTH - RIGHT - left, 1)
            yield Label("faint", 10, y + 4, f"{10 ** (power - 12):,g}")
        yield Label("faint", 10, 14, "TFLOP/s")
        yield Label("faint", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "FLOPs for each byte", centred=True)

    def corners(self, roof: Roof) -> list[tuple[float, float]]:
        """Of a roof's line, from where it comes into the picture."""
        (x0, x1), (y0, _) = self.x, self.y
        start = max(10**x0, 10**y0 / roof.bandwidth)
        return [self.at(intensity, roof.at(intensity)) for intensity in (start, roof.ridge, 10**x1)]

    def under(self, roof: Roof) -> Iterator[Shape]:
        """All that is possible below a roof."""
        corners, bottom = self.corners(roof), HEIGHT - BOTTOM
        yield Area("live", [(corners[0][0], bottom), *corners, (corners[-1][0], bottom)])

    def line(self, roof: Roof) -> Iterator[Shape]:
        corners = self.corners(roof)
        yield Area("ink", [*corners, *((x, y + LINE) for x, y in reversed(corners))])

    def point(self, work: Work, below: bool) -> Iterator[Shape]:
        """With its name beside it, or below."""
        x, y = self.at(work.intensity, work.speed)
        yield Rect("card", x - POINT / 2 - 1, y - POINT / 2 - 1, POINT + 2, POINT + 2)
        yield Rect(SECONDS[work.name], x - POINT / 2, y - POINT / 2, POINT, POINT)
        yield Label("ink", x if below else x + POINT, y + (22 if below else 4), work.name, below, bold=True)


def _key(reached: Roof, peak: Roof) -> Iterator[Shape]:
    """In the corner where there is no work: many FLOPs for each byte, and slow."""
    x, y = WIDTH - RIGHT - 300, HEIGHT - BOTTOM - 44
    yield Rect("card", x - 10, y - 10, 300, 46)
    yield Area("ink", [(x, y), (x + 18, y), (x + 18, y + LINE), (x, y + LINE)])
    yield Label("ink", x + 26, y + 5, f"the data sheet: {_told(peak)}")
    yield Area("live", [(x, y + 14), (x + 18, y + 14), (x + 18, y + 26), (x, y + 26)])
    yield Label("ink", x + 26, y + 25, f"reached in training: {_told(reached)}")


def _told(roof: Roof) -> str:
    return f"{roof.flops / 1e12:,.0f} TFLOP/s, {roof.bandwidth / 1e12:.2f} TB/s"


def _decades(numbers: list[float]) -> tuple[int, int]:
    """The powers of ten that enclose all."""
    return math.floor(math.log10(min(numbers))), math.ceil(math.log10(max(numbers)))
