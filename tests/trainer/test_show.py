"""`meshwright show`: what is said about memory, sharding and activations is what training really does."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import jax
import pytest

from models.inputs import Batch
from models.layers import SELECTIVE_NAMES
from models.presets import num_parameters
from pallas_kernels.names import LOG_SUM_EXP
from sharding.mesh import make_mesh
from sharding.pipeline.ticks import Carry, Ticks
from tests.trainer.commands import ROOT, without_devices
from trainer.config import Config
from trainer.data.prepare import prepare
from trainer.description import Description, describe, parameters
from trainer.errors import ConfigError
from trainer.program import Program
from trainer.show import show
from trainer.step import TrainState

GOLDEN = ROOT / "tests/golden"

SMALL: dict[str, Any] = {
    "model": {"layers": 3, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 144, "vocab": 320, "context": 48},
    "mesh": {"data": 4},
    "zero": {"stage": 0},
    "batch": {"global": 32, "micro": 2, "sequence": 48},
    "precision": {"compute": "bfloat16"},
}


def small(*overrides: str) -> Config:
    return Config.from_dict(SMALL, overrides)


@pytest.mark.parametrize("preset", ["bloom-176b", "mt-nlg-530b"])
def test_the_largest_models_take_seconds_and_no_device(preset: str) -> None:
    overrides = [f"model.preset={preset}", "mesh={data: 8, tensor: 4}", "batch={global: 64, micro: 1, sequence: 2048}"]
    printed, seconds = without_devices("show", "configs/llama3-8b.yaml", *overrides, "--json")
    assert seconds < 5
    described = json.loads(printed)
    assert described["devices"] == 32
    assert described["num_parameters"] > 1.7e11
    assert list(described) == [field.name for field in dataclasses.fields(Description)]


# Bytes a parameter for AdamW, N = 4. At stage 3 compute weights are held for one layer at a time; in float32 the
# master is the compute weight, while it is whole.
BYTES = {
    "bfloat16": [18, 6 + 12 / 4, 2 + 16 / 4, 16 / 4],
    "float32": [16, 8 + 12 / 4, 4 + 16 / 4, 16 / 4],
}


@pytest.mark.parametrize("compute", BYTES)
@pytest.mark.parametrize("stage", range(4))
def test_bytes_per_parameter(stage: int, compute: str) -> None:
    config = small(f"zero.stage={stage}", f"precision.compute={compute}")
    held = sum(p.weights + p.gradients + p.optimizer for p in parameters(config))
    assert held == BYTES[compute][stage] * num_parameters(config.model)


@pytest.mark.parametrize(("optimizer", "size"), [("adamw", 12), ("lion", 8), ("sgd", 8)])
def test_bytes_of_the_optimizer(optimizer: str, size: int) -> None:
    config = small(f"optimizer.name={optimizer}")
    assert sum(p.optimizer for p in parameters(config)) == size * num_parameters(config.model)


@pytest.mark.parametrize("overrides", [["zero.stage=1"], ["zero.stage=3", "zero.persist_below=100"]], ids=str)
def test_what_is_said_of_the_state_is_what_a_device_holds(overrides: list[str]) -> None:
    """Padding, replicated leaves and all; the rest of the state is a few scalars."""
    config = small(*overrides, "mesh.tensor=2", "model={vocab: 321, hidden: 62, head_dim: 16}")
    state = Program(config, make_mesh(config.mesh, jax.devices())).init()
    arrays = [array for array in jax.tree.leaves((state.parameters, state.optimizer)) if array.ndim]
    assert sum(p.optimizer for p in parameters(config)) == sum(
        array.addressable_shards[0].data.nbytes for array in arrays
    )


def test_zero_3_gathers_its_largest_part() -> None:
    layer = (4 + 2 + 2 + 4) * 16 * 64 + 3 * 64 * 144 + 2 * 64
    assert describe(small("zero.stage=3")).memory.gathered == 2 * layer
    head = 4096 * 64 + 64
    assert describe(small("zero.stage=3", "model.vocab=4096")).memory.gathered == 2 * head
    assert describe(small("zero.stage=2")).memory.gathered == 0


@pytest.mark.parametrize("model", ["model.activation=swiglu", "model={activation: gelu, norm: layernorm}"])
@pytest.mark.parametrize("tensor", [1, 2])
def test_weights_that_are_not_saved_cost_no_other_activations(model: str, tensor: int) -> None:
    """Without recompute: a policy that lets nothing but weights go would keep the inside of norms, too."""
    early, late = (small(f"zero.stage={stage}", model, f"mesh.tensor={tensor}") for stage in (1, 3))
    assert 0.7 < describe(late).memory.activations / describe(early).memory.activations <= 1


def test_selective_recompute_saves_the_named_activations() -> None:
    described = describe(small("recompute=selective", "mesh.tensor=2", "attention.implementation=reference"))
    saved = {activation.name: activation for activation in described.activations}
    assert saved.keys() == {"input", *SELECTIVE_NAMES} - {LOG_SUM_EXP}  # that is for kernels
    assert saved["query"].bytes == 2 * 48 * (4 // 2) * 16 * 2  # sequences x tokens x heads/tensor x head dim, bfloat16
    assert saved["input"].bytes == 2 * (48 // 2) * 64 * 2  # the sequence is cut over tensor
    assert described.memory.activations == 3 * sum(activation.bytes for activation in described.activations)


def test_cudnn_is_described_where_it_is_not_installed() -> None:
    """It leaves what kernels of our own leave."""
    ours, cudnn = (
        describe(small("recompute=selective", f"attention={{implementation: {name}, over: sequence}}"))
        for name in ("pallas", "cudnn")
    )
    assert cudnn.attention.startswith("cudnn: NVIDIA's flash attention")
    assert "over whole sequences" in cudnn.attention
    assert cudnn.activations == ours.activations
    assert LOG_SUM_EXP in {activation.name for activation in cudnn.activations}


def test_the_more_is_recomputed_the_less_is_saved() -> None:
    full, selective, none = (describe(small(f"recompute={policy}")) for policy in ("full", "selective", "none"))
    assert [activation.name for activation in full.activations] == ["input"]
    assert full.memory.activations < selective.memory.activations < none.memory.activations


def test_unrolled_layers_are_described_alike() -> None:
    scanned, unrolled = (describe(small(f"model.scan_layers={value}")) for value in ("true", "false"))
    assert dataclasses.replace(unrolled, config=scanned.config) == scanned


def test_a_step() -> None:
    described = describe(small())
    assert (described.micro_batch, described.accumulation, described.tokens_per_step) == (2, 4, 32 * 48)


def test_an_open_axis_is_said_aloud() -> None:
    assert describe(small("mesh.data=-1")).assumed == (
        "mesh.data=-1 takes what is left and is shown as 1; for another, say mesh.data=N"
    )
    virtual = describe(small("mesh={data: -1, tensor: 2, virtual_devices: 8}"))
    assert virtual.mesh["data"] == 4
    assert describe(small()).assumed is None


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"batch\.global=32 does not divide"):
        describe(small("mesh.data=5"))


@pytest.mark.parametrize("path", ["stdlib", "here.txt", "."])
def test_a_vocabulary_too_small_for_the_text_is_refused_as_training_does(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here.txt").write_text("a b c")
    config = small("model.vocab=256", f"data.path={path}", "data.cache=.cache")
    with pytest.raises(ConfigError, match=r"^model\.vocab=256 is too small for a byte-level tokenizer; use") as shown:
        show(config)
    with pytest.raises(ConfigError) as trained:
        prepare(config.data, config.model.vocab, print)
    assert str(shown.value) == str(trained.value)


@pytest.mark.parametrize("data", ["{tokenizer: small.json}", "{path: pair/elsewhere}", "{path: pair.bin}"])
def test_a_small_vocabulary_may_do_for_ids_that_are_there(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    show(small("model.vocab=256", f"data={data}"))
    assert "vocab: 256" in capsys.readouterr().out


def test_sizes_that_the_model_derives_are_written_out(capsys: pytest.CaptureFixture[str]) -> None:
    """The same model, and none of its sizes left to be worked out."""
    config = small("model={layers: 3, hidden: 64, heads: 4, context: 48}")
    show(config)
    assert "kv_heads: 4\n  head_dim: 16\n  ffn: 256\n" in capsys.readouterr().out
    show(config, json=True)
    shown = json.loads(capsys.readouterr().out)
    assert [shown["config"]["model"][key] for key in ("kv_heads", "head_dim", "ffn")] == [4, 16, 256]
    assert parameters(Config.from_dict(shown["config"])) == parameters(config)


def test_people_are_shown_every_parameter_and_every_total(capsys: pytest.CaptureFixture[str]) -> None:
    config = small("mesh={data: -1, tensor: 2}", "model.vocab=321", "zero.stage=1")
    show(config)
    shown = capsys.readouterr().out
    described = describe(config)
    for text in (
        *(parameter.name for parameter in described.parameters),
        *(activation.name for activation in described.activations),
        "layers: 3",
        "321→322/tensor x 64",
        described.assumed,
        "reduce_scatter",
        "Not counted",
    ):
        assert str(text) in shown


LAYOUTS = [
    ("llama3-8b", "data=8,tensor=4"),
    ("llama3-8b", "replica=2,data=4,tensor=16"),  # fewer key and value heads than devices of tensor
    ("bloom-176b", "data=8,tensor=4"),
    ("gpt2", "data=5,tensor=2"),  # hardly anything divides
]


@pytest.mark.parametrize(("preset", "mesh"), LAYOUTS)
def test_sharding_of_every_leaf(preset: str, mesh: str) -> None:
    """After a change that is meant: UPDATE_GOLDEN=1 pytest tests/trainer/test_show.py, and read the diff."""
    axes = {axis: int(size) for axis, size in (pair.split("=") for pair in mesh.split(","))}
    tree = SMALL | {
        "model": {"preset": preset},
        "mesh": axes,
        "zero": {"stage": 3},
        "batch": {"global": 40, "micro": 1},
    }
    lines = [
        f"{p.name}: {list(p.shape)} over {p.spec}" + (f", stored as {list(p.stored)}" if p.stored != p.shape else "")
        for p in parameters(Config.from_dict(tree))
    ]
    golden = GOLDEN / f"show_{preset}_{mesh.replace('=', '').replace(',', '_')}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text("\n".join(lines) + "\n")
    assert lines == golden.read_text().splitlines()


STAGES = ("mesh={pipeline: 2, data: 2, tensor: 2}", "zero.stage=3", "batch.micro=2")


@pytest.mark.parametrize(
    "overrides",
    [
        ["recompute=none"],
        ["recompute=full"],
        ["recompute=selective", "pipeline={schedule: interleaved_1f1b, virtual_stages: 2}"],  # 3 layers on 4 places
        ["recompute=selective", "model.positions=alibi", "model.embedding_norm=true", "model.norm=layernorm"],
    ],
    ids=str,
)
def test_what_is_said_of_stages_is_what_their_slots_hold(overrides: list[str]) -> None:
    layers = ["model.layers=7"] if "virtual" in str(overrides) else []
    config = small(*STAGES, *overrides, *layers, "attention.implementation=reference")
    message = 2 * 48 // 2 * 64 * 2  # sequences x tokens x hidden x bytes
    carry = carried(config)
    in_slots = sum(x.size * x.dtype.itemsize for x in carry.kept)
    inboxes = [carry.activation, carry.cotangent, carry.activations, carry.cotangents]
    assert sum(x.size * x.dtype.itemsize for x in inboxes) % message == 0
    expected = in_slots + sum(x.size * x.dtype.itemsize for x in inboxes)
    assert describe(config).memory.activations == expected


def carried(config: Config) -> Carry:
    """The shapes of what goes from tick to tick on one device."""
    program = Program(config, make_mesh(config.mesh, jax.devices()))
    step, shapes = program.train_step, []

    def start(state: TrainState, batch: Batch) -> None:
        assert step.pipeline is not None
        parts = step._parts(step.pipeline, jax.random.key(0))
        leaves, batches = step.open(state.parameters), step._micro_batches(batch)
        shapes.append(jax.eval_shape(Ticks(step.pipeline, parts, leaves, batches).start))

    specs = (program.state_specs, program.batch_specs)
    jax.eval_shape(program.manual(start, specs, None), program.abstract_state(), program.abstract_batch())
    return shapes[0]
