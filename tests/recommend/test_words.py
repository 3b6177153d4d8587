"""Figures of an answer as a person says them."""

from __future__ import annotations

import pytest

from src.recommend import words


@pytest.mark.parametrize(
    ("hours", "said"),
    [
        (1 / 3600, "1 s"),
        (0.0333, "120 s"),
        (0.04, "2.4 min"),
        (1.99, "119 min"),
        (2.0, "2 h"),
        (123.4, "123 h"),
    ],
)
def test_a_time_has_the_unit_in_which_it_is_said(hours: float, said: str) -> None:
    assert words.duration(hours) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.12345, "0.1235"), (12.345, "12.35"), (999.96, "1000"), (1234.5, "1,234"), (1.9876e6, "1,988,000")],
)
def test_a_number_has_four_digits_and_no_power_of_ten(value: float, said: str) -> None:
    assert words.number(value) == said


def test_an_energy_is_in_kilowatt_hours_or_watt_hours() -> None:
    assert (words.energy(5.2e-5), words.energy(0.5), words.energy(1234.5)) == (
        "0.052 Wh",
        "0.5 kWh",
        "1,234 kWh",
    )


def test_what_no_way_divides_is_said_for_each_batch() -> None:
    had = {(64, 2), (64, 4), (96, 2), (96, 3), (96, 4)}
    assert words.without([64, 96], [1, 2, 3, 4], had) == [
        "batch=64: no way that is predicted divides it evenly over 3 devices"
    ]
    assert words.without([7], [2, 4], had)[0].endswith("over 2 or 4 devices")
