"""What the docs say of files and configs is so: snippets and commands load, links lead somewhere, tables are fresh."""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from docs import make_tables
from trainer.config import Config

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
pictures = import_module("docs.pictures.__main__")

COMMANDS = re.compile(r"^meshwright (?:train|show|schedule) (configs/.*?)(?: --.*)?$", re.MULTILINE)


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def snippets() -> list[tuple[str, str]]:
    """(page and number, YAML) of every yaml block of the docs."""
    return [
        (f"{page.name}-{number}", snippet)
        for page in PAGES
        for number, snippet in enumerate(re.findall(r"```yaml\n(.*?)```", text(page), re.DOTALL))
    ]


@pytest.mark.parametrize(("name", "snippet"), snippets(), ids=[name for name, _ in snippets()])
def test_every_snippet_is_a_config(name: str, snippet: str, tmp_path: Path) -> None:
    (tmp_path / "meshes").symlink_to(ROOT / "configs/meshes")
    file = tmp_path / "snippet.yaml"
    file.write_text(snippet, encoding="utf-8")
    config = Config.load(file)
    assert all(key in config.to_dict() for key in yaml.safe_load(snippet))


@pytest.mark.parametrize("page", [page for page in PAGES if COMMANDS.search(text(page))], ids=lambda page: page.name)
def test_every_command_has_a_config(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for command in COMMANDS.findall(text(page)):
        file, *overrides = shlex.split(command)
        Config.load(file, overrides)


def test_the_readme_names_every_option() -> None:
    shown = re.findall(r"^meshwright .*$", text(ROOT / "README.md"), re.MULTILINE)
    for command in ("train", "eval", "generate", "show", "schedule", "doctor"):
        help = text(ROOT / f"tests/golden/help_{command}.txt")
        options = set(re.findall(r"^ +(--[a-z-]+)", help, re.MULTILINE))
        (line,) = (line for line in shown if line.startswith(f"meshwright {command} "))
        assert options <= set(re.findall(r"--[a-z-]+", line)), command


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", text(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", text(page)):
        assert "://" not in target, f"{target}: the docs need nothing from elsewhere"
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_is_named_exists(page: Path) -> None:
    for name in re.findall(r"`((?:\w[\w-]*/)+[\w.-]*)`", text(page)):
        if name.split("/")[0] not in ("runs", "corpus"):  # what a run makes, what a user has
            assert (ROOT / name).exists(), name
    for module in re.findall(r"python -m ([\w.]+)", text(page)):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module


@pytest.mark.parametrize("page", make_tables.PAGES)
def test_tables_are_fresh(page: str) -> None:
    assert make_tables.page(page) == text(ROOT / "docs" / page), "run python -m docs.make_tables"


@pytest.mark.parametrize("name", pictures.names())
def test_pictures_are_fresh(name: str) -> None:
    file = ROOT / "docs/pictures" / f"{name}.svg"
    assert pictures.svg(name) == file.read_text(encoding="utf-8"), "run python -m docs.pictures"


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.stem not in ("README", "config", "contracts")], ids=lambda p: p.name
)
def test_a_page_opens_with_a_picture_and_a_config(page: Path) -> None:
    _, picture, config, *_ = [part for part in text(page).split("\n\n") if part.strip()]
    assert picture.startswith("![")
    assert picture.endswith(f"(pictures/{page.stem}.svg)")
    assert config.startswith("```yaml")


def test_the_index_names_every_page() -> None:
    index = text(ROOT / "docs/README.md")
    assert all(f"({page.name})" in index for page in PAGES if page.stem != "README")
