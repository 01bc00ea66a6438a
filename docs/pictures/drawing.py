"""A few shapes as SVG, in one style: a card that is light or dark as the reader's system is, and four accents.

Coordinates are pixels, y down. Colours are classes, so that one picture serves both themes.
Knows nothing of what is drawn.
"""

from __future__ import annotations

from html import escape

from trainer import picture

INK, FAINT = "ink", "faint"
BLUE, GREEN, ORANGE, PURPLE = "blue", "green", "orange", "purple"
# class -> (colour on the light card, on the dark one)
COLOURS = {name: picture.COLOURS[name] for name in ("card", "edge", INK, FAINT)} | {
    BLUE: ("#0969da", "#58a6ff"),
    GREEN: ("#1a7f37", "#3fb950"),
    ORANGE: ("#bc4c00", "#f0883e"),
    PURPLE: ("#8250df", "#bc8cff"),
}
TINT = 0.13
MONO = 'ui-monospace, SFMono-Regular, Menlo, "DejaVu Sans Mono", monospace'


class Drawing:
    """Shapes on a card of `width` x `height`."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self._shapes: list[str] = []

    def text(
        self,
        x: float,
        y: float,
        text: str,
        colour: str = INK,
        *,
        size: int = 13,
        anchor: str = "start",
        mono: bool = False,
        bold: bool = False,
    ) -> None:
        """One line; `y` is its baseline."""
        classes = f"{colour}{' mono' if mono else ''}{' bold' if bold else ''}"
        self._shapes.append(
            f'<text class="{classes}" {_attributes(x=x, y=y)} font-size="{size}" text-anchor="{anchor}">'
            f"{escape(text)}</text>"
        )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        colour: str = FAINT,
        *,
        filled: float = TINT,
        dashed: bool = False,
        radius: float = 5,
    ) -> None:
        """A rounded rectangle, its inside `filled` from 0 (not) to 1."""
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self._shapes.append(
            f'<rect class="{colour} line" {_attributes(x=x, y=y, width=width, height=height, rx=radius)} '
            f'fill-opacity="{filled:g}"{dash}/>'
        )

    def bar(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        """A filled rectangle without an edge."""
        self._shapes.append(f'<rect class="{colour}" {_attributes(x=x, y=y, width=width, height=height, rx=1.5)}/>')

    def line(self, points: list[tuple[float, float]], colour: str = FAINT, *, arrow: bool = False) -> None:
        """A line through the points, with a head at its end."""
        path = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
        self._shapes.append(f'<polyline class="{colour} path" points="{path}"/>')
        if arrow:
            (x0, y0), (x, y) = points[-2:]
            length = ((x - x0) ** 2 + (y - y0) ** 2) ** 0.5
            dx, dy = 6 * (x - x0) / length, 6 * (y - y0) / length
            corners = [(x, y), (x - dx - dy / 2, y - dy + dx / 2), (x - dx + dy / 2, y - dy - dx / 2)]
            head = " ".join(f"{_number(a)},{_number(b)}" for a, b in corners)
            self._shapes.append(f'<polygon class="{colour}" points="{head}"/>')

    def svg(self) -> str:
        width, height = self.width, self.height
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
                f'height="{height}" role="img">',
                f"<title>{escape(self.title)}</title>",
                f"<style>\n{_style()}\n</style>",
                f'<rect class="card edge-line" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
                *self._shapes,
                "</svg>\n",
            ]
        )


def _attributes(**numbers: float) -> str:
    return " ".join(f'{name}="{_number(value)}"' for name, value in numbers.items())


def _number(value: float) -> str:
    """To a tenth of a pixel, so that a picture does not depend on the last digits of a computation."""
    return f"{round(float(value), 1):g}"


def _style() -> str:
    def rules(theme: int) -> str:
        colours = [f".{name}{{fill:{pair[theme]};stroke:{pair[theme]}}}" for name, pair in COLOURS.items()]
        return "".join(colours) + f".edge-line{{stroke:{COLOURS['edge'][theme]}}}"

    return (
        f"text{{font-family:{picture.FONTS};stroke:none!important}}.mono{{font-family:{MONO}}}.bold{{font-weight:600}}"
        f"rect:not(.line):not(.card),polygon{{stroke:none!important}}.line{{stroke-width:1.2}}"
        f".path{{fill:none!important;stroke-width:1.4}}\n{rules(0)}\n@media(prefers-color-scheme:dark){{{rules(1)}}}"
    )
