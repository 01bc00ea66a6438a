"""The command line as a user meets it: help, exit codes, one message for what went wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from trainer.cli import app
from trainer.config import Config
from trainer.errors import ConfigError

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/golden"


def meshwright(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The real thing, in a process of its own, on a terminal of 80 columns."""
    return subprocess.run(
        [sys.executable, "-m", "trainer", *args],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "80", "TERMINAL_WIDTH": "80", "NO_COLOR": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


Fake = Callable[..., list[Any]]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Stands in for the trainer, and notes what it is asked; `fake(error)` makes it raise."""
    calls: list[Any] = []
    errors: list[BaseException] = []

    class Trainer:
        stopped_by: signal.Signals | None = None

        def __init__(self, config: Config) -> None:
            calls.append(config)

        @classmethod
        def from_run(cls, folder: Path, overrides: Any = ()) -> Trainer:
            calls.append((folder, tuple(overrides)))
            return cls(Config())

        def train(self) -> None:
            calls.append("train")
            if errors:
                raise errors[0]

        def generate(self, prompt: str, **options: Any) -> str:
            calls.append((prompt, options))
            return prompt + "…"

        def evaluate(self) -> dict[str, float]:
            return {"loss": 2.5, "tokens": 4096}

        def what_is_measured(self) -> str:
            return "measured on ten documents"

    def show(config: Config, json: bool) -> None:
        calls.append((config, json))

    def show_schedule(config: Config, out: Path | None) -> None:
        calls.append((config, out))

    def show_plan(*options: Any, **asked: Any) -> None:
        calls.append((*options, asked))

    def show_search(*options: Any, **asked: Any) -> None:
        calls.append((*options, asked))

    def write_report(folder: Path, out: Path | None) -> Path:
        calls.append((folder, out))
        return out or folder / "report.html"

    def show_kernels(kind: str | None) -> bool:
        calls.append(kind)
        return not errors

    def verify_checkpoints(run: Path) -> bool:
        calls.append(run)
        return not errors

    def show_offload(folder: Path | None) -> None:
        calls.append(folder)

    modules: dict[str, dict[str, Any]] = {
        "trainer.trainer": {"Trainer": Trainer},
        "trainer.report": {"write_report": write_report},
        "trainer.show": {"show": show},
        "trainer.show_schedule": {"show_schedule": show_schedule},
        "trainer.planner.show_plan": {"show_plan": show_plan},
        "trainer.planner.show_search": {"show_search": show_search},
        "trainer.bench.show_kernels": {"show_kernels": show_kernels},
        "trainer.show_checkpoints": {"verify_checkpoints": verify_checkpoints},
        "trainer.bench.show_offload": {"show_offload": show_offload},
        "trainer.processes.hosts": {"read_hosts": lambda path: []},
        "trainer.processes.remote": {"remote_commands": lambda *given: []},
        "trainer.processes.supervisor": {"supervise": lambda make, restarts, say: len(errors)},
        "trainer.doctor": {"doctor": lambda: len(errors)},
    }
    for name, contents in modules.items():
        module = types.ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.chdir(ROOT)

    def control(error: BaseException | None = None) -> list[Any]:
        errors.extend(filter(None, [error]))
        return calls

    return control


COMMANDS = [
    "train",
    "generate",
    "eval",
    "checkpoints",
    "report",
    "show",
    "schedule",
    "plan",
    "search",
    "bench",
    "bench kernels",
    "bench offload",
    "launch",
    "slurm",
    "doctor",
]


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help(command: str) -> None:
    """After a change that is meant: UPDATE_GOLDEN=1 pytest tests/trainer/test_cli.py, and read the diff."""
    result = meshwright(*command.split(), "--help")
    golden = GOLDEN / f"help_{command.replace(' ', '_') or 'meshwright'}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(result.stdout)
    assert result.returncode == 0
    assert result.stdout == golden.read_text()


def test_help_waits_for_no_heavy_import() -> None:
    code = "import sys, trainer.cli; print({'jax', 'numpy', 'pydantic', 'yaml'} & sys.modules.keys())"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


def test_the_examples_in_help_are_commands_that_parse(fake: Fake) -> None:
    for file in GOLDEN.glob("help_*.txt"):
        for line in file.read_text().splitlines():
            if "Example: meshwright" in line:
                args = line.split("meshwright ")[1].replace('"', "").split()
                assert CliRunner().invoke(app, args).exit_code == 0, line


def test_train_takes_a_config_and_overrides(fake: Fake) -> None:
    result = CliRunner().invoke(
        app, ["train", "configs/quickstart.yaml", "train.steps=30", "mesh.data=1", "mesh.virtual_devices=4"]
    )
    assert result.exit_code == 0, result.output
    config, done = fake()
    assert (config.train.steps, config.mesh.data, done) == (30, 1, "train")


def test_a_run_that_a_signal_ended_does_not_look_finished(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["trainer.trainer"].Trainer, "stopped_by", signal.SIGTERM)
    assert CliRunner().invoke(app, ["train", "configs/quickstart.yaml"]).exit_code == 143


def test_generate_prints_what_the_model_writes(fake: Fake) -> None:
    result = CliRunner().invoke(app, ["generate", "runs/a", "--prompt", "def ", "--top-k", "5", "--seed", "3"])
    assert result.stdout == "def …\n"
    assert fake()[0] == (Path("runs/a"), ())
    assert fake()[-1] == ("def ", {"max_tokens": 100, "temperature": 1.0, "top_k": 5, "seed": 3})


STEERING = "é\ttab\n\x1b[2J\x1b]0;title\x07\r\x00\x7f\x9b"


def test_generated_text_is_exact_in_a_pipe(fake: Fake) -> None:
    result = CliRunner().invoke(app, ["generate", "runs/a", "--prompt", STEERING])
    assert result.stdout_bytes == f"{STEERING}…\n".encode()


def test_generated_text_does_not_steer_the_terminal(
    fake: Fake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    app(["generate", "runs/a", "--prompt", STEERING], standalone_mode=False)
    assert capsys.readouterr().out == "é\ttab\n\\x1b[2J\\x1b]0;title\\x07\\x0d\\x00\\x7f\\x9b…\n"


def test_eval_prints_what_it_measured(fake: Fake) -> None:
    result = CliRunner().invoke(app, ["eval", "runs/a", "train.eval_batches=2"])
    assert [line.split() for line in result.stdout.splitlines()] == [["loss", "2.5000"], ["tokens", "4,096"]]
    assert result.stderr == "measured on ten documents\n"
    assert fake()[0] == (Path("runs/a"), ("train.eval_batches=2",))


def test_show_can_speak_to_programs(fake: Fake) -> None:
    CliRunner().invoke(app, ["show", "configs/quickstart.yaml"])
    CliRunner().invoke(app, ["show", "configs/quickstart.yaml", "--json"])
    assert [json for _, json in fake()] == [False, True]


def test_schedule_takes_a_file_to_write(fake: Fake) -> None:
    CliRunner().invoke(app, ["schedule", "configs/quickstart.yaml"])
    CliRunner().invoke(app, ["schedule", "configs/quickstart.yaml", "mesh={pipeline: 4}", "--out", "a.svg"])
    assert [(config.mesh.pipeline, out) for config, out in fake()] == [(2, None), (4, Path("a.svg"))]


def test_doctor_says_by_its_exit_code_whether_the_machine_can_train(fake: Fake) -> None:
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 0
    fake(OSError())
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 1


def test_bench_says_by_its_exit_code_whether_kernels_ran(fake: Fake) -> None:
    assert CliRunner().invoke(app, ["bench", "kernels"]).exit_code == 0
    assert CliRunner().invoke(app, ["bench", "kernels", "--gpu", "a100"]).exit_code == 0
    assert fake(OSError()) == [None, "a100"]
    assert CliRunner().invoke(app, ["bench", "kernels"]).exit_code == 1


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ConfigError("mesh: use [1, 2]"), 2, "error: mesh: use [1, 2]\n"),
        (OSError(28, "No space left on device", "runs/a"), 1, "error: runs/a: No space left on device\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
    ids=["a wrong config", "a full disk", "ctrl-c"],
)
def test_what_went_wrong_is_one_message_and_an_exit_code(
    fake: Fake, error: BaseException, code: int, message: str
) -> None:
    fake(error)
    result = CliRunner().invoke(app, ["train", "configs/quickstart.yaml"])
    assert (result.exit_code, result.stderr, result.stdout) == (code, message, "")


@pytest.mark.parametrize("args", [["--debug", "train"], ["train", "--debug"]], ids=" ".join)
def test_debug_shows_where_it_went_wrong(fake: Fake, args: list[str]) -> None:
    fake(ConfigError("no"))
    result = CliRunner().invoke(app, [*args, "configs/quickstart.yaml"])
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert result.stderr.endswith("error: no\n")


def test_a_bug_is_not_hidden(fake: Fake) -> None:
    fake(AssertionError("a bug"))
    result = CliRunner().invoke(app, ["train", "configs/quickstart.yaml"])
    assert isinstance(result.exception, AssertionError)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["train"], "Missing argument 'CONFIG'"),
        (["trian"], "No such command 'trian'"),
        (["train", "configs/none.yaml"], "error: configs/none.yaml: no such file"),
        (["show", "configs/quickstart.yaml", "mesh.tensro=4"], "error: command line: mesh.tensro=4: unknown key"),
        (["generate", "runs/a"], "Missing option '--prompt'"),
        (["bench", "kernels", "--gpu", "h10"], "error: no GPU 'h10'; did you mean h100?"),
        (["generate", "runs/a", "--prompt", "a", "--temperature", "-1"], "Invalid value for '--temperature'"),
    ],
    ids=lambda case: " ".join(case) if isinstance(case, list) else "",
)
def test_a_wrong_command_exits_with_2(args: list[str], message: str) -> None:
    result = meshwright(*args)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
