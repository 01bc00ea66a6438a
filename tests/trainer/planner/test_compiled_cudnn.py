"""The train step with cuDNN's attention, compiled for H100s that are not there; where the CUDA plugin and cuDNN are."""

from __future__ import annotations

import re

import pytest

from pallas_kernels import cudnn
from trainer.config import Config
from trainer.errors import ConfigError
from trainer.planner.compiled import CompiledStep, check_installed, compile_step
from trainer.planner.gpu import load

SEQUENCE = 1536
"""No other size of the step."""


def compiled(recompute: str) -> CompiledStep:
    try:
        check_installed()
        cudnn.check(64, "bfloat16")
    except (ConfigError, ValueError) as error:
        pytest.skip(str(error))
    tree = {
        "model": {
            "layers": 3,
            "hidden": 512,
            "heads": 8,
            "kv_heads": 4,
            "ffn": 1024,
            "vocab": 512,
            "context": SEQUENCE,
        },
        "mesh": {"data": 2, "tensor": 2},
        "zero": {"stage": 3},
        "batch": {"global": 8, "micro": 2, "sequence": SEQUENCE},
        "precision": {"compute": "bfloat16"},
        "recompute": recompute,
        "attention": {"implementation": "cudnn", "over": "sequence"},
    }
    return compile_step(Config.from_dict(tree), load("h100"))


@pytest.mark.parametrize(("recompute", "forward"), [("selective", 1), ("full", 2)])
def test_the_step_calls_cudnn_and_holds_no_scores(recompute: str, forward: int) -> None:
    step = compiled(recompute)
    assert str(step.trace.program.jaxpr).count("dot_product_attention_fwd_wrapper[") == forward
    text = step.compiled.as_text() or ""
    called = re.findall(r'custom_call_target="(\S+?)"', text)
    assert set(called) == {"__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"}
    assert not re.findall(rf"\w+\[[\d,]*{SEQUENCE},{SEQUENCE}[\d,]*\]", text)
