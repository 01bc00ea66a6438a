"""A picture of a few shapes, written as SVG or PNG: the same shapes give the same bytes.

Coordinates are pixels, y down. An SVG is light or dark as its reader's system is; a PNG is light.
Knows nothing of what is drawn.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from trainer.errors import ConfigError

# name -> (colour on the light card, on the dark one)
COLOURS = {
    "card": ("#ffffff", "#0d1117"),
    "edge": ("#d0d7de", "#30363d"),
    "idle": ("#eef1f4", "#1c2129"),
    "ink": ("#1f2328", "#e6edf3"),
    "faint": ("#656d76", "#8d96a0"),
    "live": ("#8250df", "#bc8cff"),
    "number": ("#000000", "#000000"),
}
FONTS = 'system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif'
FONT_SIZE = 12
AREA_OPACITY = 0.35
PNG_SCALE, MAX_PNG_WIDTH = 2, 16_000  # two pixels for one, as far as the memory of a laptop goes


class Rect(NamedTuple):
    """A filled rectangle; `colour`, here and below, is a name of COLOURS or #rrggbb."""

    colour: str
    x: float
    y: float
    width: float
    height: float


class Label(NamedTuple):
    """A line of text; `x` is its left end, or its middle if `centred`, or its end if `right`; `y` is its baseline."""

    colour: str
    x: float
    y: float
    text: str
    centred: bool = False
    bold: bool = False
    right: bool = False


class Area(NamedTuple):
    """A polygon that what is under it can be seen through."""

    colour: str
    corners: list[tuple[float, float]]


class Line(NamedTuple):
    """A line through points, `width` wide; `colour` is #rrggbb."""

    colour: str
    points: list[tuple[float, float]]
    width: float


Shape = Rect | Label | Area | Line


@dataclass(frozen=True)
class Picture:
    """Shapes on a card, later ones over earlier ones."""

    title: str
    width: int
    height: int
    shapes: list[Shape] = field(repr=False)

    def svg(self) -> str:
        size = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n<title>{escape(self.title)}</title>'
        card = Rect("card", 0, 0, self.width, self.height)
        return "\n".join([head, _stylesheet(), *map(_element, [card, *self.shapes]), "</svg>\n"])

    def write_svg(self, path: Path) -> None:
        path.write_text(self.svg(), encoding="utf-8")

    def write_png(self, path: Path) -> None:
        """Twice as large as the SVG, or as large as MAX_PNG_WIDTH allows.

        Raises:
            ConfigError: Pillow is not installed.
        """
        try:
            from PIL import Image, ImageDraw, ImageFont
        except ImportError:
            raise ConfigError(f"{path}: a PNG needs Pillow: pip install pillow; or write an .svg") from None
        scale = min(PNG_SCALE, MAX_PNG_WIDTH / self.width)
        image = Image.new("RGB", (round(scale * self.width), round(scale * self.height)), COLOURS["card"][0])
        canvas = ImageDraw.Draw(image, "RGBA")
        font = ImageFont.load_default(scale * FONT_SIZE)  # Pillow's own: the same on every machine
        for shape in self.shapes:
            _paint(canvas, shape, scale, font)
        image.save(path, "PNG")


def _element(shape: Shape) -> str:
    match shape:
        case Rect(colour, x, y, width, height):
            corner, size = f'x="{_number(x)}" y="{_number(y)}"', f'width="{_number(width)}" height="{_number(height)}"'
            return f"<rect {_filled(colour)} {corner} {size}/>"
        case Label(colour, x, y, text, centred, bold, right):
            classes = f"{colour}{' bold' * bold}{' middle' * centred}"
            anchor = ' text-anchor="end"' * right
            return f'<text class="{classes}"{anchor} x="{_number(x)}" y="{_number(y)}">{escape(text)}</text>'
        case Area(colour, corners):
            return f'<polygon {_filled(colour)} points="{_points(corners)}"/>'
        case Line(colour, points, width):
            return (
                f'<polyline fill="none" stroke="{colour}" stroke-width="{_number(width)}" points="{_points(points)}"/>'
            )


def _filled(colour: str) -> str:
    return f'class="{colour}"' if colour in COLOURS else f'fill="{colour}"'


def _points(points: list[tuple[float, float]]) -> str:
    return " ".join(f"{_number(x)},{_number(y)}" for x, y in points)


def _number(value: float) -> str:
    """To a hundredth of a pixel, so that a picture does not depend on the last digits of a computation."""
    return f"{round(float(value), 2):.10g}"


def _stylesheet() -> str:
    light, dark = ("".join(f".{name}{{fill:{pair[theme]}}}" for name, pair in COLOURS.items()) for theme in (0, 1))
    return (
        f"<style>\ntext{{font-size:{FONT_SIZE}px;font-family:{FONTS}}}.bold{{font-weight:600}}"
        f".middle{{text-anchor:middle}}polygon{{fill-opacity:{AREA_OPACITY}}}\n"
        f"{light}\n@media(prefers-color-scheme:dark){{{dark}}}\n</style>"
    )


def _paint(canvas: Any, shape: Shape, scale: float, font: Any) -> None:
    colour, _ = COLOURS.get(shape.colour, (shape.colour, ""))
    match shape:
        case Rect(_, x, y, width, height):
            left, top, right, bottom = (round(scale * edge) for edge in (x, y, x + width, y + height))
            if left < right:  # the last pixel is drawn too
                canvas.rectangle((left, top, right - 1, bottom - 1), colour)
        case Label(_, x, y, text, centred, _, right):
            anchor = "ms" if centred else "rs" if right else "ls"
            canvas.text((scale * x, scale * y), text, colour, font, anchor=anchor)
        case Area(_, corners):
            see_through = f"{colour}{round(255 * AREA_OPACITY):02x}"
            canvas.polygon([(scale * x, scale * y) for x, y in corners], see_through)
        case Line(_, points, width):
            canvas.line([(scale * x, scale * y) for x, y in points], colour, round(scale * width), joint="curve")
