"""What is put into a record is what is found there, on every tier, whatever its size and whenever it is visited."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.errors import ConfigError
from trainer.offload.nvme import Nvme
from trainer.offload.tiers import ALIGNMENT, Memory, Tier

BLOCK = 8192
SIZES = st.one_of(st.sampled_from([1, 4095, 4096, 4097, BLOCK, BLOCK + 1, 3 * BLOCK]), st.integers(1, 30_000))
Make = Callable[[Sequence[int]], contextlib.AbstractContextManager[Tier]]


def memory(sizes: Sequence[int]) -> contextlib.AbstractContextManager[Tier]:
    return contextlib.closing(Memory(sizes))


@contextlib.contextmanager
def nvme(sizes: Sequence[int], buffers: int = 3, direct: bool = True) -> Iterator[Tier]:
    with tempfile.TemporaryDirectory() as folder:
        try:
            tier = Nvme(Path(folder) / "records", sizes, buffers=buffers, block=BLOCK, direct=direct)
        except ConfigError as error:
            pytest.skip(str(error))  # where temporary folders have no direct I/O
        with contextlib.closing(tier):
            yield tier


TIERS: dict[str, Make] = {
    "memory": memory,
    "nvme": nvme,
    "nvme, one buffer": partial(nvme, buffers=1),
    "nvme through the page cache": partial(nvme, direct=False),
}


@pytest.fixture(params=TIERS)
def make(request: pytest.FixtureRequest) -> Make:
    return TIERS[request.param]


def noise(record: int, size: int) -> np.ndarray:
    return np.random.default_rng(record).integers(256, size=size, dtype=np.uint8)


def fill(tier: Tier) -> None:
    for record, array in tier.sweep(range(len(tier.sizes)), read=False):
        array[:] = noise(record, array.size)


def contents(tier: Tier) -> list[bytes]:
    return [array.tobytes() for _, array in tier.sweep(range(len(tier.sizes)), write=False)]


def after(sizes: Sequence[int], rounds: Sequence[int]) -> list[bytes]:
    """What `fill` leaves, and one added to every byte of a record as often as told."""
    return [(noise(i, size) + np.uint8(n)).tobytes() for i, (size, n) in enumerate(zip(sizes, rounds, strict=True))]


@st.composite
def visits(draw: st.DrawFn) -> tuple[list[int], list[list[int]]]:
    """Sizes, and the orders of a few sweeps, each over some of the records."""
    sizes = draw(st.lists(SIZES, min_size=1, max_size=8))
    records = st.permutations(range(len(sizes)))
    orders = [draw(records)[: draw(st.integers(0, len(sizes)))] for _ in range(draw(st.integers(0, 3)))]
    return sizes, orders


@settings(max_examples=30, deadline=None)
@given(visits=visits())
@pytest.mark.parametrize("name", TIERS)
def test_records_come_back_bit_for_bit(name: str, visits: tuple[list[int], list[list[int]]]) -> None:
    sizes, orders = visits
    rounds = [0] * len(sizes)
    with TIERS[name](sizes) as tier:
        fill(tier)
        for order in orders:
            seen = []
            for record, array in tier.sweep(order):
                seen.append(record)
                assert array.tobytes() == after(sizes, rounds)[record]
                array += 1
                rounds[record] += 1
            assert seen == order
        assert contents(tier) == after(sizes, rounds)


def test_records_hold_zeros_at_first(make: Make) -> None:
    with make([1, 5000]) as tier:
        assert contents(tier) == [bytes(1), bytes(5000)]


def test_records_can_be_used_in_place(make: Make) -> None:
    """XLA copies what is not aligned, and numpy can look at them as any dtype."""
    with make([1, 4097, 12]) as tier:
        for record, array in tier.sweep(range(3)):
            assert (array.dtype, array.shape) == (np.uint8, (tier.sizes[record],))
            assert array.ctypes.data % ALIGNMENT == 0
            assert array.flags.writeable


def test_what_is_not_written_back_cannot_be_changed(make: Make) -> None:
    with make([10, 10]) as tier:
        for _, array in tier.sweep([0, 1], write=False):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1


@pytest.mark.parametrize("order", [[0, 0], [2], [-1]])
def test_an_order_that_cannot_be_is_refused(make: Make, order: list[int]) -> None:
    with make([10, 10]) as tier, pytest.raises(ValueError, match=r"2 records at most once"):
        tier.sweep(order)


def taken(tier: Tier, order: Sequence[int], num: int) -> list[int]:
    """The records that a sweep, closed in the middle, has taken back."""
    with contextlib.closing(tier.sweep(order)) as sweep:
        for _, array in itertools.islice(sweep, num):
            array += 1
        return list(order[: num - 1])


@pytest.mark.parametrize("num", [1, 2, 6])
def test_a_sweep_closed_early_keeps_what_was_given_back(make: Make, num: int) -> None:
    sizes = [BLOCK * 3 + 1] * 8
    with make(sizes) as tier:
        fill(tier)
        threads = threading.active_count()
        order = [7, 3, 1, 0, 2, 6, 4, 5]
        given_back = taken(tier, order, num)
        assert threading.active_count() == threads
        old, new = after(sizes, [0] * 8), after(sizes, [1] * 8)
        for record, content in enumerate(contents(tier)):
            in_hand = record == order[num - 1]
            assert content == (new if record in given_back else old)[record] or (in_hand and content == new[record])


def add_one_until_it_fails(tier: Tier, record: int) -> None:
    for number, array in tier.sweep(range(len(tier.sizes))):
        if number == record:
            raise ZeroDivisionError
        array += 1


def test_a_visitor_that_fails_leaves_no_thread_and_a_tier_in_order(make: Make) -> None:
    sizes = [BLOCK * 2] * 6
    with make(sizes) as tier:
        fill(tier)
        threads = threading.active_count()
        with pytest.raises(ZeroDivisionError):
            add_one_until_it_fails(tier, record=3)
        assert threading.active_count() == threads
        assert contents(tier) == after(sizes, [1, 1, 1, 0, 0, 0])


def test_a_new_sweep_is_safe_from_one_left_in_the_middle(make: Make) -> None:
    sizes = [BLOCK * 2] * 6
    with make(sizes) as tier:
        fill(tier)
        left = tier.sweep(range(6))
        for _, array in itertools.islice(left, 3):
            array += 1
        assert contents(tier) in (after(sizes, [1, 1, n, 0, 0, 0]) for n in (0, 1))


def test_close_may_be_called_again(make: Make) -> None:
    with make([10]) as tier:
        sweep = tier.sweep([0])
        next(sweep)
        del sweep
        tier.close()


def test_host_memory_does_not_grow_with_the_records() -> None:
    with nvme([8192, 4097] * 50) as tier:
        assert tier.host_bytes == 3 * 8192
    with memory([100, 1]) as tier:
        assert tier.host_bytes == 128 + 64
