"""One kernel of flash attention, compiled for a GPU that is not there: registers, spills, shared memory, tensor cores.

Every compile is a process of its own with a time limit: what goes wrong in a compiler ends it without a word, or never.
Such a process is this module, run with a job on its standard input.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, astuple, dataclass, field
from importlib.metadata import files
from pathlib import Path
from typing import Any

from pallas_kernels.flash.spec import Spec, Tile, Tiles
from trainer.processes.own_command import own_command

KERNELS = ("forward", "d_queries", "d_keys")
FEATURES = ("causal", "segments", "alibi", "window", "soft_cap")
TENSOR_CORES = {"mma.sync": r"\bmma\.sync", "wgmma": r"\bwgmma\.mma_async", "tcgen05": r"\btcgen05\.mma\b"}
"""Instructions of PTX: up to Ampere and on GeForce, on Hopper, on Blackwell of data centres."""
SECONDS = 180
BATCH, HEADS, KV_HEADS, WINDOW, SOFT_CAP = 2, 8, 2, 512, 30.0
SMALLER = {"sm_86": (8, 6), "sm_89": (8, 9), "sm_120": (12, 0)}
"""Compute capabilities of GPUs with the least shared memory that bfloat16 can be had with: 99 KiB for a program."""


@dataclass(frozen=True)
class Job:
    gpu: str
    """One of the planner's, the absolute path of a file that describes one, or one of SMALLER."""
    kernel: str
    tile: Tile
    head_dim: int
    dtype: str = "bfloat16"
    features: str = " ".join(FEATURES)
    """Of FEATURES."""
    lengths: tuple[int, int] = (2000, 1999)
    """Of queries and keys: ragged, so that every write needs a guard, and loads take more registers."""
    heads: int = HEADS
    kv_heads: int = KV_HEADS
    spills: bool = True
    """False: XLA refuses a kernel that keeps registers in memory."""


@dataclass(frozen=True)
class Report:
    """What became of a job; `error` alone where nothing did."""

    registers: int = 0
    """Of a thread."""
    spilled: int = 0
    """Bytes of a thread's registers that are written to memory and read again."""
    shared_memory: int = 0
    """Bytes of a program."""
    threads: int = 0
    tensor_cores: dict[str, int] = field(default_factory=dict)
    """Instructions, by their name in TENSOR_CORES."""
    stores: int = 0
    """Instructions that write to global memory."""
    bare_stores: int = 0
    """Those of them that no predicate guards."""
    seconds: float = 0
    error: str = ""


def probe(job: Job) -> Report:
    """Compiles in a process of its own."""
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "LLVM_DISABLE_SYMBOLIZATION": "1",  # which takes minutes, when a compiler dies
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    command = own_command("trainer.bench.probe")
    try:
        done = subprocess.run(
            command,
            input=json.dumps([_target(job.gpu), *astuple(job)]),
            env=environment,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return Report(error=f"not done after {SECONDS} seconds")
    if done.returncode < 0:
        return Report(error=f"the compiler ended with signal {-done.returncode}")
    if done.returncode:
        raise RuntimeError(done.stderr)
    return Report(**json.loads(done.stdout.splitlines()[-1]))


def compile_job(job: Job, target: str) -> Report:
    """Compiles in this process.

    Args:
        target: what XLA needs to know of the GPU.
    """
    import jax
    import numpy as np
    from jax.experimental import topologies

    from pallas_kernels.flash.backward import backward
    from pallas_kernels.flash.forward import forward
    from pallas_kernels.flash.spec import Arrays

    topology = topologies.get_topology_desc(
        platform="cuda", topology_name=job.gpu, target_config=target, topology="1x1x1"
    )
    mesh = jax.sharding.Mesh(np.array(topology.devices), ("x",))

    def of_type(dtype: str, *shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype)

    num_queries, num_keys = job.lengths
    queries = of_type(job.dtype, BATCH, num_queries, job.heads, job.head_dim)
    keys = of_type(job.dtype, BATCH, num_keys, job.kv_heads, job.head_dim)
    ids = of_type("int32", BATCH, num_queries), of_type("int32", BATCH, num_keys)
    arrays = Arrays(
        queries,
        keys,
        keys,
        ids if "segments" in job.features else None,
        of_type("float32", job.heads) if "alibi" in job.features else None,
        of_type("int32"),
    )
    spec = Spec(
        scale=job.head_dim**-0.5,
        causal="causal" in job.features,
        window=WINDOW if "window" in job.features else None,
        soft_cap=SOFT_CAP if "soft_cap" in job.features else None,
        tiles=Tiles(job.tile, job.tile, job.tile),
        interpret=False,
    )
    per_query = of_type("float32", BATCH, job.heads, num_queries)
    wanted = {"d_queries": slice(0, 1), "d_keys": slice(1, 3)}  # the other kernel's results are not used: it is gone

    def run(arrays: Arrays, lse: Any, delta: Any, d_out: Any) -> Any:
        if job.kernel == "forward":
            return forward(spec, arrays)
        return backward(spec, arrays, lse, delta, d_out)[wanted[job.kernel]]

    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, jax.set_mesh(mesh), jax.default_device(mesh.devices.flat[0]):
        lowered = jax.jit(run).lower(arrays, per_query, per_query, queries)
        try:
            lowered.compile(
                compiler_options={
                    "xla_dump_to": folder,
                    "xla_dump_emitter_re": "ptx",
                    "xla_gpu_fail_ptx_compilation_on_register_spilling": not job.spills,
                }
            )
        except jax.errors.JaxRuntimeError as error:
            return Report(error=str(error).splitlines()[0])
        return _read(Path(folder), f"flash_{job.kernel}", time.perf_counter() - start)


def _target(gpu: str) -> str:
    from trainer.planner.gpu import load  # not by the process that compiles: it takes a second

    if gpu not in SMALLER:
        return load(gpu).xla_target
    major, minor = SMALLER[gpu]
    capability = f"cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: NONE }}"
    target = re.sub(r"cuda_compute_capability \{.*?\}", capability, load("a100").xla_target)
    return target.replace("optin: 166912", "optin: 101376").replace("per_core: 167936", "per_core: 102400")


def _read(folder: Path, name: str, seconds: float) -> Report:
    """From XLA's dump, and from the assembler, which is run once more to hear what it has to say."""
    (path,) = [path for path in folder.glob("*.ptx") if f".entry {name}" in path.read_text()]
    ptx = path.read_text()
    arch = re.search(r"\.target (\w+)", ptx)
    assert arch is not None
    said = subprocess.run(
        [str(assembler()), "-v", f"-arch={arch[1]}", str(path), "-o", os.devnull], capture_output=True, text=True
    ).stderr
    about = said[said.index(f"entry function '{name}'") :]
    spilled = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", about)
    registers = re.search(r"Used (\d+) registers", about)
    thunks = "".join(path.read_text() for path in folder.glob("*thunk_sequence.txt"))
    launch = re.search(rf"{name} grid:.*threads: \[(\d+), 1, 1\].*shared_memory: (\d+) bytes", thunks)
    assert spilled is not None, said
    assert registers is not None, said
    assert launch is not None, thunks
    stores = re.findall(r"^.*\bst\.global.*$", ptx, re.MULTILINE)
    return Report(
        registers=int(registers[1]),
        spilled=int(spilled[1]) + int(spilled[2]),
        shared_memory=int(launch[2]),
        threads=int(launch[1]),
        tensor_cores={name: n for name, form in TENSOR_CORES.items() if (n := len(re.findall(form, ptx)))},
        stores=len(stores),
        bare_stores=sum(not store.lstrip().startswith("@") for store in stores),
        seconds=round(seconds, 1),
    )


def assembler() -> Path:
    """NVIDIA's ptxas as it was installed beside jax, not one that the machine may have."""
    (path,) = [file.locate() for file in files("nvidia-cuda-nvcc") or [] if file.name == "ptxas"]
    return Path(str(path))


if __name__ == "__main__":
    target, *values = json.load(sys.stdin)
    values[2], values[6] = Tile(*values[2]), tuple(values[6])
    print(json.dumps(asdict(compile_job(Job(*values), target))))
