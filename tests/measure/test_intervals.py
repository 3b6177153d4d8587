"""Sets of time, worked by hand."""

from __future__ import annotations

import random

import pytest

from src.measure.intervals import Interval, common, length, union, without

#  0    5   10   15   20   25
#  a a a a a    a a a a a    a      a: 0-10, 15-25, 30-32
#       b b b b b b b               b: 6-17
A, B = [(15, 25), (0, 10), (30, 32)], [(6, 17)]


def test_what_overlaps_or_touches_is_one() -> None:
    assert union([(3, 5), (0, 2), (4, 9), (9, 10), (7, 7)]) == [(0, 2), (3, 10)]


def test_what_is_in_both_and_what_is_left() -> None:
    assert common(A, B) == common(B, A) == [(6, 10), (15, 17)]
    assert without(A, B) == [(0, 6), (17, 25), (30, 32)]
    assert without(B, A) == [(10, 15)]
    assert without(A, A) == without([], A) == []
    assert without(A, []) == union(A)


def test_time_that_is_told_twice_counts_once() -> None:
    assert length(A) == 22
    assert length([*A, *B]) == 27


@pytest.mark.parametrize("seed", range(20))
def test_every_moment_is_where_it_should_be(seed: int) -> None:
    draw = random.Random(seed)

    def some() -> list[Interval]:
        return [(begin, begin + draw.randrange(8)) for begin in draw.sample(range(60), 8)]

    def moments(intervals: list[Interval]) -> set[int]:
        return {moment for begin, end in intervals for moment in range(begin, end)}

    first, second = some(), some()
    a, b = moments(first), moments(second)
    for found, expected in (
        (union(first), a),
        (common(first, second), a & b),
        (without(first, second), a - b),
    ):
        assert moments(found) == expected
        assert found == union(found)
        assert length(found) == len(expected)
