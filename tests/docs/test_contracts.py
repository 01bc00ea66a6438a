"""Every test that docs/contracts.md names is there, and every line names one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/contracts.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))
LINES = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| what holds")]


def functions_of(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("file", sorted({file for file, _ in NAMED}))
def test_every_test_that_is_named_is_there(file: str) -> None:
    named = {name for of, name in NAMED if of == file}
    assert named <= functions_of(ROOT / file), "mend docs/contracts.md"
    assert all(name.startswith("test_") for name in named)


def test_every_line_names_one() -> None:
    assert len(LINES) > 40
    assert [line for line in LINES if not re.search(r"`tests/[\w/]+\.py::test_\w+`", line)] == []
