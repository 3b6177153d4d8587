"""What choices by predictions lose, by hand."""

from __future__ import annotations

import pytest

from bench.choices import places, regret


def test_a_choice_loses_what_it_takes_longer_than_the_best() -> None:
    # The first choice takes 12 where 10 would do; the third one is the best.
    assert regret([1.0, 2.0, 3.0, 4.0], [12.0, 11.0, 10.0, 20.0], [0.0] * 4) == pytest.approx((0.2, 0.0))
    # Of the first three none is the best.
    assert regret([4.0, 1.0, 2.0, 3.0], [10.0, 12.0, 15.0, 11.0], [0.0] * 4) == pytest.approx((0.2, 0.1))


def test_what_repetitions_do_not_tell_apart_is_no_loss() -> None:
    assert regret([1.0, 2.0], [10.5, 10.0], [0.3, 0.2]) == (0.0, 0.0)
    assert regret([1.0, 2.0], [10.6, 10.0], [0.3, 0.2])[0] == pytest.approx(0.06)


def test_a_place_has_three_ways() -> None:
    assert places([1, 4, 7, 2, 5], lambda number: number % 3) == {1: [1, 4, 7]}  # type: ignore[type-var]
