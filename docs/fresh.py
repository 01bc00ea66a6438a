"""Runs what the documents show as a user would: from a wheel, in another folder, in a fresh process for each page.

    scripts/try-docs [PAGE ...]      README.md, docs/NAME.md, notebooks/NAME.ipynb; all that show Python unless given

The wheel is made of the files that git tracks, so that nothing left in a checkout gets into it. A page's blocks run one
after another in one process, with nothing in its environment but a home, a PATH and a language.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SECONDS = 900
_SCRIPT = """# One scope for all blocks, and a name for each in a traceback.
scope = {{"__name__": "__main__"}}
for number, source in enumerate({blocks!r}, 1):
    exec(compile(source, f"{page} block {{number}}", "exec"), scope)
"""


def pages() -> list[Path]:
    """Every document that shows Python, from the repository's root."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "notebooks").glob("*.ipynb"))]
    return [page.relative_to(ROOT) for page in found if blocks(page)]


def blocks(page: Path) -> list[str]:
    """The Python that a page shows, in order: blocks of Markdown, or cells of a notebook."""
    text = (ROOT / page).read_text(encoding="utf-8")
    if page.suffix != ".ipynb":
        return _BLOCK.findall(text)
    return ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]


def install(folder: Path) -> Path:
    """A Python environment in `folder` with meshwright from a wheel, and its dependencies from this environment.

    Returns the environment's interpreter.
    """
    source, environment = folder / "source", folder / "environment"
    source.mkdir()
    changed = _run(["git", "stash", "create"], ROOT).strip()  # a commit of what is not committed yet; touches nothing
    archive = folder / "source.tar"
    _run(["git", "archive", "--output", str(archive), changed or "HEAD"], ROOT)
    _run(["tar", "-xf", str(archive), "-C", str(source)], folder)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "wheel", "--no-deps", "--wheel-dir", str(folder / "wheel"), str(source)], folder)
    venv.create(environment, symlinks=True)
    python = environment / "bin/python"
    paths = {"base": str(environment), "platbase": str(environment)}
    site = Path(sysconfig.get_path("purelib", "venv", vars=paths))
    # A folder that a .pth names is searched, but the .pth files in it are not: an editable checkout stays out.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    (wheel,) = (folder / "wheel").glob("*.whl")
    _run([*pip, "--python", str(python), "install", "--no-deps", str(wheel)], folder)
    return python


def run(python: Path, page: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """All blocks of a page in one fresh process, whose working directory is `folder`."""
    home = folder / "home"
    home.mkdir(parents=True)
    work = folder / "work"
    work.mkdir()
    (work / "configs").symlink_to(ROOT / "configs")
    script = work / "page.py"
    script.write_text(_SCRIPT.format(page=page.name, blocks=blocks(page)), encoding="utf-8")
    path = os.pathsep.join([str(python.parent), os.defpath])
    return subprocess.run(
        [python, script],
        cwd=work,
        env={"HOME": str(home), "PATH": path, "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )


def _run(command: list[str], folder: Path) -> str:
    """A command's standard output; it ends this process when it fails."""
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{result.stdout}{result.stderr}")
    return result.stdout


def main(named: list[str]) -> int:
    """Runs the pages that are named, or all; the number of those that failed."""
    asked = [Path(name) for name in named] or pages()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="try-docs-") as temporary:
        python = install(Path(temporary))
        for page in asked:
            result = run(python, page, Path(temporary, "pages", page.name))
            failed += result.returncode != 0
            print(f"{page}: {'FAILED' if result.returncode else 'runs'} ({len(blocks(page))} blocks)")
            if result.returncode:
                print(result.stdout, result.stderr, sep="\n")
    return failed


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
