"""Sizes that do not fit together, and keys without effect, are refused when the config is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from models.config import ModelConfig
from sharding.mesh import MeshConfig
from trainer.config import Config
from trainer.config_errors import fields
from trainer.errors import ConfigError
from trainer.settings import BatchConfig

# Overrides of the default config -> what the message says: the equation, and the choices that work.
REFUSED = {
    "a sequence that tensor parallelism cannot split": (
        {"mesh.tensor": 4, "batch.sequence": 102},
        "batch.sequence=102 does not divide by mesh.tensor=4, and norms are split over the sequence; use 100 or 104, "
        "or mesh.tensor can be one of [1, 2]",
    ),
    "a sequence longer than the model's context": (
        {"model.context": 128},
        "batch.sequence=256 is longer than model.context=128; use batch.sequence=128, or a larger model.context",
    ),
    "heads that do not divide": (
        {"mesh.tensor": 8},
        "model.heads=4 does not divide by mesh.tensor=8; mesh.tensor can be one of [1, 2, 4]",
    ),
    "key and value heads that do not divide": (
        {"model.heads": 12, "model.hidden": 192, "model.kv_heads": 6, "mesh.tensor": 4},
        "of model.kv_heads=6 and mesh.tensor=4 one must divide the other; mesh.tensor can be one of [1, 2]",
    ),
    "a batch that does not divide over the mesh": (
        {"mesh.data": 3},
        "batch.global=32 does not divide over mesh.replica x mesh.data x mesh.expert = 3; use 30 or 33",
    ),
    "a micro batch that does not divide": (
        {"mesh.data": 2, "mesh.tensor": -1, "batch.micro": 3},
        "batch.global=32 = micro 3 x accumulation x 2 has no whole solution: each of the 2 groups "
        "(mesh.replica x mesh.data x mesh.expert) takes 16 sequences; batch.micro can be one of [1, 2, 4, 8, 16]",
    ),
    "a micro-batch that has no such parts": (
        {"mesh.data": 2, "mesh.tensor": 2, "batch.micro": 8, "batch.parts": 3},
        "a micro-batch of 8 sequences has no batch.parts=3 equal parts; use one of [1, 2, 4, 8]",
    ),
    "virtual devices that are too few": (
        {"mesh.data": 4, "mesh.virtual_devices": 2},
        "mesh: data 4 needs 4 devices, and there are 2",
    ),
    "an axis that takes the rest of the virtual devices": (
        {"mesh.tensor": -1, "mesh.virtual_devices": 8},
        "model.heads=4 does not divide by mesh.tensor=8",
    ),
    "warm-up and decay longer than the run": (
        {"optimizer.schedule": "wsd", "optimizer.warmup_steps": 600, "optimizer.decay_steps": 500},
        "optimizer.warmup_steps=600 + optimizer.decay_steps=500 is more than train.steps=1000; use a decay_steps "
        "of at most 400",
    ),
    "evaluation without held-out text": (
        {"train.eval_every": 5, "data.holdout": 0},
        "train.eval_every=5 needs held-out text, and data.holdout=0 keeps none; use data.holdout=0.02",
    ),
    "a profile after the end": (
        {"train.steps": 12, "train.profile": {}},
        "train.profile.start=10 + train.profile.steps=3 is more than train.steps=12; use a start of at most 9",
    ),
    "documents apart by cuDNN": (
        {"attention.implementation": "cudnn", "precision.compute": "bfloat16"},
        "attention.implementation=cudnn keeps packed documents apart (attention.over=document) only by a mask of "
        "sequence² in memory; use attention.over=sequence, or attention.implementation=pallas or reference",
    ),
    "float32 by cuDNN": (
        {"attention.implementation": "cudnn", "attention.over": "sequence", "precision.compute": "float32"},
        "attention.implementation=cudnn does not compute in float32 (precision.compute); use "
        "precision.compute=bfloat16 or float16, or attention.implementation=pallas or reference",
    ),
    "cuDNN on devices that are CPU": (
        {
            "attention.implementation": "cudnn",
            "attention.over": "sequence",
            "precision.compute": "bfloat16",
            "mesh.virtual_devices": 1,
        },
        "attention.implementation=cudnn runs on NVIDIA GPUs alone, and here is none; use "
        "attention.implementation=pallas or reference",
    ),
    "a head dim that no kernel takes": (
        {"attention.implementation": "pallas", "model.head_dim": 258},
        "attention.implementation=pallas takes head dims up to 256, and the model's is 258; use "
        "attention.implementation=reference",
    ),
    "nvme without a folder": (
        {"offload.optimizer": "nvme"},
        "offload.optimizer=nvme needs a folder on a local disk; give it as offload.path",
    ),
    "a fraction of which no parameter is": (
        {"offload.optimizer": "host", "offload.optimizer_fraction": 1e-9},
        "offload.optimizer_fraction=1e-09 is less than the smallest parameter, and they are offloaded whole; use at",
    ),
    "an axis that is not there yet": ({"mesh.expert": 2}, "mesh.expert is not supported yet; leave it out"),
    "two axes that take the rest": (
        {"mesh.data": -1, "mesh.tensor": -1},
        "mesh: at most one axis can be -1",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_sizes_that_do_not_fit_are_refused(case: str) -> None:
    overrides, message = REFUSED[case]
    with pytest.raises(ConfigError) as error:
        Config.from_dict({}, overrides)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "overrides",
    [
        {"mesh.tensor": 4, "batch.sequence": 100},
        {"model.kv_heads": 2, "mesh.tensor": 4},
        {"mesh.data": -1, "batch.global": 7},
        {"mesh.data": 4, "mesh.replica": 2, "batch.micro": 2},
        {"mesh.data": -1, "mesh.virtual_devices": 8},
        {"optimizer.warmup_steps": 9, "train.steps": 10},
        {"optimizer.warmup_steps": 20, "train.steps": 10},
        {"optimizer.warmup_steps": 9, "train.steps": 0},
        {"optimizer.decay_steps": 5000},
        {"optimizer.schedule": "wsd", "optimizer.warmup_steps": 500, "optimizer.decay_steps": 500},
    ],
    ids=str,
)
def test_sizes_that_fit_are_taken(overrides: dict[str, Any]) -> None:
    Config.from_dict({}, overrides)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["mesh.data=1", "mesh.tensor=8"], "command line: mesh.tensor=8: model.heads=4 does not divide"),
        (["mesh.data=3", "mesh.tensor=2"], "command line: mesh.data=3: mesh: data 3 x tensor 2 needs 6 devices"),
        (["mesh={data: 3}"], "command line: mesh={data: 3}: batch.global=32 does not divide over mesh.replica x"),
        (["mesh.data=8"], "command line: mesh.data=8: batch.global=32 = micro 8 x accumulation x 8 has no whole"),
        ([], "x.yaml:3: mesh: data 4 needs 4 devices, and there are 8"),
    ],
    ids=lambda case: " ".join(case) if isinstance(case, list) else "",
)
def test_the_override_is_named_that_made_the_sizes_unfit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str], message: str
) -> None:
    """The file, where nothing on the command line has to do with it."""
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text("batch: {global: 32, micro: 8}\nmodel: {heads: 4}\nmesh: {data: 4, virtual_devices: 8}\n")
    with pytest.raises(ConfigError) as error:
        Config.load("x.yaml", overrides)
    assert str(error.value).startswith(message)


def test_all_that_does_not_fit_is_listed() -> None:
    with pytest.raises(ConfigError) as error:
        Config.from_dict({"mesh": {"data": 3, "tensor": 3}, "optimizer": {"name": "sgd", "beta2": 0.9}})
    lines = str(error.value).splitlines()
    assert [line.split("=")[0] for line in lines] == [
        "optimizer.beta2: has no effect with optimizer.name",
        "batch.global",
        "batch.sequence",
        "model.heads",
    ]


# A key that was written, and the settings that make it idle.
IDLE: list[tuple[str, Any, dict[str, Any]]] = [
    ("precision.loss_scale.window", 10, {"precision.compute": "bfloat16"}),
    (
        "precision.loss_scale.consecutive_hysteresis",
        True,
        {"precision.compute": "float16", "precision.loss_scale.rule": "megatron"},
    ),
    ("model.rope_theta", 1e4, {"model.positions": "learned"}),
    ("optimizer.beta2", 0.95, {"optimizer.name": "sgd"}),
    ("optimizer.epsilon", 1e-8, {"optimizer.name": "lion"}),
    ("optimizer.min_ratio", 0.1, {"optimizer.schedule": "constant"}),
    ("optimizer.decay_steps", 10, {"optimizer.schedule": "constant"}),
    ("zero.persist_below", 0, {"zero.stage": 0}),
    ("data.text_key", "text", {"data.path": "stdlib"}),
]


@pytest.mark.parametrize(("key", "value", "settings"), IDLE, ids=[key for key, _, _ in IDLE])
def test_a_key_without_effect_is_refused_where_it_is_written(key: str, value: Any, settings: dict[str, Any]) -> None:
    Config.from_dict({}, settings)
    with pytest.raises(ConfigError) as error:
        Config.from_dict({}, {key: value} | settings)
    setting, cause = list(settings.items())[-1]
    assert str(error.value).startswith(f"overrides: {key}={value}: ")
    assert f"has no effect with {setting}={cause} (" in str(error.value)


def test_a_preset_may_hold_what_has_no_effect() -> None:
    config = Config.from_dict({"model": {"preset": "llama3-8b", "positions": "learned"}})
    assert Config.from_dict(config.to_dict()) == config


class TestResolve:
    """On devices: -1 is filled, and what could not be known before is checked."""

    def test_fills_the_free_axis(self) -> None:
        assert Config.from_dict({"mesh": {"data": -1}}).resolve(8).mesh.data == 8

    @pytest.mark.parametrize(
        ("mesh", "devices", "message"),
        [
            ({"data": 4}, 8, "mesh: data 4 needs 4 devices, and there are 8"),
            ({"data": -1}, 3, "batch.global=32 does not divide over mesh.replica x mesh.data x mesh.expert = 3"),
            ({"tensor": -1}, 8, "model.heads=4 does not divide by mesh.tensor=8"),
        ],
    )
    def test_refuses_devices_that_do_not_fit(self, mesh: dict[str, int], devices: int, message: str) -> None:
        with pytest.raises(ConfigError) as error:
            Config.from_dict({"mesh": mesh}).resolve(devices)
        assert str(error.value).startswith(message)


def test_an_offload_section_may_wait_while_its_optimizer_is_switched_off() -> None:
    section = {"optimizer": "nvme", "path": "/scratch", "bucket": 1000, "buffers": 5, "optimizer_fraction": 0.5}
    assert Config.from_dict({"offload": section}, ["offload.optimizer=none"]).offload.bucket == 1000


@pytest.mark.parametrize(
    ("preset", "devices", "bucket", "least"),
    [("gpt2", 1, 1, 2048), ("gpt2", 1, 2047, 2048), ("llama3-70b", 8, 2048, 88192)],
)
def test_buckets_that_a_step_would_take_minutes_for_are_refused(
    preset: str, devices: int, bucket: int, least: int
) -> None:
    tree = {"model": {"preset": preset}, "mesh": {"data": -1}, "batch": {"sequence": 128}}
    asked = Config.from_dict(tree, {"offload.optimizer": "host", "offload.bucket": bucket})
    with pytest.raises(ConfigError, match=rf"offload.bucket={bucket} cuts the .* parts, .*; use at least {least} "):
        asked.resolve(devices)
    Config.from_dict(tree, {"offload.optimizer": "host", "offload.bucket": least}).resolve(devices)


@pytest.mark.parametrize("key", ["bucket=1000", "optimizer_fraction=0.5"])
def test_what_offload_is_told_needs_an_optimizer_that_is_offloaded(key: str) -> None:
    with pytest.raises(ConfigError, match=r"has no effect with offload.optimizer=none \(nothing "):
        Config.from_dict({}, [f"offload.{key}"])


@pytest.mark.parametrize("key", ["path=/scratch", "buffers=5", "direct_io=false"])
def test_what_files_need_may_wait_for_nvme_where_another_place_is_written(key: str) -> None:
    for place in ("none", "host"):
        Config.from_dict({}, [f"offload.optimizer={place}", f"offload.{key}"])
    with pytest.raises(ConfigError, match=r"has no effect with offload.optimizer=none \(only nvme has files\)"):
        Config.from_dict({}, [f"offload.{key}"])


def test_a_pipeline_section_needs_stages_or_that_there_are_none_said() -> None:
    with pytest.raises(ConfigError, match=r"pipeline: has no effect with mesh.pipeline=1"):
        Config.from_dict({"pipeline": {"keep": "inputs"}})
    assert Config.from_dict({"pipeline": {"keep": "inputs"}, "mesh": {"pipeline": 1}}).pipeline.keep == "inputs"


SECTIONS = {"model": ModelConfig, "mesh": MeshConfig, "batch": BatchConfig}
SIZES = [
    f"{section}.{key}"
    for section, schema in SECTIONS.items()
    for key, info in fields(schema).items()
    if int in (info.annotation, *get_args(info.annotation))
]


@pytest.mark.parametrize("key", SIZES)
def test_no_size_is_more_than_can_be_counted_with(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"{key}=\d+: expected a whole number \(at least -?\d+ and at most \d+\)"):
        Config.from_dict({}, {key: 10**10})


MATRICES: list[dict[str, Any]] = [
    {"model.hidden": 10**6, "model.layers": 1000},
    {"model.vocab": 10**8, "model.hidden": 64},
    {"model.ffn": 10**8},
    {"model.head_dim": 10**5, "model.heads": 1000},
    {"model.positions": "learned", "model.context": 10**8},
]


@pytest.mark.parametrize("settings", MATRICES, ids=str)
def test_a_matrix_with_more_entries_than_random_bits_are_numbered_for_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r" x model.*: a matrix of [\d,]+ entries, and one can have 4,294,967,295 at"):
        Config.from_dict({}, settings)
