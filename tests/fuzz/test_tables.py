"""Whatever stands in a table of a schedule, of published runs or of a GPU, it is read, or refused in clear words."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import strategies as st

from sharding.pipeline import makers, schedule_file
from tests.fuzz import damage
from tests.fuzz.harness import fuzzed, only_clear_errors
from trainer.planner import gpu, published

NUMBERS = st.integers(0, 9) | st.sampled_from([-1, 10**8, 999_999_999, 10**12, "", "²", "x", "1.5"])
LINES = st.lists(st.tuples(NUMBERS, NUMBERS, st.sampled_from(["forward", "backward", "x"]), NUMBERS, NUMBERS, NUMBERS))


def _schedule() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        schedule_file.write(makers.make("1f1b", 2, 1, 3), Path(folder, "x.csv"))
        return Path(folder, "x.csv").read_bytes()


SCHEDULE = _schedule()
TABLES = damage.bytes_of(SCHEDULE) | LINES.map(
    lambda lines: "\n".join([",".join(schedule_file.HEADER), *(",".join(map(str, line)) for line in lines)]).encode()
)


@fuzzed(TABLES)
def test_any_schedule(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder, only_clear_errors(ValueError):
        Path(folder, "x.csv").write_bytes(content)
        schedule_file.read(Path(folder, "x.csv"), 2, 1, 3)


RUNS = published.RUNS.read_bytes().splitlines(keepends=True)


@fuzzed(damage.bytes_of(RUNS[0] + RUNS[1]) | st.just(RUNS[0] + b'"' + b"x" * 200_000))
def test_any_published_runs(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder, only_clear_errors():
        Path(folder, "x.csv").write_bytes(content)
        published.read(Path(folder, "x.csv"))


GPU = Path(gpu.__file__).with_name("gpus").joinpath("h100.yaml").read_bytes()


@fuzzed(damage.bytes_of(GPU))
def test_any_gpu(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder, only_clear_errors():
        Path(folder, "x.yaml").write_bytes(content)
        gpu.load(f"{folder}/x.yaml")
