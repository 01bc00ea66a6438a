"""`meshwright checkpoints`: what people see of them, and what is removed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from click.testing import Result
from typer.testing import CliRunner

from trainer.checkpoint import Checkpoints
from trainer.checkpoint.draft import HEADER
from trainer.checkpoint.sealed import read_sealed, write_sealed
from trainer.cli import app
from trainer.folder_lock import FolderLock

CONFIG = "train: {checkpoint_every: 10, eval_every: 20, keep_checkpoints: 1, keep_best: 1}\n"


def weights(step: int) -> dict[str, jnp.ndarray]:
    weight = jnp.arange(6000.0) + 1
    return {
        "parameters.weight": weight.at[7].set(step),
        "optimizer.mu.weight": weight.astype(jnp.bfloat16),
        "step": jnp.int32(step),
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "a"
    run.mkdir()
    (run / "config.yaml").write_text(CONFIG)
    checkpoints = Checkpoints(run / "checkpoints", keep=9)
    for step, loss in ((10, None), (20, 2.5), (30, None), (40, 3.0)):
        checkpoints.save(step, weights(step), {"meshwright": "0.1"}, {} if loss is None else {"eval_loss": loss})
    checkpoints.close()
    return run


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "a")


def here(run: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["checkpoints", str(run), *options])


def steps(run: Path) -> list[int]:
    return Checkpoints(run / "checkpoints", keep=9).steps()


def damage(run: Path, step: int) -> None:
    file = run / f"checkpoints/{step}/0.bin"
    content = bytearray(file.read_bytes())
    content[0] ^= 1
    file.write_bytes(content)


def test_a_list_says_when_how_large_why_and_what_is_wrong(run: Path) -> None:
    (run / "checkpoints/50.0123abcd.writing").mkdir()
    (run / "checkpoints/5").mkdir()
    (run / "checkpoints/5/model.safetensors").touch()
    (run / "checkpoints/link").symlink_to(run)
    (run / "checkpoints/30/checkpoint.json").write_text("{")
    rows = {}
    for line in here(run).output.splitlines():
        cells = [cell.strip() for cell in re.split(r"\s{2,}", line.strip())]
        rows[cells[0]] = cells[1:]
    date = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    for step, state in {
        "10": rf"{date} complete nothing: the next save removes it \d+\.\d\d KiB",
        "20": rf"{date} complete best \d+\.\d\d KiB 2.5000",
        "40": rf"{date} complete newest \d+\.\d\d KiB 3.0000",
        "30": r"damaged: checkpoint.json is not what was written \d+\.\d\d KiB",
        "5": r"a checkpoint of Hugging Face 0 B",
        "50.0123abcd.writing": r"being written, or left by a killed process 0 B",
        "link": r"a link, which is not followed .*",
    }.items():
        assert re.fullmatch(state, " ".join(rows[step])), (step, rows[step])


def test_every_byte_is_verified(run: Path) -> None:
    result = here(run, "--verify")
    assert (result.exit_code, result.output.count("every byte is as it was written")) == (0, 4)
    damage(run, 20)
    result = here(run, "--verify")
    assert result.exit_code == 1
    found = re.search(
        r"^20: DAMAGED\n  (\S+): its checksum is another \(0.bin, byte 0 on\)\n30: every", result.output, re.M
    )
    assert found is not None
    assert found[1] in weights(0)


def test_differences_are_named_and_measured(run: Path) -> None:
    output = here(run, "--diff", "10", "40").output
    assert re.search(r"parameters.weight +1 of 6,000 differ, by at most 30 \(0\.005 of the largest\)", output)
    assert re.search(r"step +1 of 1 differ, by at most 30 \(3 of the largest\)", output)
    assert "optimizer" not in output
    assert here(run, "--diff", "10", "10").output == "10 and 10 hold the same bits\n"
    damage(run, 10)
    assert here(run, "--diff", "10", "40").exit_code == 2


def test_arrays_that_one_alone_has_are_named(run: Path) -> None:
    checkpoints = Checkpoints(run / "checkpoints", keep=9)
    checkpoints.save(50, {"step": jnp.zeros(2), "more": jnp.ones(3)}, {})
    checkpoints.close()
    output = here(run, "--diff", "40", "50").output
    assert re.search(r"more +only in 50", output)
    assert re.search(r"parameters.weight +only in 40", output)
    assert re.search(r"step +int32\[\] and float32\[2\]", output)


def test_other_programs_read_what_is_exported(run: Path, tmp_path: Path) -> None:
    assert here(run, "--export", "20", str(tmp_path / "out")).exit_code == 0
    found = ocp.PyTreeCheckpointer().restore(tmp_path / "out")
    assert found.keys() == weights(20).keys()
    np.testing.assert_array_equal(found["parameters.weight"], weights(20)["parameters.weight"])
    assert "is there already" in here(run, "--export", "20", str(tmp_path / "out")).stderr
    damage(run, 20)
    assert "20 is damaged" in here(run, "--export", "20", str(tmp_path / "other")).stderr
    assert not (tmp_path / "other").exists()


def test_what_is_said_of_an_export_is_what_reads_it(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From another folder too: orbax takes no relative path."""
    monkeypatch.chdir(tmp_path)
    said = here(run, "--export", "20", "out").output.replace("\n", " ")
    (call,) = re.findall(r"orbax\.checkpoint(\..*\))", said)
    monkeypatch.chdir(run)
    np.testing.assert_array_equal(eval(f"ocp{call}")["parameters.weight"], weights(20)["parameters.weight"])


def test_nothing_is_removed_without_yes(run: Path) -> None:
    shown = here(run, "--prune").output
    assert shown.count("would remove") == 2
    assert steps(run) == [10, 20, 30, 40]
    assert here(run, "--prune", "--yes").output.count("removed /") == 2
    assert steps(run) == [20, 40]
    assert "nothing to remove: the run's config keeps all of [20, 40]" in here(run, "--prune").output


def test_nothing_is_removed_from_a_run_that_trains(run: Path) -> None:
    lock = FolderLock(run)
    lock.take()
    refused = here(run, "--remove", "10", "--yes")
    assert refused.exit_code == 2
    assert "is in use: a process trains in it" in refused.stderr
    lock.close()
    assert here(run, "--remove", "10", "--yes").exit_code == 0


def test_a_damaged_one_can_be_removed_and_an_older_one_is_the_newest(run: Path) -> None:
    """As the message advises that refuses it."""
    (run / "checkpoints/40/checkpoint.json").unlink()
    removed = here(run, "--remove", "40", "--remove", "40", "--yes")
    assert (removed.exit_code, removed.output.count("removed /")) == (0, 1)
    assert steps(run) == [10, 20, 30]
    assert Checkpoints(run / "checkpoints", keep=9).meta(30) == {"meshwright": "0.1"}


def test_a_newer_one_is_listed_as_such(run: Path) -> None:
    path = run / "checkpoints/40" / HEADER
    header = read_sealed(path) | {"format": 99}
    path.unlink()
    write_sealed(path, header)
    assert "was written by a newer meshwright (0.1; format 99" in " ".join(here(run).output.split())


def test_what_makes_no_sense_is_refused(run: Path, tmp_path: Path) -> None:
    for options, message in {
        ("--prune", "--verify"): "--verify and --prune: one at a time",
        ("--yes",): "--yes is for --remove and --prune",
        ("--remove", "11"): r"no complete checkpoint of step 11; there are those of steps \[10, 20, 30, 40\]",
        ("--diff", "10", "11"): "no complete checkpoint of step 11",
    }.items():
        result = here(run, *options)
        assert result.exit_code == 2
        assert re.search(message, result.output), (options, result.output)
    assert "holds no config.yaml" in here(tmp_path / "nowhere").output
    shutil.rmtree(run / "checkpoints")
    assert here(run).output == f"{run} has no checkpoint yet\n"
