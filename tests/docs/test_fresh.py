"""What README, docs and notebooks show runs as a user has it: from a wheel, in another folder, in a fresh process."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from docs import fresh

NOTEBOOK = Path("notebooks/quickstart.ipynb")
PAGES = fresh.pages()


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has meshwright from a wheel."""
    return fresh.install(tmp_path_factory.mktemp("installed"))


def test_the_documents_that_show_python_are_found() -> None:
    assert {Path("README.md"), Path("docs/config.md"), NOTEBOOK} <= set(PAGES)


def test_the_wheel_holds_the_four_packages_and_what_they_read(python: Path, tmp_path: Path) -> None:
    """And is found where nothing of the checkout is; a stale build folder gets nothing into it."""
    code = (
        "import trainer, sys; print(trainer.__file__); from trainer.planner.gpu import load; print(load('h100').name)"
    )
    result = subprocess.run(
        [python, "-P", "-c", code], cwd=tmp_path, env={}, capture_output=True, text=True, check=True
    )
    home, gpu = result.stdout.splitlines()
    assert Path(home).is_relative_to(python.parents[1])
    assert gpu
    packages = {path.name for path in Path(home).parents[1].iterdir() if path.is_dir() and path.suffix != ".dist-info"}
    assert packages - {"__pycache__"} == {"trainer", "models", "sharding", "pallas_kernels"}


@pytest.mark.parametrize("page", [page for page in PAGES if page != NOTEBOOK], ids=str)
def test_every_block_of_a_page_runs(python: Path, page: Path, tmp_path: Path) -> None:
    result = fresh.run(python, page, tmp_path)
    assert result.returncode == 0, result.stderr


def test_the_notebook_runs_and_says_what_it_promises(python: Path, tmp_path: Path) -> None:
    cells = json.loads((fresh.ROOT / NOTEBOOK).read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code), "outputs go stale: clear them"
    result = fresh.run(python, NOTEBOOK, tmp_path)
    assert result.returncode == 0, result.stderr
    losses = [float(loss) for loss in re.findall(r"^step \d+  loss ([\d.]+)", result.stdout, re.MULTILINE)]
    assert len(losses) == 4
    assert losses[-1] < losses[0]
    assert "did you mean tensor?" in result.stdout
    assert "use 16 or 20" in result.stdout
    assert "bits_per_byte" in result.stdout
    step_here, here, step_there, there = re.findall(r"[\d.]+\d|\d+", result.stdout.splitlines()[-1])
    assert (step_here, step_there) == ("41", "41")
    assert abs(float(here) - float(there)) < 1e-4
