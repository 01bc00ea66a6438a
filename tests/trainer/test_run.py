"""`meshwright train`, `eval` and `generate` end to end: what is printed, what is kept, and how it ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner, Result

from tests.trainer import small
from trainer.checkpoint import Checkpoints
from trainer.cli import app
from trainer.data.indexed import IndexedWriter
from trainer.data.tokenizer import Tokenizer
from trainer.lines import read_jsonl

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"COLUMNS": "80"}
"""Of a user with one CPU: more devices are there because the config asks for them."""


def start(*args: str, program: Sequence[str] = ("-m", "trainer")) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *program, *args],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    try:
        output, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    return process.returncode, output, errors


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder: text, a config, and the run that `train` makes of it."""
    folder = tmp_path_factory.mktemp("user")
    tree = small.tree(small.write_text(folder / "text"), folder / "run")
    tree["mesh"] = {"data": 2, "tensor": 2, "virtual_devices": 4}
    (folder / "config.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def trained(folder: Path) -> tuple[Path, str]:
    """The run's folder, and what was printed."""
    code, output, errors = finish(start("train", str(folder / "config.yaml")))
    assert (code, errors) == (0, "")
    return folder / "run", output


def here(*args: str | Path) -> Result:
    """In this process, which has eight devices."""
    return CliRunner().invoke(app, [str(arg) for arg in args])


def steps(run: Path) -> list[int]:
    return [row["step"] for row in read_jsonl(run / "metrics.jsonl") if "loss" in row]


def test_train_tells_how_it_goes_and_what_each_device_holds(trained: tuple[Path, str]) -> None:
    run, output = trained
    assert "small on 4 x cpu" in output
    assert steps(run) == [1, 2, 3, 4]
    lines = [line.split() for line in output.splitlines()]
    assert [line[0] for line in lines if len(line) > 8 and line[0].isdigit()] == ["1", "2", "3", "4"]
    assert output.count("evaluation  loss") == 2
    held = [line for line in output.splitlines() if line.startswith("│")]
    assert [line.split("│")[1].strip() for line in held] == ["0", "1", "2", "3"]
    assert output.endswith(f"The run's files are in {run}/\n")
    assert Checkpoints(run / "checkpoints", keep=3).steps() == [2, 4]


def test_a_run_on_virtual_devices_writes_and_is_measured(trained: tuple[Path, str]) -> None:
    """In new processes, which have to make the virtual devices again, or may take others."""
    run, output = trained
    code, text, errors = finish(start("generate", str(run), "--prompt", "def ", "--max-tokens", "8"))
    assert (code, errors) == (0, "")
    assert text.startswith("def ")
    alone = "mesh={data: 1}"
    code, values, told = finish(start("eval", str(run), alone))
    assert code == 0
    assert told == (
        "measured on the run's own held-out text: 4 documents; up to 1,024 tokens of it (train.eval_batches=8)\n"
    )
    measured = {line.split()[0]: line.split()[1] for line in values.splitlines()}
    last = [line for line in output.splitlines() if line.startswith("evaluation")][-1].split()
    assert float(measured["loss"]) == pytest.approx(float(last[2]), abs=2e-4)
    assert float(measured["bits_per_byte"]) == pytest.approx(float(last[8]), abs=2e-4)


def write_pair(prefix: Path) -> Path:
    with IndexedWriter(prefix, np.dtype("<u2")) as writer:
        for _ in range(5):
            writer.add(np.arange(20))
    return prefix


def truncated(folder: Path) -> Path:
    prefix = write_pair(folder / "truncated")
    content = Path(f"{prefix}.bin").read_bytes()
    Path(f"{prefix}.bin").write_bytes(content[:-6])
    return prefix


def of_content(content: bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        file = folder / "data"
        file.write_bytes(content)
        return file

    return write


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "none.txt", "none.txt does not exist"),
        (of_content(b""), "no text in"),
        (of_content(b"text\0"), "is binary (a NUL at byte 4); leave it out of data.path"),
        (of_content("é".encode("latin-1")), "is not UTF-8 (byte 0 is 0xe9); convert it"),
        (truncated, "says 200 bytes"),
    ],
    ids=["missing", "empty", "binary", "latin-1", "truncated .bin"],
)
def test_data_that_cannot_be_trained_on(folder: Path, tmp_path: Path, make: Any, message: str) -> None:
    data = f"data={{path: {make(tmp_path)}, cache: {tmp_path / 'cache'}, holdout: 0.2}}"
    refused(here("train", folder / "config.yaml", *on_all(tmp_path), data), message)
    assert not (tmp_path / "run").exists()


def on_all(folder: Path) -> list[str]:
    """Overrides for this process' devices, and a run's folder of its own."""
    return ["mesh={data: 4, tensor: 2}", f"run.dir={folder / 'run'}"]


def refused(result: Result, *messages: str) -> None:
    """One message and exit code 2, and no traceback."""
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ")
    for message in messages:
        assert message in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["mesh={data: 2, tensor: 2}"], "mesh: data 2 x tensor 2 needs 4 devices, and there are 8"),
        (["batch.global=6"], "does not divide over mesh.replica x mesh.data x mesh.expert = 4; use 4 or 8"),
        (["model.heads=3"], "model.hidden=32 does not divide into model.heads=3; use 30 or 33"),
        (["model.heads=1"], "model.heads=1 does not divide by mesh.tensor=2; mesh.tensor can be one of [1]"),
        (["model.vocab=200"], "model.vocab=200 is too small for a byte-level tokenizer; use model.vocab=257"),
    ],
    ids=lambda case: case[0] if isinstance(case, list) else "",
)
def test_sizes_that_do_not_fit(folder: Path, tmp_path: Path, overrides: list[str], message: str) -> None:
    mesh, run = on_all(tmp_path)
    mesh = "" if overrides[0].startswith("mesh=") else mesh
    refused(here("train", folder / "config.yaml", *filter(None, [mesh]), run, *overrides), message)
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_larger_than_the_vocabulary(folder: Path, tmp_path: Path) -> None:
    text = (folder / "text/0.txt").read_text(encoding="utf-8")
    Tokenizer.train([text], 290).save(tmp_path)
    overrides = [f"data.tokenizer={tmp_path / 'tokenizer.json'}", "model.vocab=260"]
    result = here("train", folder / "config.yaml", *on_all(tmp_path), *overrides)
    refused(result, "data.tokenizer has 290 entries and model.vocab=260; use model.vocab=290")


def test_a_folder_of_another_run(folder: Path, trained: tuple[Path, str]) -> None:
    run, _ = trained
    before = (run / "config.yaml").read_text(encoding="utf-8")
    result = here("train", folder / "config.yaml", "mesh={data: 4, tensor: 2}", "model.layers=2")
    refused(result, "holds another run:\n  model.layers was 1 and is 2")
    assert (run / "config.yaml").read_text(encoding="utf-8") == before


def test_a_checkpoint_of_another_model(folder: Path, trained: tuple[Path, str], tmp_path: Path) -> None:
    """The checkpoints were moved to where they do not belong."""
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(trained[0] / "config.yaml", run)
    shutil.copytree(trained[0] / "checkpoints", run / "checkpoints")
    text = (run / "config.yaml").read_text(encoding="utf-8")
    (run / "config.yaml").write_text(text.replace("layers: 1", "layers: 2"), encoding="utf-8")
    result = here("train", folder / "config.yaml", *on_all(tmp_path), "model.layers=2", "train.steps=5")
    refused(result, "checkpoints/4 is a checkpoint of another model", "key.weight is float32[1, 32, 2, 16] there")


def test_a_file_where_the_folder_should_be(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine", encoding="utf-8")
    refused(here("train", folder / "config.yaml", *on_all(tmp_path)), "is there already and is not a run's folder")
    assert (tmp_path / "run").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize(
    ("run", "reason"),
    [("/proc/run", "No such file"), ("/dev/null/run", "Not a directory"), ("x" * 300, "File name too long")],
)
def test_a_folder_that_cannot_be_made_is_refused_before_the_text_is_read(folder: Path, run: str, reason: str) -> None:
    mesh = "mesh={data: 4, tensor: 2}"
    result = here("train", folder / "config.yaml", mesh, f"run.dir={run}", "data.path=none.txt")
    refused(result, f"run.dir={run} cannot be written ({reason}", "give another run.dir")


def test_a_folder_of_something_else_is_refused_before_the_text_is_read(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/thesis.tex").touch()
    result = here("train", folder / "config.yaml", *on_all(tmp_path), "data.path=none.txt")
    refused(result, "is there already and is not a run's folder")


def test_what_is_no_run_cannot_be_read(folder: Path, trained: tuple[Path, str], tmp_path: Path) -> None:
    refused(here("eval", tmp_path / "none"), "holds no config.yaml, so it is no run's folder; name one")
    refused(
        here("generate", folder / "config.yaml", "--prompt", "x"), "is a file; give the folder of a run that it made"
    )
    shutil.copy(trained[0] / "config.yaml", tmp_path)
    refused(here("eval", tmp_path), "holds no complete checkpoint yet; train it first")
    (tmp_path / "checkpoints/4.0123abcd.writing").mkdir(parents=True)  # what a killed process leaves
    refused(here("eval", tmp_path), "holds no complete checkpoint yet; train it first")


def test_float16_that_can_go_no_further_says_so(folder: Path, tmp_path: Path) -> None:
    """Weights so large that each step overflows. Nothing of it is saved, as it could not be gone on from."""
    precision = "precision={compute: float16, loss_scale: {initial_power: 0, hysteresis: 1}}"
    overrides = [*on_all(tmp_path), precision, "model.init_std=30.0", "train={steps: 4, checkpoint_every: 1}"]
    result = here("train", folder / "config.yaml", *overrides)
    refused(result, "step 1: gradients overflow float16 even at the smallest loss scale, 1; use precision.compute=bf")
    assert "nothing is saved yet" in result.stderr
    assert Checkpoints(tmp_path / "run/checkpoints", keep=3).steps() == []


SMALL_DISK = """if True:
    import resource
    from trainer.cli import main
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))  # bytes a file
    main()
"""


def test_a_full_disk_keeps_the_last_checkpoint(folder: Path, trained: tuple[Path, str], tmp_path: Path) -> None:
    run = shutil.copytree(trained[0], tmp_path / "run")
    overrides = [f"run.dir={run}", "train.steps=8", "run.tensorboard=false"]

    code, _, errors = finish(start("train", str(folder / "config.yaml"), *overrides, program=("-c", SMALL_DISK)))
    assert code == 1, errors
    assert errors.startswith(f"error: The checkpoint of step 8 could not be written to {run / 'checkpoints'}")
    assert errors.endswith("Older ones are as they were.\n")
    assert Checkpoints(run / "checkpoints", keep=3).steps() == [2, 4]
    assert here("eval", run, "mesh={data: 4, tensor: 2}").exit_code == 0


def test_signals_save_and_the_next_run_goes_on(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    args = ["train", str(folder / "config.yaml"), f"run.dir={run}", "train.steps=1000000", "train.eval_every=null"]
    first = 0
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        process = start(*args)
        wait_for_step(first + 1, run, process)
        process.send_signal(number)
        found, output, errors = finish(process)
        assert (found, errors) == (code, "")
        assert f"{number.name}: finishing the step, then saving; Ctrl-C stops at once" in output
        last = steps(run)[-1]
        assert f"{number.name}: stopped after step {last}, saved; the same command goes on from there" in output
        assert (f"goes on from step {first}" in output) == (first > 0)
        assert Checkpoints(run / "checkpoints", keep=3).newest() == last
        assert steps(run) == list(range(1, last + 1))
        first = last


def wait_for_step(step: int, run: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 100
    while not (run / "metrics.jsonl").exists() or max(steps(run), default=0) < step:
        assert process.poll() is None, finish(process)
        assert time.monotonic() < deadline
        time.sleep(0.05)
