"""A picture is the same shapes as SVG and as PNG."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from trainer.errors import ConfigError
from trainer.picture import COLOURS, Area, Label, Line, Picture, Rect

PICTURE = Picture(
    "a < b",
    60,
    40,
    [
        Rect("#ff0000", 0, 0, 10, 10),
        Rect("live", 30, 0, 10, 10),
        Area("live", [(0, 20), (20, 20), (20, 30), (0, 30)]),
        Label("ink", 22, 38, "a < b & c", bold=True),
        Line("#0000ff", [(40, 20), (60, 20)], 2),
        Label("ink", 60, 16, "end", right=True),
    ],
)


def test_an_svg_is_well_formed_and_has_a_colour_for_each_theme() -> None:
    root = ElementTree.fromstring(PICTURE.svg())
    words = [element.text for element in root if element.tag.endswith(("title", "text"))]
    assert words == ["a < b", "a < b & c", "end"]
    light, dark = PICTURE.svg().split("@media(prefers-color-scheme:dark)")
    for name, (on_light, on_dark) in COLOURS.items():
        assert f".{name}{{fill:{on_light}}}" in light
        assert f".{name}{{fill:{on_dark}}}" in dark
    used = {name for classes in re.findall(r'class="([^"]+)"', PICTURE.svg()) for name in classes.split()}
    assert used - {"bold", "middle"} <= COLOURS.keys()


def test_a_png_has_the_same_shapes_twice_as_large(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    PICTURE.write_png(tmp_path / "a.png")
    with image.open(tmp_path / "a.png") as png:
        assert png.size == (120, 80)
        pixels = png.convert("RGB")
    card, live = (tuple(bytes.fromhex(COLOURS[name][0][1:])) for name in ("card", "live"))
    assert pixels.getpixel((0, 0)) == pixels.getpixel((19, 19)) == (255, 0, 0)
    assert pixels.getpixel((20, 20)) == card
    assert pixels.getpixel((70, 10)) == live
    through = pixels.getpixel((20, 50))
    assert all(abs(0.35 * a + 0.65 * b - seen) <= 1 for a, b, seen in zip(live, card, through, strict=True))
    assert pixels.getpixel((100, 40)) == (0, 0, 255)
    ends = pixels.crop((80, 20, 120, 34)).getbbox()
    assert ends is not None
    text = pixels.crop((44, 56, 120, 78))
    assert len(text.getcolors()) > 10, "letters, with smooth edges"


def test_a_png_that_would_be_huge_is_smaller(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    Picture("", 20_000, 10, []).write_png(tmp_path / "a.png")
    with image.open(tmp_path / "a.png") as png:
        assert png.size == (16_000, 8)


def test_a_png_needs_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ConfigError, match=r"a.png: a PNG needs Pillow: pip install pillow; or write an .svg"):
        PICTURE.write_png(tmp_path / "a.png")
    assert not list(tmp_path.iterdir())
