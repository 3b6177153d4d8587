"""BatchSplit of a batch: whole, of the right sum, and such that all take equally long."""

from __future__ import annotations

import pytest

from src.runtime.common.batch_split import (
    LEAST_MICROBATCH,
    SHORT_WINDOW,
    WINDOW,
    BatchSplit,
    SpeedWindow,
    apportion,
)
from tests.support import config

DDP = ("strategy=ddp", "workers=2", "batch=256")


@pytest.mark.parametrize(
    ("batch", "speeds", "least", "expected"),
    [
        (256, [1, 1], 1, [128, 128]),
        # 204.8 and 51.2.
        (256, [4, 1], 1, [205, 51]),
        (10, [1, 1, 1], 1, [4, 3, 3]),
        (10, [1, 2, 1], 1, [3, 5, 2]),
        # A twentieth, but not less than its four micro-batches need.
        (16, [1, 0.001], 4, [12, 4]),
        (7, [0.5, 2.5], 1, [1, 6]),
        # What is left is shared by the others, of whom one is too slow then, too.
        (100, [10, 1, 80], 10, [10, 10, 80]),
        (100, [10, 1, 89], 10, [10, 10, 80]),
    ],
)
def test_shares_are_whole_and_in_proportion(
    batch: int, speeds: list[float], least: int, expected: list[int]
) -> None:
    shares = apportion(batch, speeds, least)
    assert sum(shares) == batch
    assert shares == expected


def test_ranks_have_what_lies_between_the_others() -> None:
    shares = BatchSplit(config(*DDP, "batch_shares=[192,64]"))
    assert [shares.part(0), shares.part(1)] == [slice(0, 192), slice(192, 256)]
    # Every item is somebody's, once.
    assert [shares.part(0, 41), shares.part(1, 41)] == [slice(0, 30), slice(30, 41)]
    shares = BatchSplit(config(*DDP))
    assert [shares.part(0), shares.part(1)] == [slice(0, 128), slice(128, 256)]


@pytest.mark.parametrize("fixed", [0.0, 0.02])
@pytest.mark.parametrize("slow", [1.0, 2.0, 4.0, 20.0])
def test_repeated_looks_end_near_the_best_shares(slow: float, fixed: float) -> None:
    def seconds(rank: int, count: int) -> float:
        return (fixed + 0.001 * count) * (slow if rank else 1)

    shares = BatchSplit(config(*DDP, "batch_shares=auto"))
    looks = 0
    while True:
        counts = list(shares.counts)
        speeds = [count / seconds(rank, count) for rank, count in enumerate(counts)]
        if not shares.rebalance(speeds):
            break
        looks += 1
    best = min(
        max(seconds(0, 256 - count), seconds(1, count))
        for count in range(LEAST_MICROBATCH, 257 - LEAST_MICROBATCH)
    )
    assert max(seconds(rank, count) for rank, count in enumerate(shares.counts)) <= 1.1 * best
    # A change of load is followed within 50 steps, the window in which it comes and the next one included.
    assert 2 * WINDOW + looks * SHORT_WINDOW <= 50


def test_statistics_of_a_ranks_own_need_samples() -> None:
    for words, least in (((), 8), (("microbatches=4",), 32), (("batch=8",), 4)):
        shares = BatchSplit(config(*DDP, "batch_shares=auto", *words))
        # Equal ones are as small as it gets for 8 samples.
        assert shares.rebalance([1000.0, 0.1]) == (least != 4)
        assert shares.counts[1] == least, words


def test_what_saves_little_changes_nothing() -> None:
    shares = BatchSplit(config(*DDP, "batch_shares=auto"))
    assert not shares.rebalance([1000.0, 980.0])
    assert shares.rebalance([1000.0, 800.0])


def test_a_speed_is_the_median_of_a_window_but_for_its_first_step() -> None:
    window = SpeedWindow()
    for length in (SHORT_WINDOW, WINDOW, WINDOW):
        assert [window.add(10, 100.0)] == [None]
        for _ in range(length - 2):
            assert window.add(10, 0.5) is None
        assert window.add(10, 0.1) == 20.0
