"""Several processes save one checkpoint: each its part, all or none, and all of them know which."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from trainer.checkpoint import Checkpoints
from trainer.checkpoint.sealed import read_sealed

ROOT = Path(__file__).parents[3]
PROCESSES = 2
ROWS = 100_000
PROCESS = """if True:
    import json, os, resource, sys
    import jax, numpy as np
    from jax.sharding import NamedSharding, PartitionSpec
    folder, rank, address = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    jax.distributed.initialize(address, 2, rank)
    from trainer.checkpoint import Checkpoints, draft, finite
    from trainer.errors import TrainingError
    draft.TIMEOUT = 30.0
    mesh = jax.make_mesh((4,), ("data",))
    checkpoints = Checkpoints(folder, keep=2)

    def arrays(step, last=0.0):
        row = np.arange({rows}, dtype=np.float32) + step
        row[-1] += last
        specs = {{"cut": PartitionSpec("data"), "whole": PartitionSpec(), "also whole": PartitionSpec()}}
        return {{
            name: jax.make_array_from_callback(row.shape, NamedSharding(mesh, spec), lambda at: row[at])
            for name, spec in specs.items()
        }}

    def save(step, last=0.0):
        try:
            checkpoints.save(step, arrays(step, last), {{"step": step}})
            checkpoints.wait()
        except (OSError, TrainingError) as error:
            return str(error)

    told = [save(1)]
    if rank == 1:
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, most))
    told.append(save(2))
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    told.append(save(3))
    told.append(save(4, np.nan))
    abstract = {{
        name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for name, x in arrays(3).items()
    }}
    found = checkpoints.restore(3, abstract)
    same = [bool((found[name] == x).all()) for name, x in arrays(3).items()]
    finite.is_in_host_memory = lambda array: False  # so that it is the devices that look
    looked = [finite.not_finite_on_devices(arrays(0, last)) for last in (0, np.inf)]
    print(json.dumps([told, checkpoints.steps(), same, looked]))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[object]]]:
    """Three saves, in the second of which the disk of process 1 is full: what each process was told."""
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": str(4 // PROCESSES)}
    code = PROCESS.format(rows=ROWS)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(folder), str(rank), address],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(PROCESSES)
    ]
    told = []
    for process in processes:
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        told.append(json.loads(output.splitlines()[-1]))
    return folder, told


def test_all_of_them_notice_where_one_fails(run: tuple[Path, list[list[object]]]) -> None:
    for told, steps, same, _ in run[1]:
        first, second, third, _ = told  # type: ignore[misc]
        assert (first, third) == (None, None)
        assert "The checkpoint of step 2 could not be written" in second
        assert "File too large" in second
        assert (steps, same) == ([1, 3], [True, True, True])
    (of_another, *_), (of_its_own, *_) = run[1]
    assert "process 1: " in of_another[1]  # type: ignore[index]
    assert "process 1: " not in of_its_own[1]  # type: ignore[index]


def test_all_of_them_refuse_what_is_not_finite_in_one(run: tuple[Path, list[list[object]]]) -> None:
    """A number that process 1 alone has."""
    for (*_, fourth), steps, _, looked in run[1]:  # type: ignore[misc]
        assert "step 4 is not saved: cut and 2 other arrays hold numbers that are not finite" in fourth
        assert steps == [1, 3]
        assert looked == [[], ["cut", "whole", "also whole"]]  # by devices of both processes


def test_each_writes_its_part_and_one_process_reads_all(run: tuple[Path, list[list[object]]]) -> None:
    """Of what all hold, every process writes some."""
    step = run[0] / "3"
    indexes = [read_sealed(step / f"{rank}.json") for rank in range(PROCESSES)]
    pieces = [{name: len(index[name]["pieces"]) for name in index} for index in indexes]
    assert [part["cut"] for part in pieces] == [2, 2]
    assert sorted(part["whole"] + 2 * part["also whole"] for part in pieces) == [1, 2]
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shape = jax.ShapeDtypeStruct((ROWS,), np.float32, sharding=sharding)
    found = Checkpoints(run[0], keep=2).restore(3, dict.fromkeys(("cut", "whole", "also whole"), shape))
    for array in found.values():
        np.testing.assert_array_equal(array, np.arange(ROWS, dtype=np.float32) + 3)
    assert sorted(path.name for path in run[0].iterdir()) == ["1", "3"]
