"""An implementation is taken only for what it can do; what it cannot is named, with its setting and a way out."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from pallas_kernels.attention import IMPLEMENTATIONS, Name, Wanted, able, choose, objections

H100 = "NVIDIA H100 80GB HBM3"
PLAIN = Wanted(head_dim=64, dtype="bfloat16", gpu="")

# What is wanted besides PLAIN -> who can do it.
ABLE: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({}, ("pallas", "cudnn", "reference")),
    ({"head_dim": 256}, ("pallas", "cudnn", "reference")),
    ({"head_dim": 20}, ("pallas", "reference")),
    ({"head_dim": 257}, ("reference",)),
    ({"dtype": "float16"}, ("pallas", "cudnn", "reference")),
    ({"dtype": "float32"}, ("pallas", "reference")),
    ({"documents": True}, ("pallas", "reference")),
    ({"alibi": True}, ("pallas", "reference")),
    ({"soft_cap": True}, ("pallas", "reference")),
    ({"gpu": None}, ("pallas", "reference")),
]


@pytest.mark.parametrize(("more", "who"), ABLE, ids=str)
def test_who_can_do_what(more: dict[str, Any], who: tuple[str, ...]) -> None:
    wanted = PLAIN._replace(**more)
    assert set(able(wanted)) == set(who)
    for name in get_args(Name):
        refused = objections(name, wanted)
        assert bool(refused) == (name not in who)
        for line in refused:
            assert line.startswith(f"attention.implementation={name} ")
            assert line.endswith(f"attention.implementation={' or '.join(able(wanted))}")


def test_all_that_cannot_be_done_is_told_with_its_setting() -> None:
    wanted = Wanted(300, "float32", None, documents=True, alibi=True, soft_cap=True)
    with pytest.raises(ValueError, match="NVIDIA GPUs") as error:
        choose("cudnn", wanted)
    lines = str(error.value).splitlines()
    settings = "here is none", "is 300", "precision.compute", "attention.over", "model.positions", "model.soft_cap"
    assert all(setting in line for setting, line in zip(settings, lines, strict=True))
    assert "use precision.compute=bfloat16 or float16, or attention.implementation=reference" in lines[2]
    assert "use attention.over=sequence, or attention.implementation=reference" in lines[3]


@pytest.mark.parametrize("gpu", ["", H100, None])
def test_auto_takes_what_can_do_all(gpu: str | None) -> None:
    choice = choose("auto", Wanted(300, "float32", gpu, documents=True, alibi=True, soft_cap=True))
    assert choice.name == "reference"


@pytest.mark.parametrize(
    ("gpu", "name", "why"),
    [("", "pallas", "right and fastest"), (H100, "pallas", "not tried"), (None, "reference", "")],
)
def test_auto_takes_kernels_on_gpus(gpu: str | None, name: str, why: str) -> None:
    choice = choose("auto", PLAIN._replace(gpu=gpu))
    assert choice.name == name
    assert why in choice.why


def test_what_is_taken_says_what_is_to_be_known() -> None:
    assert "very slow" in choose("pallas", PLAIN._replace(gpu=None)).why
    assert "very slow" not in choose("pallas", PLAIN._replace(gpu=H100)).why
    assert "whole sequences" in choose("cudnn", PLAIN).why
    assert "whole sequences" not in choose("pallas", PLAIN._replace(documents=True)).why


def test_each_name_has_an_implementation() -> None:
    assert set(get_args(Name)) == set(IMPLEMENTATIONS)
