"""Attention takes what the formula says, and its square is noticed where it is in memory."""

from __future__ import annotations

from benchmarks.attention_memory import formula, kernel_bytes, squares
from trainer.config import Config
from trainer.trace import trace_step

LENGTH = 256


def config(implementation: str) -> Config:
    return Config.from_dict(
        {
            "model": {
                "layers": 2,
                "hidden": 128,
                "heads": 4,
                "kv_heads": 2,
                "ffn": 192,
                "vocab": 320,
                "context": LENGTH,
            },
            "batch": {"global": 1, "sequence": LENGTH},
            "mesh": {"data": 1},
            "precision": {"compute": "bfloat16"},
            "attention": {"implementation": implementation},
            "recompute": "selective",
        }
    )


def test_kernels_read_and_write_what_the_formula_says_and_nothing_is_square() -> None:
    one = config("pallas")
    program = trace_step(one).program
    arrays, tables = kernel_bytes(program)
    assert sum(arrays.values()) == 2 * formula(one.model, LENGTH, itemsize=2)
    assert set(arrays) == {*"qkvo", "d_q", "d_k", "d_v", "d_o", "lse", "d_lse"}
    assert tables < sum(arrays.values()) / 10
    assert squares(program, one.model, LENGTH) == set()


def test_the_square_of_the_reference_is_noticed() -> None:
    one = config("reference")
    shapes = squares(trace_step(one).program, one.model, LENGTH)
    assert (1, 2, 2, LENGTH, LENGTH) in shapes
