"""Saved on one layout and loaded on another: every ordered pair of a table of layouts.

    python -m benchmarks.remesh            all pairs; writes benchmarks/results/remesh-DATE.txt
    python -m benchmarks.remesh NAME...    the pairs among the named layouts, and writes nothing

A run trains three steps, is saved, and goes on for five. Every layout loads what it saved: all logical arrays must be
its own, bit for bit, and so must the five losses that follow, but for what another order of sums rounds otherwise.
Nothing is converted in between. A layout of several processes is so many processes of this machine, which exchange by
gloo. Exits with 1 where something differs by more than it may.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental.multihost_utils import process_allgather

from benchmarks.equality import on_devices
from sharding.mesh import make_mesh
from tests.trainer.layouts import TWO_CHUNKS, Row, Task, batches
from trainer.checkpoint import Checkpoints, made
from trainer.config import Config
from trainer.keeper import Keeper
from trainer.offload.make import make_keeper
from trainer.program import Program
from trainer.run_folder import describe_environment

Arrays = dict[str, np.ndarray]

SAVED, AFTER = 3, 5
"""Steps before the checkpoint, and after it."""
DEVICES = 8
ATTEMPTS = 3
"""Of several processes: gloo waits 30 seconds for all of them, which is too short for a busy machine to compile in."""
MAY_DIFFER = {"float32": 2 * 2.0**-23, "bfloat16": 2e-3}
"""How far a loss may be from that of a layout that adds in another order, relative to it: in float32 two units in the
last place, 1.2e-7 to 2.4e-7."""
TASK = Task("llama-tied-deep", "packed", "adamw", dropout=0.2)
"""Five layers, so that stages are uneven; sizes that do not divide; one weight that two stages use."""
INTERLEAVED = Row(TASK, zero=2, pipeline=2, data=2, tensor=2, **TWO_CHUNKS)
HOST = {"offload.optimizer": "host", "offload.bucket": 500}
BFLOAT16 = {"precision.compute": "bfloat16"}
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Layout:
    """Where the state of the task lies, and on how many processes."""

    name: str
    row: Row
    settings: Mapping[str, Any] = field(default_factory=dict)
    processes: int = 1

    @property
    def compute(self) -> str:
        return self.settings.get("precision.compute", "float32")

    def config(self, folder: Path) -> Config:
        """`folder` is for what is offloaded to files."""
        settings = {"train.steps": SAVED + AFTER, **self.settings}
        if settings.get("offload.optimizer") == "nvme":
            settings["offload.path"] = str(folder)
        return Config.from_dict(self.row.config.to_dict(), settings)

    @property
    def order(self) -> tuple[Any, ...]:
        """Layouts of the same add up the same parts in the same order: only where masters and moments are, differs."""
        return self.row, self.compute, self.processes, self.settings.get("offload.parameters")

    def may_differ(self, other: Layout) -> float:
        """How far losses may be apart, relatively."""
        return 0.0 if self.order == other.order else max(MAY_DIFFER[layout.compute] for layout in (self, other))


LAYOUTS = [
    Layout("one device", Row(TASK)),
    Layout("zero0 data4", Row(TASK, zero=0, data=4)),
    Layout("zero1 data4", Row(TASK, zero=1, data=4)),
    Layout("zero2 data4", Row(TASK, zero=2, data=4)),
    Layout("zero3 data4", Row(TASK, zero=3, data=4)),
    Layout("zero3 data3", Row(TASK, zero=3, data=3, accumulation=4)),
    Layout("tensor4", Row(TASK, tensor=4)),
    Layout("replica2 data2 tensor2", Row(TASK, zero=2, replica=2, data=2, tensor=2)),
    Layout("1f1b2 data2", Row(TASK, zero=1, pipeline=2, data=2, accumulation=4)),
    Layout("interleaved2 data2 tensor2", INTERLEAVED),
    Layout("gpipe3 data2", Row(TASK, zero=3, pipeline=3, data=2, schedule="gpipe", keep="inputs", head="last")),
    Layout("zero1 data4 host", Row(TASK, zero=1, data=4), HOST),
    Layout("zero3 data4 streamed", Row(TASK, zero=3, data=4), HOST | {"offload.parameters": "host"}),
    Layout("zero3 data3 nvme", Row(TASK, zero=3, data=3, accumulation=4), HOST | {"offload.optimizer": "nvme"}),
    Layout("bfloat16 zero3 data4", Row(TASK, zero=3, data=4), BFLOAT16),
    Layout("bfloat16 zero3 data4 host", Row(TASK, zero=3, data=4), BFLOAT16 | HOST),
    Layout("bfloat16 interleaved2 tensor2", Row(TASK, pipeline=2, tensor=2, **TWO_CHUNKS, accumulation=4), BFLOAT16),
    Layout("zero1 data4, 2 processes", Row(TASK, zero=1, data=4), processes=2),
    Layout("interleaved2 data2 tensor2, 4 processes", INTERLEAVED, processes=4),
]


@dataclass(frozen=True)
class Result:
    """Of a layout that loaded a checkpoint, or made the one that others load."""

    losses: Sequence[float]
    """Of the steps after it."""
    bits: int = 0
    """Of the state, that are not those that were saved."""

    def apart(self, other: Result) -> float:
        """The largest relative difference from the other's losses."""
        return max(abs(one - two) / two for one, two in zip(self.losses, other.losses, strict=True))


class Runs:
    """The runs of one layout on the devices that JAX has; its train step is compiled once.

    `folder` holds what layouts have saved, each in a folder of its name.
    """

    def __init__(self, layout: Layout, folder: Path) -> None:
        self.layout = layout
        self.folder = folder

    @cached_property
    def program(self) -> Program:
        config = self.layout.config(self.folder)
        return Program(config, make_mesh(config.mesh, jax.devices()[: self.layout.row.num_devices]))

    def save(self) -> Result:
        """A new run: writes its checkpoint and, beside, the state as numpy arrays; goes on."""
        keeper, checkpoints = self._keeper(), self._checkpoints(self.layout)
        keeper.initialise()
        self._losses(keeper, 0, SAVED)
        state = {name: process_allgather(array, tiled=True) for name, array in made(keeper.logical()).items()}
        checkpoints.save(SAVED, keeper.logical(), {})
        checkpoints.close()
        if jax.process_index() == 0:
            np.savez(_state_file(checkpoints), **state)
        return Result(self._losses(keeper, SAVED, AFTER))

    def load(self, layout: Layout) -> Result:
        """Goes on from what `layout` has saved."""
        keeper, checkpoints = self._keeper(), self._checkpoints(layout)
        keeper.restore(partial(checkpoints.restore, SAVED, keeper.abstract()))
        bits = _different_bits(made(keeper.logical()), _read_state(_state_file(checkpoints)))
        return Result(self._losses(keeper, SAVED, AFTER), bits)

    def _keeper(self) -> Keeper:
        return make_keeper(self.program, lambda note: None)

    def _checkpoints(self, layout: Layout) -> Checkpoints:
        return Checkpoints(self.folder / layout.name, keep=1)

    def _losses(self, keeper: Keeper, first: int, count: int) -> list[float]:
        texts = batches(TASK.text)
        steps = range(first, first + count)
        return [float(keeper.step(on_devices(self.program, texts[step % len(texts)])).loss) for step in steps]


def _state_file(checkpoints: Checkpoints) -> Path:
    return checkpoints.folder.with_name(f"{checkpoints.folder.name}.npz")


@cache
def _read_state(file: Path) -> Arrays:
    with np.load(file) as arrays:
        return dict(arrays)


def _different_bits(found: Mapping[str, jax.Array], expected: Arrays) -> int:
    """Of the shards that this process holds."""
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    count = 0
    for name, array in found.items():
        assert (array.shape, array.dtype) == (expected[name].shape, expected[name].dtype), name
        for shard in array.addressable_shards:
            ours, theirs = (np.asarray(x).tobytes() for x in (shard.data, expected[name][shard.index]))
            count += int(np.bitwise_count(np.frombuffer(ours, np.uint8) ^ np.frombuffer(theirs, np.uint8)).sum())
    return count


def run(layout: Layout, others: Sequence[Layout], folder: Path) -> list[Result]:
    """What a layout makes of each of the others' checkpoints; with no others, its own new run.

    On several processes the losses are the same for all, and bits that differ are added up.
    """
    if layout.processes == 1:
        return _run_here(layout.name, [other.name for other in others], folder)
    for _ in range(ATTEMPTS):
        outputs = _outputs(layout, others, folder)
        if outputs is not None:
            break
    else:
        raise SystemExit(f"{layout.name}: a process failed {ATTEMPTS} times")
    found = [[Result(**result) for result in json.loads(output.splitlines()[-1])] for output in outputs]
    assert all(one.losses == first.losses for of_one in found for one, first in zip(of_one, found[0], strict=True))
    return [Result(same[0].losses, sum(one.bits for one in same)) for same in zip(*found, strict=True)]


def _outputs(layout: Layout, others: Sequence[Layout], folder: Path) -> list[str] | None:
    """What so many new processes print; None where one fails."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    task = {"name": layout.name, "others": [other.name for other in others], "folder": str(folder)}
    command = [sys.executable, "-m", "benchmarks.remesh", "--process", json.dumps(task), address]
    started = [
        subprocess.Popen([*command, str(index)], stdout=subprocess.PIPE, text=True) for index in range(layout.processes)
    ]
    outputs = [process.communicate()[0] for process in started]
    return None if any(process.returncode for process in started) else outputs


def be_one_of_many(task: dict[str, Any], address: str, index: int) -> None:
    """Prints, as JSON, what this process finds."""
    layout = _named(task["name"])
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_compilation_cache_dir", str(Path(task["folder"], "xla")))  # it comes back to load
    _use_cpus(layout.row.num_devices // layout.processes)
    jax.distributed.initialize(address, layout.processes, index)
    found = _run_here(layout.name, task["others"], Path(task["folder"]))
    print(json.dumps([vars(result) for result in found]), flush=True)
    jax.distributed.shutdown()


def _run_here(name: str, others: Sequence[str], folder: Path) -> list[Result]:
    runs = _runs(name, folder)
    return [runs.load(_named(other)) for other in others] or [runs.save()]


@cache
def _runs(name: str, folder: Path) -> Runs:
    return Runs(_named(name), folder)


def _named(name: str) -> Layout:
    return next(layout for layout in LAYOUTS if layout.name == name)


def _use_cpus(devices: int) -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", devices)


def problems(saver: Layout, own: Result, loader: Layout, result: Result) -> list[str]:
    """What is not as it should be of a pair."""
    pair, apart, most = f"{saver.name} -> {loader.name}", result.apart(own), loader.may_differ(saver)
    said = [f"{pair}: {result.bits} bits of the state differ"] if result.bits else []
    is_fine = apart <= most  # not so for NaN
    return said if is_fine else [*said, f"{pair}: a loss differs by {apart:.1e}, and may by {most:.1e}"]


def main(names: list[str]) -> int:
    """Prints a row for each layout that loads; how many things are not as they should be."""
    layouts = [layout for layout in LAYOUTS if layout.name in names or not names]
    if unknown := set(names) - {layout.name for layout in layouts}:
        raise SystemExit(f"no layout is called {', '.join(sorted(unknown))}; they are {[x.name for x in LAYOUTS]}")
    _use_cpus(DEVICES)
    lines = _header(names)  # of the code that runs: it may change meanwhile
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        own = [run(layout, [], Path(folder))[0] for layout in layouts]
        width = max(len(layout.name) for layout in layouts)
        lines.append(f"{'loaded on, saved on':<{width + 3}}" + "".join(f"{n:>6}" for n in range(1, len(layouts) + 1)))
        print("\n".join(lines), flush=True)
        for number, layout in enumerate(layouts, 1):
            found = run(layout, layouts, Path(folder))
            pairs = list(zip(layouts, own, found, strict=True))
            cells = [_cell(result.apart(one)) for _, one, result in pairs]
            said = [text for saver, one, result in pairs for text in problems(saver, one, layout, result)]
            wrong += len(said)
            lines += [f"{number:>2} {layout.name:<{width}}" + "".join(f"{cell:>6}" for cell in cells), *said]
            print("\n".join(lines[-1 - len(said) :]), flush=True)
    lines += ["", f"{wrong} things are not as they should be in {len(layouts) ** 2} pairs."]
    print("\n".join(lines[-2:]))
    if not names:
        path = RESULTS / f"remesh-{datetime.date.today()}.txt"
        path.write_text("\n".join(lines) + "\n")
        print(f"written to {path}")
    return wrong


def _cell(apart: float) -> str:
    return "=" if apart == 0 else f"{apart:.0e}".replace("e-0", "e-")


def _limits() -> str:
    return ", ".join(f"{most:.1e} in {compute}" for compute, most in MAY_DIFFER.items())


def _header(names: Sequence[str]) -> list[str]:
    """What runs, and where."""
    environment = describe_environment([], None)
    packages = ", ".join(f"{name} {environment['packages'][name]}" for name in ("jax", "jaxlib", "numpy"))
    return [
        f"command:  {shlex.join(['python', '-m', 'benchmarks.remesh', *names])}",
        f"date:     {environment['start']}",
        f"commit:   {environment['git_commit']}",
        f"machine:  {platform.system()} {platform.machine()}, {os.cpu_count()} cores, {DEVICES} virtual CPU devices",
        f"versions: python {environment['python']}, {packages}",
        f"measured: {SAVED} steps, saved, loaded, {AFTER} steps. Of a pair all logical arrays of the state, by bits,",
        "          and the losses after it, beside those of the run that was saved: the largest relative difference",
        "          is printed, and = where no bit of any differs. Columns saved, rows loaded. Limits: no bit of the",
        f"          state; losses {_limits()}; none where both add up the same",
        "          parts in the same order, and differ in where masters and moments are.",
        "",
    ]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--process"]:
        be_one_of_many(json.loads(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    else:
        sys.exit(main(sys.argv[1:]) > 0)
