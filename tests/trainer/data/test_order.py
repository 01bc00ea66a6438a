"""The order of samples: every epoch a new permutation, whatever is asked when."""

from __future__ import annotations

import numpy as np
import pytest

from trainer.data.order import in_order, shuffled


@pytest.mark.parametrize("num_items", [1, 2, 3, 5, 16, 17, 1000, 4097])
def test_every_epoch_is_a_new_permutation_of_the_same_items(num_items: int):
    epochs = shuffled(3, np.arange(4 * num_items), num_items).reshape(4, num_items)
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch), np.arange(num_items))
    if num_items > 10:
        assert len({epoch.tobytes() for epoch in epochs}) == 4


def test_an_item_depends_on_its_position_alone():
    whole = shuffled(0, np.arange(300), 101)
    one_by_one = [int(shuffled(0, np.array(position), 101)[0]) for position in range(300)]
    np.testing.assert_array_equal(whole, one_by_one)
    np.testing.assert_array_equal(shuffled(0, np.arange(300).reshape(3, 100), 101).ravel(), whole)


@pytest.mark.parametrize(("first", "last"), [(0, 10), (4090, 4100), (4096, 4096), (5, 9000), (2**40 - 3, 2**40 + 3)])
def test_positions_that_follow_each_other_are_the_same_by_the_block(first: int, last: int):
    expected = shuffled(5, np.arange(first, last), 1000) if first < last else []
    np.testing.assert_array_equal(in_order(5, first, last, 1000), expected)


def test_the_order_never_changes_between_releases():
    """A run that is resumed under a newer release sees what it would have seen."""
    assert shuffled(0, np.arange(12), 10).tolist() == [4, 3, 9, 8, 7, 5, 0, 2, 6, 1, 5, 9]
    far = shuffled(7, np.arange(2**40, 2**40 + 3), 10**12)
    assert far.tolist() == [592663582691, 893922677955, 676862307500]


def test_seeds_differ_and_any_integer_is_one():
    orders = {shuffled(seed, np.arange(50), 50).tobytes() for seed in (0, 1, 2, -1, 2**63)}
    assert len(orders) == 5


def test_a_shuffle_spreads_evenly():
    """Where each of 20 items comes in 2,000 epochs: chi-squared within 5 sigma of its degrees of freedom."""
    num_items, epochs = 20, 2000
    orders = shuffled(1, np.arange(num_items * epochs), num_items).reshape(epochs, num_items)
    seen = np.zeros((num_items, num_items))
    np.add.at(seen, (np.arange(num_items)[None, :], orders), 1)
    expected = epochs / num_items
    chi_squared = ((seen - expected) ** 2 / expected).sum()
    degrees = (num_items - 1) ** 2
    assert abs(chi_squared - degrees) < 5 * np.sqrt(2 * degrees)


def test_neighbours_do_not_stay_neighbours():
    order = shuffled(2, np.arange(100_000), 100_000)
    assert (np.abs(np.diff(order)) < 10).mean() < 1e-3
    assert abs(np.corrcoef(order, np.arange(100_000))[0, 1]) < 0.02


def test_positions_and_items_past_32_bits():
    num_items = 3 * 2**32 + 1
    position = np.arange(5 * num_items, 5 * num_items + 1000)
    items = shuffled(0, position, num_items)
    assert len(set(items.tolist())) == 1000
    assert items.min() >= 0
    assert 2**33 < items.max() < num_items
