"""Which tiles a GPU gets, and how much more than what is seen they make it compute."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from benchmarks.kernel_flops import documents, work
from pallas_kernels.flash.tiles import FLOAT32, OTHERS, TILES, tiles_for

ALL = [tiles for table in (*TILES.values(), OTHERS, FLOAT32) for tiles in table.values()]


@pytest.mark.parametrize(
    ("kind", "table"),
    [
        ("NVIDIA A100-SXM4-80GB", TILES["A100"]),
        ("NVIDIA H100 80GB HBM3", TILES["H100"]),
        ("NVIDIA H200", TILES["H100"]),
        ("NVIDIA GH200 480GB", TILES["H100"]),
        ("NVIDIA B200", TILES["B200"]),
        ("h100", TILES["H100"]),
        ("NVIDIA L40S", OTHERS),
        ("NVIDIA GeForce RTX 5090", OTHERS),
        ("cpu", OTHERS),
    ],
)
def test_a_gpu_is_known_by_its_name_and_one_that_is_not_gets_what_fits_on_all(kind: str, table: object) -> None:
    assert tiles_for(kind, 128, jnp.bfloat16) == table[128]  # type: ignore[index]


def test_a_head_dim_takes_the_tiles_of_the_next_larger_one() -> None:
    dims = {1: 64, 64: 64, 65: 128, 80: 128, 96: 128, 128: 128, 192: 256, 256: 256}
    for head_dim, row in dims.items():
        assert tiles_for("H100", head_dim, jnp.float16) == TILES["H100"][row]
        assert tiles_for("H100", head_dim, jnp.float32) == FLOAT32[row]
    with pytest.raises(ValueError, match="up to 256, not 257: use the reference"):
        tiles_for("H100", 257, jnp.bfloat16)


def test_tiles_are_what_tensor_cores_and_a_program_can_take() -> None:
    for tile in [tile for tiles in ALL for tile in tiles]:
        for size in tile[:2]:
            assert size >= 16
            assert size & (size - 1) == 0
        assert tile.warps in (4, 8)
        assert tile.stages >= 1


@pytest.mark.parametrize("tiles", [TILES["H100"][128], TILES["A100"][64]])
def test_causal_attention_computes_at_most_2_percent_more_than_is_seen(tiles: object) -> None:
    for kernel, tile in tiles._asdict().items():  # type: ignore[attr-defined]
        found = work(tile, 8192, None, None, by_keys=kernel == "d_keys")
        assert found.useful == 8192 * 8193 // 2
        assert found.executed <= 1.02 * found.useful
        assert found.masked <= 0.05 * found.visited


@pytest.mark.parametrize(
    ("shortest", "longest", "window"), [(256, 2048, None), (16, 512, None), (256, 2048, 300), (4096, 4096, 1024)]
)
def test_packed_documents_visit_only_tiles_that_hold_something(shortest: int, longest: int, window: int | None) -> None:
    ids = documents(4096, shortest, longest)
    for kernel, tile in TILES["H100"][128]._asdict().items():
        found = work(tile, 4096, window, ids, by_keys=kernel == "d_keys")
        assert found.live <= found.visited <= 1.02 * found.live
