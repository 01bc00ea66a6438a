"""Reads a page as its users do: its tables and bars, what it refers to, and how a browser likes it."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from html import escape
from html.parser import HTMLParser
from pathlib import Path

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@dataclass
class Table:
    """What a reader sees of one; and whether a screen reader could tell its parts."""

    caption: str = ""
    rows: list[list[str]] = field(default_factory=list)
    scopes: list[str | None] = field(default_factory=list)


class Page(HTMLParser):
    """The tables of a page, its bars, and everything that it refers to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[Table] = []
        self.bars: list[list[tuple[str, float]]] = []
        self.tags: set[str] = set()
        self.addresses: list[str] = []
        self.alts: list[str | None] = []
        self._into: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]
        match tag:
            case "table":
                self.tables.append(Table())
            case "tr":
                self.tables[-1].rows.append([])
            case "td" | "th":
                self.tables[-1].rows[-1].append("")
                self.tables[-1].scopes += [attributes.get("scope")] if tag == "th" else []
            case "img":
                self.alts.append(attributes.get("alt"))
            case "div" if (attributes.get("class") or "").startswith("stack"):
                self.bars.append([])
            case "span" if found := re.match(r"(width|left):([\d.]+)%", attributes.get("style") or ""):
                self.bars[-1].append((found[1], float(found[2])))
        if tag in ("td", "th", "caption"):
            self._into = tag

    def handle_endtag(self, tag: str) -> None:
        if tag == self._into:
            self._into = None

    def handle_data(self, data: str) -> None:
        if self._into == "caption":
            self.tables[-1].caption += data
        elif self._into:
            self.tables[-1].rows[-1][-1] += data

    def table(self, heading: str) -> dict[str, list[str]]:
        """The rows of the first table whose first column has this heading, by their first cells."""
        (rows, *_) = (table.rows for table in self.tables if table.rows[0][0] == heading)
        return {row[0]: row[1:] for row in rows[1:]}


def images(text: str) -> list[str]:
    """The pictures of a page, as SVG."""
    return [base64.b64decode(found).decode() for found in re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', text)]


MEASURE = """
<!doctype html><title>-</title>
<iframe width="1200" height="900" srcdoc="{page}"></iframe><iframe width="400" height="900" srcdoc="{page}"></iframe>
<script>
onload = () => {
  const found = [...document.querySelectorAll("iframe")].map(frame => {
    const inner = frame.contentDocument;
    const images = [...inner.images];
    return [inner.documentElement.clientWidth, inner.documentElement.scrollWidth,
            images.length, images.filter(image => image.naturalWidth > 0).length].join(" ");
  });
  document.title = found.join(";");
};
</script>
"""
"""Shows a page 1200 and 400 pixels wide, and notes how wide it becomes and which of its pictures can be seen."""


def browse(folder: Path, text: str) -> tuple[str, str]:
    """The title, and what is on the console, of MEASURE in a browser without a network."""
    assert BROWSER
    file = folder / "measure.html"
    file.write_text(MEASURE.replace("{page}", escape(text)), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder}/profile"]
    options += ["--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--dump-dom", file.as_uri()]
    shown = subprocess.run([BROWSER, *options], capture_output=True, text=True, timeout=120, check=True)
    (title,) = re.findall(r"<title>(.*?)</title>", shown.stdout.split("<iframe")[0])
    return title, "\n".join(line for line in shown.stderr.splitlines() if "CONSOLE" in line)
