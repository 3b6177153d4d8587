"""The law of steps over batches, held against numbers worked by hand and drawn ones."""

from __future__ import annotations

import math

import numpy as np
import pytest

from src.report.batch_curve import BatchCurve, Reached, ratio_of_critical

BATCHES = (32, 128, 512, 2048)


def drawn(
    critical: float, noise: float = 0.0, least: float = 100, seeds: int = 3, seed: int = 0
) -> BatchCurve:
    generator = np.random.default_rng(seed)
    return BatchCurve(
        tuple(
            Reached(batch, least * (1 + critical / batch) * math.exp(noise * generator.normal()))
            for batch in BATCHES
            for _ in range(seeds)
        )
    )


def test_of_exact_steps_the_law_is_found() -> None:
    # 100 (1 + 512 / B): 1,700 steps with 32, 500 with 128, 200 with 512, 125 with 2,048.
    curve = BatchCurve(tuple(Reached(*each) for each in ((32, 1700), (128, 500), (512, 200), (2048, 125))))
    assert curve.critical_batch == pytest.approx(512, rel=0.02)
    found = curve.at(1024)
    assert found.median == pytest.approx(150, rel=0.02) and not found.extrapolated
    # With a batch of nothing but the critical one, steps and samples are twice their least.
    assert curve.at(512).median == pytest.approx(200, rel=0.02)


def test_intervals_hold_as_often_as_they_say() -> None:
    within_critical, within_steps, generator = 0, 0, np.random.default_rng(1)
    count = 200
    for seed in range(count):
        curve = drawn(300, noise=0.15, seed=seed)
        low, high = curve.critical_interval(0.8)
        within_critical += (low or 0) <= 300 <= (high or math.inf)
        further = 100 * (1 + 300 / 256) * math.exp(0.15 * generator.normal())
        steps = curve.at(256, 0.8)
        within_steps += steps.low <= further <= steps.high
    # Of 200 draws 160 are expected, with a standard deviation of 5.7.
    assert 143 <= within_critical <= 177
    assert 143 <= within_steps <= 177


def test_what_runs_do_not_bound_has_no_bound() -> None:
    # As many samples whatever the batch is: the critical batch is above all that was measured.
    perfect = BatchCurve(tuple(Reached(batch, 64_000 / batch) for batch in BATCHES))
    low, high = perfect.critical_interval(0.8)
    assert low is not None and low > 2048 and high is None
    # As many steps whatever the batch is.
    flat = BatchCurve(tuple(Reached(batch, 100) for batch in BATCHES))
    low, high = flat.critical_interval(0.8)
    assert low is None and high is not None and high < 32


def test_a_batch_outside_those_that_were_measured_is_called_so() -> None:
    curve = drawn(300, noise=0.1)
    assert curve.at(4096).extrapolated and curve.at(16).extrapolated
    assert not curve.at(32).extrapolated and not curve.at(2048).extrapolated
    within, beyond = (curve.at(batch) for batch in (512, 1_000_000))
    assert beyond.high / beyond.low > within.high / within.low


def test_where_the_law_does_not_hold_runs_tell() -> None:
    # With 2,048 twice as many steps as with 512, as no law has it that falls.
    steps = {32: 1700, 128: 500, 512: 200, 2048: 400}
    curve = BatchCurve(
        tuple(Reached(batch, count * k) for batch, count in steps.items() for k in (0.98, 1, 1.02))
    )
    for batch, count in steps.items():
        found = curve.at(batch)
        assert found.median == pytest.approx(count, rel=0.01)
        assert found.low > 0.9 * count and found.high < 1.1 * count
    assert 200 < curve.at(1024).median < 400
    # Of two of them it is open how the runs scatter, beyond all of them the law is, too.
    assert curve.apart(512, 2048, 0.8) < 0.05 < curve.apart(512, 65536, 0.8)


def test_evaluations_apart_widen_the_interval_and_move_the_steps_by_half() -> None:
    exact = BatchCurve(tuple(Reached(batch, 100 * (1 + 512 / batch)) for batch in BATCHES))
    seldom = BatchCurve(tuple(Reached(r.batch, r.steps, r.steps / 2) for r in exact.runs))
    assert seldom.at(256).median == pytest.approx(0.75 * exact.at(256).median, rel=0.02)
    assert seldom.at(256).high / seldom.at(256).low > exact.at(256).high / exact.at(256).low
    # An evaluation that comes after the first steps tells that it was reached within these.
    assert Reached(32, 10, 50).middle == 5


def test_two_networks_share_a_critical_batch_or_they_do_not() -> None:
    low, high = ratio_of_critical(drawn(300, 0.1), drawn(300, 0.1, seed=1))
    assert low < 1 < high
    low, high = ratio_of_critical(drawn(1200, 0.1), drawn(150, 0.1, seed=1))
    assert 1 < low < 8 < high


@pytest.mark.parametrize(
    "runs", [(), ((32, 100), (32, 101), (32, 99)), ((32, 100), (64, 60))], ids=["none", "one batch", "two"]
)
def test_too_few_runs_are_no_curve(runs: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(ValueError, match="needs three runs"):
        BatchCurve(tuple(Reached(*each) for each in runs))
