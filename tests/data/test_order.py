"""Step k sees the same samples however many ranks share it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from src.data.batches import training_batches, training_order
from src.data.order import WINDOW_BLOCKS, batch_indices, epoch_order, even_slice, steps_per_epoch
from tests.support import config


@pytest.mark.parametrize("world", range(1, 20))
@pytest.mark.parametrize("count", [0, 1, 2, 7, 16, 97, 128, 10_000])
def test_shards_cover_every_item_once_and_differ_by_at_most_one(count: int, world: int) -> None:
    items = list(range(count))
    parts = [items[even_slice(count, rank, world)] for rank in range(world)]
    assert [item for part in parts for item in part] == items
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_the_ranks_shards_of_a_step_are_the_single_workers_batch(world: int) -> None:
    order = epoch_order(samples=1_000, seed=3, epoch=2)
    for step in range(steps_per_epoch(1_000, 64)):
        batch = batch_indices(order, step, 64)
        shards = [batch[even_slice(64, rank, world)] for rank in range(world)]
        np.testing.assert_array_equal(np.concatenate(shards), batch)


def test_an_epoch_is_a_permutation_and_its_steps_drop_the_partial_batch_alone() -> None:
    order = epoch_order(samples=1_000, seed=0, epoch=0)
    assert sorted(order) == list(range(1_000))
    assert order.dtype == np.int64
    assert steps_per_epoch(1_000, 64) == 15
    seen = np.concatenate([batch_indices(order, step, 64) for step in range(15)])
    np.testing.assert_array_equal(seen, order[: 15 * 64])


def test_no_step_is_silently_short() -> None:
    order = epoch_order(samples=10, seed=0, epoch=0)
    for step in (-1, 3):
        with pytest.raises(IndexError, match="3 steps"):
            batch_indices(order, step, 3)


def test_no_rank_outside_the_world_gets_a_shard() -> None:
    for rank in (-1, 2):
        with pytest.raises(IndexError, match="world of 2"):
            even_slice(10, rank, 2)


def test_epochs_and_seeds_differ_and_repeat() -> None:
    orders = {(seed, epoch): tuple(epoch_order(500, seed, epoch)) for seed in range(4) for epoch in range(4)}
    assert len(set(orders.values())) == 16
    assert tuple(epoch_order(500, 2, 3)) == orders[2, 3]


def test_the_order_is_the_same_on_every_machine() -> None:
    assert epoch_order(60_000, seed=0, epoch=0)[:5].tolist() == [47848, 34552, 24994, 32827, 31943]


def test_a_window_keeps_every_sample_and_reads_in_large_pieces() -> None:
    samples, window = 10_007, 512
    order = epoch_order(samples, 0, 0, window)
    assert sorted(order) == list(range(samples))
    for start in range(0, samples, window):
        places = np.sort(order[start : start + window])
        pieces = 1 + np.count_nonzero(np.diff(places) > 1)
        # A window may begin within a block; the last block is a short one.
        assert pieces <= WINDOW_BLOCKS + 2
    # Without a window the samples of a step are as many pieces, nearly.
    assert np.count_nonzero(np.diff(np.sort(epoch_order(samples, 0, 0)[:window])) > 1) > 0.9 * window


def test_a_window_mixes_samples_and_epochs() -> None:
    first, second = (epoch_order(10_000, 0, epoch, 640) for epoch in (0, 1))
    assert (first != second).any()
    np.testing.assert_array_equal(first, epoch_order(10_000, 0, 0, 640))
    # Neighbours in the order are none on the disk, more often than blocks of 40 shuffled within would have.
    assert np.mean(np.abs(np.diff(first)) <= 40) < 0.2


def test_batches_take_the_windows_order() -> None:
    order = epoch_order(100, 3, 1, 32)
    chosen = config("batch=10", "seed=3", "dataset.shuffle_window=32")
    taken = list(training_batches(chosen, 100, first=12, last=15))
    np.testing.assert_array_equal(np.concatenate(taken), order[20:50])


def test_parts_of_a_batch_are_alike_where_an_audit_asks_for_it() -> None:
    audit = {"precision": "own", "steps": 10, "changes": [], "alike": 2, "enter": None}
    chosen = dataclasses.replace(config("batch=10", "seed=3"), audit=audit)
    plain = training_order(config("batch=10", "seed=3"), 25, 0).reshape(5, 5)
    alike = training_order(chosen, 25, 0).reshape(5, 5)
    # Two whole batches of two parts each, and the samples that are left over.
    np.testing.assert_array_equal(alike, plain[[0, 0, 2, 2, 4]])
