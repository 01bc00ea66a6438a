"""Batches as functions of the step, and the thread that makes them."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from trainer.data.batches import HeldOutBatches, TrainBatches, prefetch
from trainer.data.indexed import IndexedDataset
from trainer.data.packing import PackedSequences


def windows(num_tokens: int, sequence: int = 4) -> PackedSequences:
    """One document of the tokens 0, 1, 2, ...: a window's first token tells which window it is."""
    tokens = np.arange(num_tokens, dtype=np.int32)
    one = np.array([num_tokens], np.int32)
    indexed = IndexedDataset(tokens, one, np.zeros(1, np.int64), np.array([0, 1]))
    return PackedSequences(indexed, range(1), sequence)


def ids(batches: TrainBatches, steps: range) -> np.ndarray:
    return np.concatenate([batches.batch(step)["tokens"][:, 0] // 4 for step in steps])


def test_a_batch_is_the_windows_side_by_side():
    batch = TrainBatches(windows(81), seed=0, global_batch=6).batch(2)
    assert {name: array.shape for name, array in batch.items()} == {
        **dict.fromkeys(["tokens", "targets", "segments", "positions", "weights"], (6, 4)),
        "samples": (6,),
    }
    np.testing.assert_array_equal(batch["targets"], batch["tokens"] + 1)
    assert batch["samples"].dtype == np.uint32
    assert batch["samples"].tolist() == [12, 13, 14, 15, 16, 17]


def test_a_restart_sees_what_it_would_have_seen():
    through = TrainBatches(windows(81), seed=5, global_batch=6)
    again = TrainBatches(windows(81), seed=5, global_batch=6)
    np.testing.assert_array_equal(ids(through, range(10))[6 * 4 :], ids(again, range(4, 10)))


def test_the_order_does_not_know_how_it_is_cut_into_batches_or_rows():
    stream = ids(TrainBatches(windows(81), seed=5, global_batch=6), range(10))
    np.testing.assert_array_equal(stream, ids(TrainBatches(windows(81), seed=5, global_batch=4), range(15)))
    batches = TrainBatches(windows(81), seed=5, global_batch=6)
    for name, whole in batches.batch(3).items():
        parts = [batches.rows(3, low, low + 2)[name] for low in (0, 2, 4)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_each_epoch_sees_every_window_once_in_a_new_order():
    stream = ids(TrainBatches(windows(81), seed=0, global_batch=4), range(10))
    first, second = stream[:20], stream[20:]
    assert sorted(first) == sorted(second) == list(range(20))
    assert first.tolist() != second.tolist()


def test_samples_past_32_bits_do_not_repeat_the_data():
    batches = TrainBatches(windows(81), seed=0, global_batch=8)
    late = batches.batch(2**32)
    assert late["samples"].tolist() == list(range(8))
    assert late["tokens"].tolist() != batches.batch(0)["tokens"].tolist()
    np.testing.assert_array_equal(batches.batch(np.int32(2**31 - 1))["tokens"], batches.batch(2**31 - 1)["tokens"])


def test_held_out_windows_come_once_in_order_and_the_rest_is_padding():
    held = HeldOutBatches(windows(29), global_batch=4, most=8)
    assert len(held) == 2
    assert held.batch(0)["tokens"][:, 0].tolist() == [0, 4, 8, 12]
    last = held.batch(1)
    assert last["targets"][:3].ravel().tolist() == list(range(17, 29))
    assert last["weights"].sum() == 12
    assert not last["segments"][3].any()
    assert len(HeldOutBatches(windows(29), global_batch=4, most=1)) == 1
    with pytest.raises(IndexError):
        held.batch(2)


def test_prefetch_keeps_the_order_and_runs_only_so_far_ahead():
    made: list[int] = []
    stream = prefetch(lambda step: made.append(step) or step, 3, 20, depth=2)
    assert next(stream) == 3
    deadline = time.monotonic() + 5
    while len(made) < 3 and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.02)
    assert made == [3, 4, 5]
    assert list(stream) == list(range(4, 20))


def test_what_goes_wrong_in_the_thread_is_raised_in_its_turn():
    def get(step: int) -> int:
        if step == 2:
            raise OSError("disk gone")
        return step

    stream = prefetch(get, 0, 9, depth=4)
    assert [next(stream), next(stream)] == [0, 1]
    with pytest.raises(OSError, match="disk gone"):
        next(stream)


def test_closing_ends_the_thread():
    stream = prefetch(lambda step: step, 0, 1000, depth=2)
    next(stream)
    assert any(thread.name == "prefetch" for thread in threading.enumerate())
    stream.close()
    assert not any(thread.name == "prefetch" for thread in threading.enumerate())
