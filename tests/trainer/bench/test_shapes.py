"""What is counted as work, and the time that a GPU takes for it at least."""

from __future__ import annotations

import pytest

from trainer.bench.shapes import SHAPES, Shape, Work
from trainer.planner.gpu import described, load


def test_work_is_counted_as_flash_attention_counts_it() -> None:
    shape = Shape(batch=2, sequence=100, heads=3, head_dim=64)
    assert shape.forward.flops == 4 * 2 * 100 * 100 * 3 * 64 / 2
    assert shape.backward.flops == 2.5 * shape.forward.flops
    array, per_query = 2 * (2 * 100 * 3 * 64), 4 * (2 * 100 * 3)
    assert shape.forward.num_bytes == 4 * array + per_query
    assert shape.backward.num_bytes == 8 * array + per_query


def test_all_shapes_have_as_many_tokens_and_as_large_a_model() -> None:
    assert {(shape.batch * shape.sequence, shape.heads * shape.head_dim) for shape in SHAPES} == {(16384, 2048)}
    assert len(set(SHAPES)) == len(SHAPES) == 4


@pytest.mark.parametrize(("flops", "num_bytes", "seconds", "memory"), [(989e12, 1, 1, False), (1, 6.7e12, 2, True)])
def test_a_roofline_is_the_slower_of_arithmetic_and_memory(
    flops: float, num_bytes: float, seconds: float, memory: bool
) -> None:
    work, gpu = Work(flops, num_bytes), load("h100")
    assert work.seconds(gpu) == pytest.approx(seconds)
    assert work.is_bound_by_memory(gpu) == memory


def test_a_gpu_is_known_by_what_jax_calls_it() -> None:
    gpu = described("NVIDIA H200")
    assert gpu is not None
    assert gpu.name == "h200"
    assert described("NVIDIA GeForce RTX 3060") is None
