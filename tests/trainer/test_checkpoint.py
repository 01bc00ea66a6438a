"""A checkpoint is what was trained, on whatever mesh it is loaded, or it is not there."""

import dataclasses
import signal
import subprocess
import sys
import weakref
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.inputs import Batch
from sharding.mesh import make_mesh
from trainer import logical
from trainer.checkpoint import Checkpoints, Later
from trainer.config import Config
from trainer.errors import ConfigError, OffloadError
from trainer.program import Program
from trainer.settings import OptimizerConfig
from trainer.step import Metrics, TrainState

ROOT = Path(__file__).parents[2]
MODEL = {"layers": 2, "hidden": 16, "heads": 2, "ffn": 24, "vocab": 33, "tied": True, "scan_layers": False}
LAYOUTS: dict[str, tuple[dict[str, int], int]] = {  # mesh, ZeRO stage
    "data4_zero3": ({"data": 4}, 3),
    "data2_tensor2_zero1": ({"data": 2, "tensor": 2}, 1),
    "data5_zero2": ({"data": 5}, 2),  # nothing divides by 5
    "one_device": ({}, 0),
}
META = {"tokens": 640, "data_hash": "abc", "config": {"seed": 0}}


@cache
def program(layout: str, **model: int) -> Program:
    mesh, stage = LAYOUTS[layout]
    sections = {"model": {**MODEL, **model}, "mesh": mesh, "zero": {"stage": stage, "persist_below": 0}}
    if not stage:
        del sections["zero"]["persist_below"]
    config = Config.from_dict({**sections, "batch": {"global": 20, "sequence": 8}, "optimizer": {"epsilon": 1e-3}})
    num_devices = config.mesh.num_devices
    return Program(config, make_mesh(config.mesh, jax.devices()[:num_devices]))


def batch(of: Program, seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    shapes = of.abstract_batch()
    tokens = rng.integers(0, MODEL["vocab"], shapes.tokens.shape)
    ones = np.ones_like(tokens)
    arrays = Batch(tokens, np.roll(tokens, -1, 1), ones, ones.cumsum(1) - 1, ones, np.arange(len(tokens)))
    return jax.tree.map(lambda x, shape: jax.device_put(x.astype(shape.dtype), shape.sharding), arrays, shapes)


def train(of: Program, state: TrainState, *seeds: int) -> tuple[TrainState, Metrics]:
    for seed in seeds:
        state, metrics = of.step(state, batch(of, seed))
    return state, metrics


def on_host(arrays: dict[str, jax.Array]) -> dict[str, np.ndarray]:
    return {name: np.array(x) for name, x in arrays.items()}


def assert_equal(one: dict[str, jax.Array], other: dict[str, jax.Array]) -> None:
    one, other = on_host(one), on_host(other)
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name, strict=True)


@pytest.fixture(scope="module")
def trained() -> dict[str, np.ndarray]:
    """Two steps on four devices: every array has something to lose."""
    of = program("data4_zero3")
    state, _ = train(of, of.init(), 0, 1)
    return on_host(logical.to_logical(of, state))


@pytest.fixture(scope="module")
def saved(trained: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    of = program("data4_zero3")
    checkpoints = Checkpoints(tmp_path_factory.mktemp("run") / "checkpoints", keep=2)
    sharding = {name: x.sharding for name, x in logical.abstract_logical(of).items()}
    checkpoints.save(2, jax.device_put(trained, sharding), META)
    checkpoints.close()
    return checkpoints


def test_names_are_what_a_user_would_call_them() -> None:
    names = logical.names(program("data4_zero3"))
    assert {"step", "skipped", "loss_scale.scale", "optimizer.count"} <= set(names)
    for kind in ("parameters", "optimizer.mu", "optimizer.nu"):
        assert f"{kind}.embedding.weight" in names
    assert len(names) == 7 + 3 * len(program("data4_zero3").layouts)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_logical_arrays_have_no_padding_and_go_back_bit_for_bit(layout: str) -> None:
    of = program(layout)
    state = of.init()
    arrays = logical.to_logical(of, state)
    for name, layout_ in of.layouts.items():
        assert arrays[f"parameters.{name}"].shape == layout_.shape
        assert arrays[f"optimizer.nu.{name}"].shape == layout_.shape
    abstract = logical.abstract_logical(of)
    assert {name: (x.shape, x.dtype, x.sharding) for name, x in arrays.items()} == {
        name: (x.shape, x.dtype, x.sharding) for name, x in abstract.items()
    }
    back = logical.from_logical(of, arrays)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), state, back))
    jax.tree.map(lambda x, y: x.sharding.is_equivalent_to(y.sharding, x.ndim) or pytest.fail(str(x)), state, back)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_loads_on_any_mesh_bit_for_bit(layout: str, saved: Checkpoints, trained: dict[str, np.ndarray]) -> None:
    of = program(layout)
    arrays = saved.restore(2, logical.abstract_logical(of))
    assert_equal(arrays, trained)
    assert_equal(logical.to_logical(of, logical.from_logical(of, arrays)), trained)
    assert saved.meta(2) == META


def test_the_next_step_is_the_one_that_would_have_been(saved: Checkpoints) -> None:
    of = program("data4_zero3")
    state, expected = train(of, of.init(), 0, 1, 2)
    restored = logical.from_logical(of, saved.restore(2, logical.abstract_logical(of)))
    restored, got = train(of, restored, 2)
    assert jax.device_get(got) == jax.device_get(expected)
    assert_equal(logical.to_logical(of, restored), logical.to_logical(of, state))

    other = program("data2_tensor2_zero1")
    restored = logical.from_logical(other, saved.restore(2, logical.abstract_logical(other)))
    _, got = train(other, restored, 2)
    np.testing.assert_allclose(got.loss, expected.loss, rtol=1e-6)
    np.testing.assert_allclose(got.grad_norm, expected.grad_norm, rtol=1e-5)


INTERLEAVED = {"schedule": "interleaved_1f1b", "virtual_stages": 2}
PIPELINES: dict[str, dict[str, object]] = {
    "interleaved": {"mesh": {"pipeline": 2, "data": 2, "tensor": 2}, "pipeline": INTERLEAVED, "zero": {"stage": 2}},
    "uneven": {"mesh": {"pipeline": 3, "data": 2}, "pipeline": {"layers": [1, 3, 1], "head": "last"}},
}


@cache
def of_five_layers(layout: str) -> Program:
    config = Config.from_dict({"model": {**MODEL, "layers": 5}, "batch": {"sequence": 8}, **PIPELINES.get(layout, {})})
    return Program(config, make_mesh(config.mesh, jax.devices()[: config.mesh.num_devices]))


def put(of: Program, arrays: dict[str, np.ndarray]) -> TrainState:
    sharding = {name: x.sharding for name, x in logical.abstract_logical(of).items()}
    return logical.from_logical(of, jax.device_put(arrays, sharding))


def test_stages_and_one_device_hold_the_same_arrays(tmp_path: Path) -> None:
    """Saved on stages, loaded on one device and on other stages, and back again: bit for bit."""
    here, *others = (of_five_layers(layout) for layout in ("interleaved", "one device", "uneven", "interleaved"))
    shapes = {name: (x.shape, x.dtype) for name, x in logical.abstract_logical(here).items()}
    random = np.random.default_rng(0)
    arrays = {name: (100 * random.normal(size=shape)).astype(dtype) for name, (shape, dtype) in shapes.items()}
    state = put(here, arrays)
    for step, there in enumerate(others):
        checkpoints = Checkpoints(tmp_path / str(step), keep=1)
        checkpoints.save(step, logical.to_logical(here, state), META)
        checkpoints.close()
        state = logical.from_logical(there, checkpoints.restore(step, logical.abstract_logical(there)))
        assert_equal(logical.to_logical(there, state), arrays)
        here = there


def test_steps_that_follow_a_save_do_not_change_it(tmp_path: Path) -> None:
    of = program("data4_zero3")
    state = of.init()
    before = on_host(logical.to_logical(of, state))
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    checkpoints.save(0, logical.to_logical(of, state), META)
    state, _ = train(of, state, 0, 1, 2)  # donates the memory of the state that was saved
    checkpoints.close()
    assert_equal(checkpoints.restore(0, logical.abstract_logical(of)), before)


def test_the_copy_on_the_devices_is_gone_once_save_returns(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    arrays = {"x": jnp.arange(1e6)}
    checkpoints.save(0, arrays, META)
    assert arrays["x"].is_deleted()
    jax.block_until_ready([jnp.zeros(10**6) for _ in range(10)])  # would be put where it was
    checkpoints.close()
    assert_equal(checkpoints.restore(0, shapes(x=jnp.arange(1e6))), {"x": jnp.arange(1e6)})


def shapes(**arrays: jax.Array) -> dict[str, jax.ShapeDtypeStruct]:
    return {name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for name, x in arrays.items()}


def small(value: float, size: int = 100) -> dict[str, jax.Array]:
    return {"x": jnp.full(size, value), "y": jnp.int32(value)}


def test_what_is_made_later_is_in_memory_one_at_a_time_and_reads_as_the_rest(tmp_path: Path) -> None:
    alive: list[weakref.ref[jax.Array]] = []
    most = 0

    def make(value: float) -> jax.Array:
        nonlocal most
        array = jnp.full(100, value)
        alive.append(weakref.ref(array))
        most = max(most, sum(made() is not None and not made().is_deleted() for made in alive))  # type: ignore[union-attr]
        return array

    expected = {str(number): jnp.full(100, number, jnp.float32) for number in range(5)}
    later = {name: Later(x, partial(make, float(name))) for name, x in shapes(**expected).items()}
    later["0"] = expected["0"].copy()
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, later, META)
    checkpoints.close()
    assert (len(alive), most) == (4, 1)
    assert_equal(checkpoints.restore(1, shapes(**expected)), expected)
    some = checkpoints.restore(1, shapes(**expected), ["3", "0"])
    assert_equal(some, {name: expected[name] for name in ("3", "0")})


def test_what_cannot_be_made_is_an_error_and_the_older_checkpoint_stays(tmp_path: Path) -> None:
    def make() -> jax.Array:
        raise OffloadError("/mnt/nvme/file could not be read")

    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(1, small(1.0), META)
    with pytest.raises(OffloadError, match=r"^/mnt/nvme/file could not be read$"):
        checkpoints.save(2, {"x": Later(shapes(**small(1.0))["x"], make)}, META)
    assert checkpoints.steps() == [1]
    checkpoints.save(3, small(3.0), META)
    checkpoints.close()
    assert checkpoints.steps() == [1, 3]


def test_the_newest_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    checkpoints = Checkpoints(folder, keep=2)
    assert checkpoints.newest() is None
    for step in (5, 10, 15):
        checkpoints.save(step, small(step), {"step": step})
    checkpoints.close()
    assert checkpoints.steps() == [10, 15]

    resumed = Checkpoints(folder, keep=2)
    assert resumed.newest() == 15
    resumed.save(15, small(0), {"step": 0})  # it is there already
    resumed.save(20, small(20), {"step": 20})
    resumed.close()
    assert resumed.steps() == [15, 20]
    assert resumed.meta(15) == {"step": 15}
    assert_equal(resumed.restore(15, shapes(**small(15))), small(15))
    assert sorted(path.name for path in folder.iterdir()) == ["15", "20"]
    with pytest.raises(ConfigError, match=r"no complete checkpoint of step 10; there are those of steps \[15, 20\]"):
        resumed.meta(10)


def test_another_model_is_refused_by_name(saved: Checkpoints) -> None:
    wide = logical.abstract_logical(program("one_device", vocab=64))
    with pytest.raises(ConfigError) as error:
        saved.restore(2, wide)
    assert "another model: set model.*" in str(error.value)
    for name in ("parameters", "optimizer.mu", "optimizer.nu"):
        assert f"{name}.embedding.weight is float32[33, 16] there and float32[64, 16] here" in str(error.value)

    with pytest.raises(ConfigError, match="and 19 more") as error:
        saved.restore(2, logical.abstract_logical(program("one_device", layers=3)))
    assert "parameters.layers.mlp.up.weight is float32[2, 16, 24] there and float32[3, 16, 24] here" in str(error.value)

    more = {**logical.abstract_logical(program("one_device")), **shapes(more=jnp.zeros(3))}
    del more["parameters.head.norm.scale"]
    with pytest.raises(ConfigError) as error:
        saved.restore(2, more)
    assert "more is float32[3] here and not there" in str(error.value)
    assert "parameters.head.norm.scale is float32[16] there and not here" in str(error.value)


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2)
    checkpoints.save(1, small(1), META)
    checkpoints.close()
    (checkpoints.folder / "1/0.json").unlink()
    with pytest.raises(ConfigError, match=r"1 is damaged: 0\.json is missing\. Remove it to start anew"):
        checkpoints.restore(1, shapes(**small(1)))


def test_another_optimizer_is_refused_by_name(saved: Checkpoints) -> None:
    of = program("one_device")
    config = dataclasses.replace(of.config, optimizer=OptimizerConfig(name="sgd"))
    with pytest.raises(ConfigError) as error:
        saved.restore(2, logical.abstract_logical(Program(config, of.mesh)))
    assert "another optimizer: set optimizer.name" in str(error.value)
    assert "optimizer.mu.embedding.weight" in str(error.value)


ROWS = 300_000  # more than a megabyte


def written(step: int) -> dict[str, jax.Array]:
    return {"x": jnp.arange(ROWS) * 0.1 + step, "y": jnp.int32(step)}


# A process that saves steps 1 and 2, with something happening before the second.
WRITER = """
import os, resource, signal, sys
import jax.numpy as jnp
from trainer.checkpoint import Checkpoints, Later

def save(step):
    checkpoints.save(step, {{"x": jnp.arange({rows}) * 0.1 + step, "y": jnp.int32(step)}}, {{"step": step}})
    checkpoints.wait()

checkpoints = Checkpoints({folder!r}, keep=1)
save(1)
{then}
save(2)
print("saved")
"""
KILLED_AT = """
def kill(event, args):
    if event == {event!r} and str(args[0]).endswith({path!r}):
        os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(kill)
"""
DISK_IS_FULL = """
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, most))
try:
    save(2)
except OSError as error:
    print(error)
print(checkpoints.steps())
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
"""
MOMENTS = {  # the event at which the process is killed, the file it is about, the newest checkpoint then
    "as it begins": ("os.mkdir", ".writing", 1),
    "while it writes": ("os.truncate", "", 1),
    "when all but the index is written": ("os.rename", "/.0.json.part", 1),
    "before it is committed": ("os.rename", ".writing", 1),
    "while the older one is deleted": ("os.remove", "0.bin", 2),
}


def start(folder: Path, then: str) -> subprocess.Popen[str]:
    code = WRITER.format(rows=ROWS, folder=str(folder), then=then)
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe, text=True, cwd=ROOT)


def test_a_killed_save_leaves_the_last_complete_one(tmp_path: Path) -> None:
    processes = {
        moment: start(tmp_path / moment, KILLED_AT.format(event=event, path=path))
        for moment, (event, path, _) in MOMENTS.items()
    }
    for moment, process in processes.items():
        output, errors = process.communicate(timeout=120)
        assert process.returncode == -signal.SIGKILL, (moment, output, errors)
        newest = MOMENTS[moment][-1]
        left = Checkpoints(tmp_path / moment, keep=1)
        assert left.newest() == newest, moment
        assert_equal(left.restore(newest, shapes(**written(newest))), written(newest))
        left.save(3, written(3), {"step": 3})
        left.close()
        assert [path.name for path in left.folder.iterdir()] == ["3"], moment  # nothing of the killed process is left


def test_a_full_disk_is_an_error_that_says_so_and_can_be_got_over(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    output, errors = start(folder, DISK_IS_FULL).communicate(timeout=120)
    failed, steps, saved = output.splitlines()
    assert failed.startswith(f"The checkpoint of step 2 could not be written to {folder}: File too large (")
    assert failed.endswith("GB free there). Older ones are as they were.")
    assert (steps, saved) == ("[1]", "saved"), errors
    assert_equal(Checkpoints(folder, keep=1).restore(2, shapes(**written(2))), written(2))


def test_saving_says_nothing_on_the_terminal(tmp_path: Path) -> None:
    assert start(tmp_path / "checkpoints", "").communicate(timeout=120) == ("saved\n", "")


SCRIPT = """
import jax.numpy as jnp
from trainer.checkpoint import Checkpoints
Checkpoints({folder!r}, keep=1).save(1, {{"x": jnp.arange({rows}) * 0.1 + 1, "y": jnp.int32(1)}}, {{}})
"""


def test_a_script_may_end_while_one_is_written(tmp_path: Path) -> None:
    code = SCRIPT.format(folder=str(tmp_path / "checkpoints"), rows=ROWS)
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stderr == ""
    assert_equal(Checkpoints(tmp_path / "checkpoints", keep=1).restore(1, shapes(**written(1))), written(1))
