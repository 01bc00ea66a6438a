"""The notebook runs from the top, and tells the truth."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "notebooks/quickstart.ipynb"

# Plain exec, so that nothing of Jupyter is needed.
RUN = """
import json, sys
scope = {"__name__": "__main__"}
for number, source in enumerate(json.load(sys.stdin)):
    exec(compile(source, f"cell {number}", "exec"), scope)
"""


def test_the_notebook_runs_and_says_what_it_promises() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code), "outputs go stale: clear them"
    result = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps(["".join(cell["source"]) for cell in code]),
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
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
