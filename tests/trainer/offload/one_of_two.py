"""A process of `test_two_processes`: trains a little on one device, and writes down the shards that it holds.

python -m tests.trainer.offload.one_of_two FILE.npz CONFIG-AS-JSON ADDRESS INDEX
"""

from __future__ import annotations

import json
import sys

import jax
import numpy as np

from sharding.mesh import make_mesh
from trainer.checkpoint import made
from trainer.config import Config
from trainer.devices import put_batch
from trainer.offload.make import make_keeper
from trainer.program import Program

STEPS = 2


def train(config: Config) -> dict[str, np.ndarray]:
    """The loss of every step, and by `name, device` the shards of the state that this process holds."""
    devices = jax.devices()[: config.mesh.data]
    program = Program(config, make_mesh(config.mesh, devices))
    keeper = make_keeper(program, lambda note: None)
    keeper.initialise()
    losses = []
    for step in range(STEPS):
        rows = batch(config, step)
        size = config.batch.global_
        given = put_batch(program.mesh, program.batch_specs, size, lambda low, high, all=rows: _cut(all, low, high))
        losses.append(np.asarray(keeper.step(given).loss))
    shards = {
        f"{name}, {devices.index(shard.device)}": np.asarray(shard.data)
        for name, array in made(keeper.logical()).items()
        for shard in array.addressable_shards
    }
    return {"losses": np.array(losses)} | shards


def batch(config: Config, step: int) -> dict[str, np.ndarray]:
    """Random tokens, by the names of Batch."""
    shape = config.batch.global_, config.batch.sequence
    text = np.random.default_rng(step).integers(config.model.vocab, size=(shape[0], shape[1] + 1), dtype=np.int32)
    return {
        "tokens": text[:, :-1],
        "targets": text[:, 1:],
        "segments": np.ones(shape, np.int32),
        "positions": np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape),
        "weights": np.ones(shape, np.float32),
        "samples": np.arange(shape[0], dtype=np.uint32),
    }


def _cut(rows: dict[str, np.ndarray], low: int, high: int) -> dict[str, np.ndarray]:
    return {name: array[low:high] for name, array in rows.items()}


def main(file: str, config: str, address: str, index: str) -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 1)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, 2, int(index))
    np.savez(file, **train(Config.from_dict(json.loads(config))))
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
