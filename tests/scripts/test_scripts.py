"""What holds for the whole tree: scripts parse, no file is tied to one machine, imports go one way."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = [*sorted(p for p in (ROOT / "scripts").iterdir() if p.is_file()), ROOT / ".ci/run"]

MAY_IMPORT = {
    "trainer": {"trainer", "models", "sharding", "pallas_kernels"},
    "models": {"models", "sharding", "pallas_kernels"},
    "sharding": {"sharding"},
    "pallas_kernels": {"pallas_kernels"},
}

ONE_MACHINE_ONLY = re.compile(
    r"pypi\.org|pythonhosted\.org|npmjs\.org|debian\.org|anaconda\.org|--(?:extra-)?index-url"  # registries
    r"|(?<![\w.~-])/(?:root|work|home|Users)/\w"  # somebody's folders
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_script_parses_and_can_be_run(script: Path) -> None:
    parsed = subprocess.run(["bash", "-n", script], capture_output=True, text=True)
    assert (parsed.returncode, parsed.stderr) == (0, "")
    assert os.access(script, os.X_OK) or script.suffix == ".sh", f"{script} is not executable: chmod +x"


def test_no_file_names_a_package_registry_or_somebodys_folder() -> None:
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    found = [
        f"{name}:{number}: {line.strip()[:100]}"
        for name in names
        if (ROOT / name).is_file()
        for number, line in enumerate((ROOT / name).read_text(errors="replace").splitlines(), 1)
        if ONE_MACHINE_ONLY.search(line)
    ]
    assert not found, "\n".join(found)


def imported_packages(source: str) -> set[str]:
    """The top-level packages that a module imports, wherever in it the import stands."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module or "")
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_go_one_way(package: str) -> None:
    forbidden = MAY_IMPORT.keys() - MAY_IMPORT[package]
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for name in sorted(imported_packages(path.read_text()) & forbidden)
    ]
    assert not wrong, "\n".join(wrong)
