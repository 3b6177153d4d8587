"""Intervals of ratios: on numbers worked by hand, and on simulated runs whose true ratio is known."""

from __future__ import annotations

import math
import random

import pytest

from src.report import repeats


def test_two_configurations_give_the_paired_t_interval() -> None:
    # Log ratios 0.1, 0.2, 0.3: mean 0.2, standard deviation 0.1; t(0.975, 2) = 4.302653.
    base = {1: 100.0, 2: 200.0, 3: 50.0}
    rates = {block: base[block] * math.exp(block / 10) for block in base}
    noise = repeats.pooled_noise([base, rates])
    assert noise is not None and noise.freedom == 2
    assert 2 * noise.variance == pytest.approx(0.01)
    ratios = repeats.paired_ratios(rates, base)
    assert ratios == pytest.approx([math.exp(0.1), math.exp(0.2), math.exp(0.3)])
    half = 4.302653 * 0.1 / math.sqrt(3)
    expected = (math.exp(0.2 - half), math.exp(0.2 + half))
    assert repeats.ratio_interval(ratios, noise) == pytest.approx(expected)


def test_a_block_that_slows_all_runs_alike_is_no_noise() -> None:
    base, rates = {1: 100.0, 2: 50.0, 3: 80.0}, {1: 150.0, 2: 75.0, 3: 120.0}
    noise = repeats.pooled_noise([base, rates])
    assert noise is not None and noise.variance == pytest.approx(0, abs=1e-20)


def test_one_repetition_or_one_configuration_has_no_interval() -> None:
    assert repeats.pooled_noise([{1: 100.0}, {1: 90.0}]) is None
    assert repeats.pooled_noise([{1: 100.0, 2: 90.0}]) is None
    assert repeats.pooled_noise([{1: 100.0, 2: 90.0}, {3: 100.0}]) is None
    assert repeats.ratio_interval([1.1], None) is None
    assert repeats.compare(None) is None


@pytest.mark.parametrize(
    ("interval", "word"),
    [((1.01, 1.2), "faster"), ((0.99, 1.2), "as fast as measured"), ((0.8, 0.99), "slower")],
)
def test_faster_is_said_only_where_the_interval_excludes_one(
    interval: tuple[float, float], word: str
) -> None:
    assert repeats.compare(interval) == word


@pytest.mark.parametrize("configurations", [2, 6])
@pytest.mark.parametrize("repetitions", [3, 5])
def test_intervals_cover_a_known_ratio_as_often_as_they_say(repetitions: int, configurations: int) -> None:
    draws, truth, covered = 1000, 1.3, 0
    # A fixed seed: of 1,000 draws at 95 %, 935 to 965 cover the truth in 97 of 100 such tests.
    generator = random.Random(repetitions)
    for _ in range(draws):
        drift = [generator.gauss(0, 0.2) for _ in range(repetitions)]
        speeds = [1.0, truth, *(1 + 0.1 * i for i in range(configurations - 2))]
        table = [
            {i: speed * math.exp(drift[i] + generator.gauss(0, 0.03)) for i in range(repetitions)}
            for speed in speeds
        ]
        ratios = repeats.paired_ratios(table[1], table[0])
        interval = repeats.ratio_interval(ratios, repeats.pooled_noise(table))
        assert interval is not None
        covered += interval[0] <= truth <= interval[1]
    assert 0.93 <= covered / draws <= 0.97


# The upper 5 % points of the studentized range, for k means and f degrees of freedom, from printed tables
# (Montgomery, Design and Analysis of Experiments, table VII).
@pytest.mark.parametrize(("among", "freedom", "point"), [(3, 4, 5.04), (4, 6, 4.90), (10, 20, 5.01)])
def test_intervals_of_all_pairs_at_once_are_tukeys(among: int, freedom: int, point: float) -> None:
    assert repeats.critical_value(among, freedom) == pytest.approx(point / math.sqrt(2), abs=0.01)
    # Of one pair it is Student's: t(0.975, 4) = 2.776.
    assert repeats.critical_value(2, 4) == pytest.approx(2.776, abs=0.001)


@pytest.mark.parametrize("others", [1, 5, 10])
def test_among_equals_the_best_is_seldom_called_faster(others: int) -> None:
    generator, draws, called = random.Random(others), 600, 0
    for _ in range(draws):
        table = [{block: math.exp(generator.gauss(0, 0.05)) for block in range(3)} for _ in range(others + 1)]
        ratios = [repeats.ratio(rates, table[0], table, len(table)) for rates in table[1:]]
        called += any(ratio and ratio.interval and ratio.interval[0] > 1 for ratio in ratios)
    # Either side of 1 has half of the 5 %, and the draws scatter.
    assert called / draws <= 0.05
