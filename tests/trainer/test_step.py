"""What a step promises besides equality: bad numbers, clipping, precision, dropout, replicas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.equality import Arrays, compiled, on_devices, reference
from sharding.mesh import make_mesh
from tests.sharding.regions import equations
from tests.trainer.layouts import LLAMA, TWO_CHUNKS, VOCAB, WHOLE, WHOLE_DEEP, Row, Task, batches
from trainer import logical, loss_scale
from trainer.config import Config
from trainer.program import Program
from trainer.schedules import learning_rate
from trainer.step import Metrics, TrainState
from trainer.trace import scan_carry

TEXT = batches("packed")
ADAMW = Task("llama", "packed", "adamw")
ADAMW_DEEP = Task("llama-deep", "packed", "adamw")
DROPOUT = Task("llama", "packed", "sgd", dropout=0.2)
ON_EIGHT = [
    *(Row(ADAMW, zero=stage, replica=2, data=2, tensor=2) for stage in (0, 3)),
    Row(ADAMW_DEEP, zero=2, pipeline=2, data=2, tensor=2, **TWO_CHUNKS, layers=(1, 3, 2, 2), accumulation=3),
]
PIPELINE = Row(LLAMA, zero=2, pipeline=2, data=2, accumulation=4)


class Run:
    """A row of the table, with other settings."""

    def __init__(self, row: Row, overrides: Mapping[str, Any] | None = None) -> None:
        self.config = Config.from_dict(row.config.to_dict(), dict(overrides or {}))
        self.program = Program(self.config, make_mesh(self.config.mesh, jax.devices()[: row.num_devices]))

    @cached_property
    def _compiled(self) -> Callable[..., tuple[TrainState, Metrics]]:
        return compiled(self.program)

    @cached_property
    def _start(self) -> dict[str, jax.Array]:
        return logical.to_logical(self.program, self.program.init())

    def start_arrays(self) -> dict[str, jax.Array]:
        """Logical arrays by name."""
        return jax.tree.map(jnp.copy, self._start)

    def start(self) -> TrainState:
        return logical.from_logical(self.program, self.start_arrays())

    def step(self, state: TrainState, host: Arrays) -> tuple[TrainState, Metrics]:
        state, metrics = self._compiled(state, on_devices(self.program, host))
        return state, jax.device_get(metrics)

    def arrays(self, state: TrainState) -> Arrays:
        """Logical arrays by name."""
        return jax.device_get(logical.to_logical(self.program, state))


@pytest.fixture(scope="module", params=ON_EIGHT, ids=str)
def run(request: pytest.FixtureRequest) -> Run:
    return Run(request.param)


def shards(tree: Any) -> list[bytes]:
    """What every device holds, to the bit."""
    return [np.asarray(shard.data).tobytes() for leaf in jax.tree.leaves(tree) for shard in leaf.addressable_shards]


def one_weight(value: float, run: Run, state: TrainState, host: Arrays) -> tuple[TrainState, Arrays]:
    """One target of the last sequence counts `value` times."""
    weights = host["weights"].copy()
    weights[-1, 3] = value
    return state, {**host, "weights": weights}


def one_embedding(value: float, run: Run, state: TrainState, host: Arrays) -> tuple[TrainState, Arrays]:
    """The embedding of one token, which stands in one place of the last sequence only: on one shard, and in one row."""
    tokens = np.where(host["tokens"] == VOCAB - 1, 0, host["tokens"])
    tokens[-1, 3] = VOCAB - 1
    arrays = logical.to_logical(run.program, state)
    name = "parameters.embedding.weight"
    table = jax.device_put(arrays[name].at[VOCAB - 1].set(value), arrays[name].sharding)
    return logical.from_logical(run.program, {**arrays, name: table}), {**host, "tokens": tokens}


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("poison", [one_weight, one_embedding])
def test_a_bad_number_on_one_device_skips_the_step_on_all(run: Run, poison: Any, value: float) -> None:
    state, _ = run.step(run.start(), TEXT[0])
    state, bad = poison(value, run, state, TEXT[1])
    before = shards((state.parameters, state.optimizer))
    state, metrics = run.step(state, bad)
    assert shards((state.parameters, state.optimizer)) == before
    assert (metrics.skipped_steps, state.skipped, state.step) == (1, 1, 2)

    clean = {**TEXT[2], "tokens": np.where(TEXT[2]["tokens"] == VOCAB - 1, 0, TEXT[2]["tokens"])}
    state, metrics = run.step(state, clean)
    assert np.isfinite(metrics.loss)
    assert shards((state.parameters, state.optimizer)) != before
    assert metrics.skipped_steps == 1
    schedule = learning_rate(run.config.optimizer, run.config.train.steps)
    np.testing.assert_allclose(metrics.learning_rate, schedule(2), rtol=1e-6)


def test_a_batch_in_which_nothing_counts_only_decays(run: Run) -> None:
    """It is a step like any other, of gradient zero: nobody divides by zero, and nothing is skipped."""
    state = run.start()
    before = run.arrays(state)
    state, metrics = run.step(state, {**TEXT[0], "weights": np.zeros_like(TEXT[0]["weights"])})
    assert (metrics.loss, metrics.grad_norm, metrics.tokens, metrics.skipped_steps) == (0, 0, 0, 0)
    after = run.arrays(state)
    kept = 1 - metrics.learning_rate * run.config.optimizer.weight_decay
    for name, declaration in run.program.model.declarations.items():
        factor = kept if declaration.decays else 1.0
        np.testing.assert_allclose(after[f"parameters.{name}"], factor * before[f"parameters.{name}"], rtol=1e-6)
    assert not any(x.any() for name, x in after.items() if name.startswith(("optimizer.mu", "optimizer.nu")))


def test_replicas_stay_equal_to_the_bit(run: Run) -> None:
    state = run.start()
    for host in TEXT[:3]:
        state, _ = run.step(state, host)
    copies = 0
    for leaf in jax.tree.leaves(state):
        held: dict[str, bytes] = {}
        for shard in leaf.addressable_shards:
            data = np.asarray(shard.data).tobytes()
            assert held.setdefault(str(shard.index), data) == data
        copies += len(leaf.addressable_shards) - len(held)
    assert copies > 0


def test_every_device_says_the_same_and_no_stage_says_0(run: Run) -> None:
    _, metrics = run._compiled(run.start(), on_devices(run.program, TEXT[0]))
    for name, value in metrics._asdict().items():
        assert len({np.asarray(shard.data).tobytes() for shard in value.addressable_shards}) == 1, name
        assert len(value.addressable_shards) == 8
    assert metrics.loss == pytest.approx(np.log(VOCAB), rel=0.1)


def test_the_loss_that_is_logged_is_the_one_that_is_optimised(run: Run) -> None:
    """Along the gradient it rises by the logged norm of the gradient."""
    state, first = run.step(run.start(), TEXT[0])
    momenta = {
        name.removeprefix("optimizer.mu."): x
        for name, x in run.arrays(state).items()
        if name.startswith("optimizer.mu.")
    }
    size, length = norm(momenta), 0.005

    def loss(way: float) -> float:
        arrays = run.start_arrays()
        for name, momentum in momenta.items():
            weight = arrays[f"parameters.{name}"]
            arrays[f"parameters.{name}"] = jax.device_put(weight + way * length / size * momentum, weight.sharding)
        _, metrics = run.step(logical.from_logical(run.program, arrays), TEXT[0])
        return float(metrics.loss)

    assert (loss(1) - loss(-1)) / (2 * length) == pytest.approx(float(first.grad_norm), rel=3e-3)


def gradient(clip: float) -> tuple[float, Arrays]:
    """The gradient norm of the first step, and the momentum after it: the gradient as it was used."""
    run = Run(Row(LLAMA, zero=2, data=4), {"optimizer.clip": clip})
    state, metrics = run.step(run.start(), TEXT[0])
    used = {name: x for name, x in run.arrays(state).items() if name.startswith("optimizer.trace.")}
    return float(metrics.grad_norm), used


def norm(arrays: Arrays) -> float:
    return float(np.sqrt(sum((x**2).sum() for x in arrays.values())))


def test_clipping_scales_all_gradients_to_the_largest_norm_and_never_up() -> None:
    (logged, small), (logged_too, clipped) = gradient(clip=10.0), gradient(clip=0.1)
    assert logged == pytest.approx(logged_too, rel=1e-6), "what is logged is the norm before clipping"
    assert norm(small) == pytest.approx(logged, rel=1e-5)
    assert norm(clipped) == pytest.approx(0.1, rel=1e-5)
    for name in small:
        np.testing.assert_allclose(clipped[name], small[name] * (0.1 / logged), rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize(("rule", "row"), [("deepspeed", Row(LLAMA, zero=2, data=2)), ("megatron", PIPELINE)], ids=str)
def test_float16_trains_under_a_loss_scale_that_follows_its_rule(rule: str, row: Row) -> None:
    scale = {"rule": rule, "initial_power": 24, "window": 3, "hysteresis": 2}
    half = {"precision.compute": "float16", "precision.loss_scale": scale, "train.steps": 16}
    run = Run(row, half)
    state, expected = run.start(), loss_scale.init(run.config.precision.loss_scale)
    losses, scales, skipped = [], [], 0
    for _ in range(16):
        before = shards((state.parameters, state.optimizer))
        state, metrics = run.step(state, TEXT[0])
        assert metrics.loss_scale == expected.scale
        finite = metrics.skipped_steps == skipped
        assert (shards((state.parameters, state.optimizer)) == before) == (not finite)
        expected = loss_scale.update(run.config.precision.loss_scale, expected, jnp.bool_(finite))
        skipped = int(metrics.skipped_steps)
        scales.append(float(metrics.loss_scale))
        losses.append(float(metrics.loss))
    assert 1 < skipped < 12
    assert {-1, 1} <= set(np.sign(np.diff(scales))), "the scale went down, and up"
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.parametrize("compute", ["bfloat16", "float16"])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "lion"])
def test_weights_and_moments_keep_their_dtype(optimizer: str, compute: str) -> None:
    run = Run(Row(LLAMA, zero=3, data=2), {"optimizer": {"name": optimizer}, "precision.compute": compute})
    before = run.program.abstract_state()
    after, _ = jax.eval_shape(run.program.step, before, run.program.abstract_batch())
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), before)
    assert {str(x.dtype) for x in jax.tree.leaves((before.parameters, before.optimizer)) if x.ndim} == {"float32"}


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_bfloat16_gradients_are_added_up_in_float32(stage: int) -> None:
    run = Run(Row(LLAMA, zero=stage, data=2, accumulation=4), {"precision.compute": "bfloat16"})
    step: Any = run.program.step
    traced = step.trace(run.program.abstract_state(), run.program.abstract_batch()).jaxpr
    loops = [e for e in equations(traced) if e.primitive.name == "scan" and e.params["length"] == 4]
    (micro_batches,) = [loop for loop in loops if scan_carry(loop)[1] > len(run.program.layouts)]
    body, (first, num_carry) = micro_batches.params["jaxpr"], scan_carry(micro_batches)
    made_by = {out: equation for equation in body.jaxpr.eqns for out in equation.outvars}
    for before, after in zip(body.jaxpr.invars[first:][:num_carry], body.jaxpr.outvars[:num_carry], strict=True):
        assert str(after.aval.dtype) == "float32"
        assert made_by[after].primitive.name == "add"
        assert before in made_by[after].invars
    matmuls = [e.invars[0].aval.dtype for e in equations(traced) if e.primitive.name == "dot_general"]
    assert jnp.bfloat16 in matmuls


@pytest.mark.parametrize("row", [Row(LLAMA, zero=2, data=2, tensor=2, accumulation=4), PIPELINE], ids=str)
def test_bfloat16_ends_near_float32(row: Row) -> None:
    run = Run(row, {"precision.compute": "bfloat16"})
    state, losses = run.start(), []
    for host in TEXT:
        state, metrics = run.step(state, host)
        losses.append(metrics.loss)
    np.testing.assert_allclose(losses, reference(LLAMA).losses, rtol=5e-3)


@cache
def still() -> Run:
    """Dropout and no learning: what changes from step to step is what is dropped."""
    return Run(Row(DROPOUT), {"optimizer.learning_rate": 0.0})


def test_dropout_is_another_in_each_step_and_for_each_sample() -> None:
    run = still()
    state, first = run.step(run.start(), TEXT[0])
    _, second = run.step(state, TEXT[0])
    _, again = run.step(run.start(), TEXT[0])
    _, others = run.step(run.start(), {**TEXT[0], "samples": TEXT[1]["samples"]})
    assert first.loss == again.loss
    assert len({float(first.loss), float(second.loss), float(others.loss)}) == 3


def test_evaluation_drops_nothing() -> None:
    run = still()
    parameters, batch = run.start().parameters, on_devices(run.program, TEXT[0])
    other = batch._replace(samples=batch.samples + 1000)
    assert run.program.evaluate(parameters, batch) == run.program.evaluate(parameters, other)


@pytest.mark.parametrize(
    "row", [Row(WHOLE, zero=3, data=2, tensor=2), Row(WHOLE_DEEP, pipeline=2, tensor=2, accumulation=4)], ids=str
)
def test_evaluation_over_whole_sequences_sees_no_borders(row: Row) -> None:
    run = Run(row)
    one = {"segments": np.ones_like(TEXT[0]["segments"]), "positions": np.zeros_like(TEXT[0]["positions"])}
    packed, joined = (on_devices(run.program, TEXT[0] | more) for more in ({}, one))
    parameters = run.start().parameters
    loss, tokens = run.program.evaluate(parameters, packed)
    assert (loss, tokens) == run.program.evaluate(parameters, joined)
    apart, counted = Run(row, {"attention.over": "document"}).program.evaluate(parameters, packed)
    assert counted == tokens
    assert apart != loss
