"""A step's time is divided so that its parts add up."""

from __future__ import annotations

import pytest

from bench.unequal import breakdown, milliseconds


def test_the_parts_of_a_step_add_up() -> None:
    # 200 samples at 500/s are 0.4 s; it computed for 0.45 s of 0.6.
    step = breakdown(200.0, 0.6, 0.45, 500.0)
    assert (step.alone, step.beside, step.exchange) == pytest.approx((0.4, 0.05, 0.15))
    assert step.alone + step.beside + step.exchange == pytest.approx(step.seconds)


def test_the_table_has_medians() -> None:
    breakdowns = [breakdown(200.0, seconds, 0.45, 500.0) for seconds in (0.6, 0.7, 9.0)]
    assert milliseconds({"auto 1:2": breakdowns}, {"auto 1:2": [0.5, 0.5, 0.6]}).splitlines()[2:] == [
        "| auto 1:2 | 500 | 700 | 400 | 50 | 250 | 200 |"
    ]
