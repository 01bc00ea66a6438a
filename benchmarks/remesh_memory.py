"""What a process reads and what its host holds, when a state is loaded by one, two or four processes.

    python -m benchmarks.remesh_memory        writes benchmarks/results/remesh-memory-DATE.txt

A model of 29M parameters with AdamW is saved by eight devices of one process, cut by ZeRO 3, and loaded on other
layouts. Of each process: the bytes that it holds then, the bytes it has read from files, and by how much its memory was
larger in between. Devices are virtual ones of the CPU: what they hold is host memory, and replicas share it.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax

from sharding.mesh import make_mesh
from trainer import logical
from trainer.checkpoint import Checkpoints
from trainer.config import Config
from trainer.program import Program
from trainer.run_folder import describe_environment

MODEL = {"layers": 8, "hidden": 512, "heads": 8, "ffn": 1536, "vocab": 8192}
SAVED: dict[str, Any] = {"mesh": {"data": 8}, "zero": {"stage": 3}}
LOADED: dict[str, dict[str, Any]] = {
    "zero3 data8": SAVED,
    "zero1 data2 tensor4": {"mesh": {"data": 2, "tensor": 4}, "zero": {"stage": 1}},
    "zero2 interleaved2 data4": {
        "mesh": {"pipeline": 2, "data": 4},
        "pipeline": {"schedule": "interleaved_1f1b", "virtual_stages": 2},
        "zero": {"stage": 2},
        "batch": {"global": 48, "micro": 1},
    },
    "zero3 data6": {"mesh": {"data": 6}, "zero": {"stage": 3}},
    "zero3 data5": {"mesh": {"data": 5}, "zero": {"stage": 3}, "batch": {"global": 40}},
}
"""Six divides the MLP alone, and five nothing: such arrays are whole on every device, until they are padded."""
PROCESSES = (1, 2, 4, 5)
RESULTS = Path(__file__).parent / "results"
MB = 1e6


def config_of(sections: dict[str, Any]) -> Config:
    return Config.from_dict({"model": MODEL, "batch": {"global": 48}, **sections})


def num_devices(sections: dict[str, Any]) -> int:
    return config_of(sections).mesh.num_devices or 1


def program_of(sections: dict[str, Any]) -> Program:
    config = config_of(sections)
    return Program(config, make_mesh(config.mesh, jax.devices()[: config.mesh.num_devices]))


def save(folder: str) -> None:
    program = program_of(SAVED)
    checkpoints = Checkpoints(folder, keep=1)
    checkpoints.save(1, logical.to_logical(program, program.init()), {})
    checkpoints.close()


def load(folder: str, name: str) -> dict[str, float]:
    """What this process has held, read and needed besides, in bytes."""
    program = program_of(LOADED[name])
    abstract = logical.abstract_logical(program)
    checkpoints = Checkpoints(folder, keep=1)
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from now on
    before, read = _memory("VmRSS"), _read()
    arrays = checkpoints.restore(1, abstract)
    held = sum(_distinct_bytes(array) for array in arrays.values())
    return {"held": held, "read": _read() - read, "beside": _memory("VmHWM") - before - held}


def _distinct_bytes(array: jax.Array) -> int:
    """Of the parts that devices of this process hold, each counted once."""
    return sum({str(shard.index): shard.data.nbytes for shard in array.addressable_shards}.values())


def _memory(kind: str) -> int:
    found = re.search(rf"{kind}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return 1024 * int(found[1])


def _read() -> int:
    """Bytes that this process has asked the system for, whether a cache had them or not."""
    found = re.search(r"rchar: (\d+)", Path("/proc/self/io").read_text())
    assert found
    return int(found[1])


def by_processes(folder: str, name: str, count: int) -> list[dict[str, float]]:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "benchmarks.remesh_memory", folder, name, address, str(count)]
    started = [subprocess.Popen([*command, str(index)], stdout=subprocess.PIPE, text=True) for index in range(count)]
    outputs = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit(f"{name}: one of {count} processes failed")
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def be_one_of_many(folder: str, name: str, address: str, count: int, index: int) -> None:
    """Prints, as JSON, what this process finds; for no name, saves."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", num_devices(LOADED[name] if name else SAVED) // count)
    if count > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(address, count, index)
    print(json.dumps(load(folder, name) if name else save(folder)), flush=True)


def main() -> None:
    lines = [
        *_header(),
        f"{'loaded on':<26}{'processes':>10}{'held':>9}{'read':>9}{'beside':>9}   MB, of the process with most",
    ]
    print("\n".join(lines))
    with tempfile.TemporaryDirectory() as folder:
        by_processes(folder, "", 1)
        size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
        for name, sections in LOADED.items():
            for count in (count for count in PROCESSES if num_devices(sections) % count == 0):
                found = by_processes(folder, name, count)
                most = {key: max(one[key] for one in found) / MB for key in found[0]}
                lines.append(f"{name:<26}{count:>10}{most['held']:>9.1f}{most['read']:>9.1f}{most['beside']:>9.1f}")
                print(lines[-1], flush=True)
        lines.append(f"The checkpoint: {size / MB:.1f} MB.")
        print(lines[-1])
    path = RESULTS / f"remesh-memory-{datetime.date.today()}.txt"
    path.write_text("\n".join(lines) + "\n")
    print(f"written to {path}")


def _header() -> list[str]:
    environment = describe_environment([], None)
    packages = ", ".join(f"{name} {environment['packages'][name]}" for name in ("jax", "jaxlib", "numpy"))
    return [
        "command:  python -m benchmarks.remesh_memory",
        f"date:     {environment['start']}",
        f"commit:   {environment['git_commit']}",
        f"machine:  {platform.system()} {platform.machine()}, {os.cpu_count()} cores, virtual CPU devices",
        f"versions: python {environment['python']}, {packages}",
        "measured: held: the parts of arrays that devices of the process hold, each once; read: asked of files;",
        "          beside: by how much the peak of its memory (VmHWM) was above what it was before and what it holds.",
        "",
    ]


if __name__ == "__main__":
    if sys.argv[1:]:
        be_one_of_many(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:
        main()
