"""Offload on trains as offload off does: after every step the same state and the same metrics, to the last bit."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from models.inputs import Batch
from sharding.mesh import make_mesh
from trainer import logical
from trainer.checkpoint import made
from trainer.config import Config
from trainer.keeper import Keeper, OnDevices
from trainer.offload.exchange import Exchange
from trainer.offload.lanes import Lanes
from trainer.offload.nvme import Nvme
from trainer.offload.offloaded import Offloaded
from trainer.offload.tiers import Memory, Sweep, Tier
from trainer.offload.update import HostUpdate
from trainer.program import Program

STEPS, GLOBAL, SEQUENCE, VOCAB = 5, 12, 8, 29
BASE: dict[str, Any] = {
    "model": {"layers": 3, "hidden": 20, "heads": 2, "ffn": 21, "vocab": VOCAB, "context": SEQUENCE},
    "batch": {"global": GLOBAL, "sequence": SEQUENCE},
    "optimizer": {"learning_rate": 0.01, "schedule": "linear", "warmup_steps": 2, "clip": 0.5},
    "train": {"steps": STEPS},
}
pytestmark = pytest.mark.optimised  # bits of two programs, which else round in two ways

HOST = {"offload.optimizer": "host", "offload.bucket": 100}
NVME = {"offload.optimizer": "nvme", "offload.bucket": 333, "offload.path": "unused"}
FLOAT16: dict[str, Any] = {"precision": {"compute": "float16", "loss_scale": {"initial_power": 20, "hysteresis": 1}}}
ROWS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "pipeline_replicas_sgd": (
        {
            "mesh": {"pipeline": 2, "replica": 2},
            "zero.stage": 0,
            "batch.micro": 2,
            "pipeline.schedule": "1f1b",
            "optimizer.name": "sgd",
            "optimizer.clip": None,
        },
        HOST | {"offload.bucket": 10_000},
    ),
    "zero1_tensor_padded_accumulated_bfloat16": (
        {"mesh": {"data": 2, "tensor": 2}, "batch.micro": 2, "precision.compute": "bfloat16"},
        NVME,
    ),
    "zero2_lion_half_of_it": (
        {"mesh.data": 3, "zero.stage": 2, "optimizer.name": "lion"},
        HOST | {"offload.optimizer_fraction": 0.5},
    ),
    "zero3_float16_overflows": ({"mesh.data": 2, "zero.stage": 3, **FLOAT16}, NVME),
}


Arrays = dict[str, np.ndarray]


class Run(NamedTuple):
    """What training leaves behind: of each step the metrics and the logical state, its first being the initial one."""

    metrics: list[dict[str, bytes]]
    states: list[Arrays]


@cache
def program(name: str, is_offloaded: bool) -> Program:
    layout, offload = ROWS[name]
    config = Config.from_dict(BASE, layout | (offload if is_offloaded else {}))
    return Program(config, make_mesh(config.mesh, jax.devices()[: math.prod(config.mesh.sizes.values())]))


@cache
def batches(name: str) -> list[Batch]:
    """Random tokens, of which one in five does not count."""
    random = np.random.default_rng(0)
    made = []
    for step in range(STEPS):
        text = random.integers(VOCAB, size=(GLOBAL, SEQUENCE + 1), dtype=np.int32)
        ones = np.ones((GLOBAL, SEQUENCE), np.int32)
        batch = Batch(
            tokens=text[:, :-1],  # type: ignore[arg-type]
            targets=text[:, 1:],  # type: ignore[arg-type]
            segments=ones,  # type: ignore[arg-type]
            positions=ones * np.arange(SEQUENCE, dtype=np.int32),  # type: ignore[arg-type]
            weights=(random.random(ones.shape) < 0.8).astype(np.float32),  # type: ignore[arg-type]
            samples=np.arange(GLOBAL, dtype=np.uint32) + step * GLOBAL,  # type: ignore[arg-type]
        )
        shapes = program(name, False).abstract_batch()
        made.append(jax.tree.map(lambda x, like: jax.device_put(x, like.sharding), batch, shapes))
    return made


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.sweep if n == "zero2_lion_half_of_it" else ()) for n in ROWS]
)
def test_the_state_and_the_metrics_are_the_same_to_the_last_bit(name: str, tmp_path: Path) -> None:
    is_host = ROWS[name][1]["offload.optimizer"] == "host"
    off = trained(name, OnDevices(program(name, False)))
    keeper = Offloaded(program(name, True), Memory if is_host else partial(Nvme, tmp_path / "file", direct=False))
    on = trained(name, keeper)
    assert on.metrics == off.metrics
    for step, (there, here) in enumerate(zip(on.states, off.states, strict=True)):
        assert bits(there) == bits(here), f"after {step} steps"
    holds_only_rounded_weights(keeper, on.states[-1])
    skips_count_for_nothing(on, expected=name.endswith("overflows"))
    if name.endswith("half_of_it"):
        sizes = {key: array.size for key, array in keeper.state.parameters.items()}
        assert 0.3 < sum(sizes[key] for key in keeper.program.offloaded) / sum(sizes.values()) <= 0.5


def trained(name: str, keeper: Keeper) -> Run:
    keeper.initialise()
    metrics, states = [], [state_of(keeper)]
    for batch in batches(name):
        metrics.append({key: np.asarray(value).tobytes() for key, value in keeper.step(batch)._asdict().items()})
        states.append(state_of(keeper))
    return Run(metrics, states)


def state_of(keeper: Keeper) -> Arrays:
    return {name: np.asarray(array) for name, array in made(keeper.logical()).items()}


def bits(arrays: Arrays) -> dict[str, tuple[np.dtype, bytes]]:
    return {name: (array.dtype, array.tobytes()) for name, array in arrays.items()}


def holds_only_rounded_weights(keeper: Offloaded, state: Arrays) -> None:
    """Of what is offloaded, every device has its shard of the weights as they are computed with, and no moments."""
    compute = keeper.program.config.precision.compute
    for name in keeper.program.offloaded:
        master = logical.as_stored(keeper.program, name, jax.numpy.asarray(state[f"parameters.{name}"]))
        assert master.dtype == np.float32
        for shard in keeper.state.parameters[name].addressable_shards:
            rounded = np.asarray(master)[shard.index].astype(compute)
            np.testing.assert_array_equal(np.asarray(shard.data), rounded, err_msg=name, strict=True)
    paths = [str(path) for path, _ in jax.tree_util.tree_flatten_with_path(keeper.state.optimizer)[0]]
    assert not [path for path in paths if any(f"'{name}'" in path for name in keeper.program.offloaded)]


def skips_count_for_nothing(run: Run, expected: bool) -> None:
    skipped = [int(state["skipped"]) for state in run.states]
    assert 0 <= skipped[-1] < STEPS
    assert (skipped[-1] > 0) == expected
    learned = [name for name in run.states[0] if name.startswith(("parameters.", "optimizer."))]
    for was, now, before, after in zip(skipped, skipped[1:], run.states, run.states[1:], strict=False):
        kept, found = (bits({name: state[name] for name in learned}) for state in (before, after))
        assert (kept == found) == (now > was)
    if "optimizer.count" in run.states[-1]:
        assert run.states[-1]["optimizer.count"] == STEPS - skipped[-1]


CHEAP = "pipeline_replicas_sgd"


class Broken(Memory):
    """A disk that fails at the third record of every sweep that is to be written."""

    def sweep(self, order: Sequence[int], read: bool = True, write: bool = True) -> Sweep:
        for number, visit in enumerate(super().sweep(order, read, write)):
            if read and write and number == 2:
                raise OSError(5, "reading record 2: Input/output error", "records")
            yield visit


def failing(original: Callable[..., Any], after: int) -> Callable[..., Any]:
    calls = iter(range(after))

    def call(*arguments: Any, **named: Any) -> Any:
        if next(calls, None) is None:
            raise RuntimeError("on purpose")
        return original(*arguments, **named)

    return call


def step_in_time(keeper: Keeper, batch: Batch) -> BaseException | None:
    """What a step raises; a test that waited for one that hangs would say nothing."""
    raised: list[BaseException] = []

    def step() -> None:
        try:
            keeper.step(batch)
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=step, daemon=True)
    thread.start()
    thread.join(timeout=60)
    assert not thread.is_alive(), "the step hangs"
    return raised[0] if raised else None


@pytest.fixture
def start() -> Iterator[Callable[[Callable[[Sequence[int]], Tier]], Offloaded]]:
    def make(make_tier: Callable[[Sequence[int]], Tier]) -> Offloaded:
        keeper = Offloaded(program(CHEAP, True), make_tier)
        keeper.initialise()
        return keeper

    before = set(threading.enumerate())
    yield make
    left = {thread for thread in set(threading.enumerate()) - before if not thread.name.startswith("host-update")}
    assert not left, "a lane goes on"


@pytest.mark.parametrize(
    "place", [(HostUpdate, "__call__"), (Exchange, "up"), (Exchange, "down")], ids=["update", "up", "down"]
)
def test_what_fails_in_a_lane_ends_the_step_with_that_error(
    start: Callable[..., Offloaded], monkeypatch: pytest.MonkeyPatch, place: tuple[type, str]
) -> None:
    keeper = start(Memory)
    monkeypatch.setattr(*place, failing(getattr(*place), after=1))
    error = step_in_time(keeper, batches(CHEAP)[0])
    assert str(error) == "on purpose"
    for use in (keeper.logical, lambda: keeper.step(batches(CHEAP)[0])):
        with pytest.raises(RuntimeError, match=r"a step was broken off half way.*go.* on from the newest checkpoint"):
            use()


def test_a_disk_that_fails_in_a_sweep_ends_the_step_with_its_reason(start: Callable[..., Offloaded]) -> None:
    error = step_in_time(start(Broken), batches(CHEAP)[0])
    assert isinstance(error, OSError)
    assert "reading record 2: Input/output error" in str(error)


def test_every_bucket_is_noted_in_every_lane(start: Callable[..., Offloaded]) -> None:
    lanes = Lanes()
    keeper = Offloaded(program(CHEAP, True), Memory, lanes)
    keeper.initialise()
    keeper.step(batches(CHEAP)[0])
    buckets, groups = keeper.records.buckets, keeper.records.num_groups
    noted = {lane: [span.label for span in lanes.spans if span.lane == lane] for lane in ("down", "update", "up")}
    assert noted["down"] == noted["up"] == [bucket.name for bucket in buckets]
    assert noted["update"] == [bucket.name for bucket in buckets for _ in range(groups[bucket.name])]
    assert [span.label for span in lanes.spans if span.lane == "compute"] == ["step"]
