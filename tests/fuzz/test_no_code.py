"""Nothing that is loaded is run: no pickle, no eval, no YAML that makes objects, in any module of the project."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("trainer", "models", "sharding", "pallas_kernels", "benchmarks", "docs")
FILES = sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))

MODULES = {"pickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "runpy", "code"}
"""They run what they load, or load what they run."""
CALLS = {
    *("eval", "exec", "__import__", "os.system", "os.popen", "torch.load"),
    *(f"yaml.{kind}" for kind in ("load", "load_all", "full_load", "full_load_all", "unsafe_load", "unsafe_load_all")),
}


def dangers(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (f"imports {alias.name}" for alias in node.names if alias.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            yield f"imports {node.module}"
        elif isinstance(node, ast.Call):
            yield from _of_call(ast.unparse(node.func), {word.arg: ast.unparse(word.value) for word in node.keywords})


def _of_call(name: str, words: dict[str | None, str]) -> Iterator[str]:
    if name in CALLS:
        yield f"calls {name}"
    if name in ("yaml.compose", "yaml.parse") and not words.get("Loader", "").endswith("_Loader"):
        yield f"calls {name} without a loader of plain data"
    if words.get("shell", "False") != "False":
        yield f"calls {name} with a shell"
    if words.get("allow_pickle", "False") != "False":
        yield f"calls {name} with allow_pickle"


def test_no_module_runs_what_it_loads() -> None:
    found = {str(file.relative_to(ROOT)): list(dangers(file.read_text(encoding="utf-8"))) for file in FILES}
    assert {file: dangers for file, dangers in found.items() if dangers} == {}


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from pickle import loads",
        "torch.load(file)",
        "eval(text)",
        "yaml.load(text, Loader=yaml.Loader)",
        "yaml.compose(text, Loader=yaml.Loader)",
        "np.load(file, allow_pickle=True)",
        "np.load(file, allow_pickle=is_old)",
        "subprocess.run(text, shell=True)",
        "os.system(text)",
    ],
)
def test_each_danger_would_be_seen(line: str) -> None:
    assert list(dangers(line))
