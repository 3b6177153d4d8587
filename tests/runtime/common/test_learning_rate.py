"""The learning rate of each step, on numbers worked by hand."""

from __future__ import annotations

import math

import pytest

from src.runtime.common.learning_rate import LearningRate
from tests.support import config


def rates(*words: str, samples: int = 128 * 9, steps: int | None = None) -> list[float]:
    """The rate of each step, and of one more, of an epoch of nine batches of 128."""
    rate = LearningRate.of(config(*words, "optimizer.lr=0.1"), samples)
    return [rate(done) for done in range((rate.steps if steps is None else steps) + 1)]


def test_without_any_key_the_rate_is_lr() -> None:
    assert rates() == [0.1] * 10


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("batch=512", "optimizer.scale_lr=linear"), 0.4),
        (("batch=512", "optimizer.scale_lr=sqrt"), 0.2),
        (("batch=512", "optimizer.scale_lr=none"), 0.1),
        (("batch=32", "optimizer.scale_lr=linear"), 0.025),
        # Under weak scaling `batch` is each worker's: the global one is 512.
        (("strategy=ddp", "workers=2", "batch=256", "scaling=weak", "optimizer.scale_lr=linear"), 0.4),
    ],
)
def test_a_larger_batch_may_have_a_larger_rate(words: tuple[str, ...], expected: float) -> None:
    assert rates(*words, samples=5120)[0] == pytest.approx(expected, rel=1e-15)


def test_a_warm_up_rises_from_nothing_where_the_rate_is_not_scaled_up() -> None:
    assert rates("optimizer.warmup_steps=4", steps=5) == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.1])
    # A batch of a quarter: up to 0.025, below lr.
    small = rates("batch=32", "optimizer.scale_lr=linear", "optimizer.warmup_steps=5", steps=5)
    assert small == pytest.approx([0.005, 0.01, 0.015, 0.02, 0.025, 0.025])


def test_a_warm_up_to_a_scaled_rate_begins_at_the_unscaled_one() -> None:
    words = ("batch=512", "optimizer.scale_lr=linear", "optimizer.warmup_steps=3")
    assert rates(*words, steps=4) == pytest.approx([0.2, 0.3, 0.4, 0.4, 0.4])


def test_a_cosine_falls_from_the_rate_towards_zero() -> None:
    # Nine steps: cos(0), cos(pi / 3) after three of them, cos(2 pi / 3) after six.
    falling = rates("optimizer.schedule=cosine")
    assert [falling[0], falling[3], falling[6]] == pytest.approx([0.1, 0.075, 0.025])
    assert falling[8] == pytest.approx(0.05 * (1 + math.cos(8 * math.pi / 9)))
    assert sorted(falling[:9], reverse=True) == falling[:9]
    # No step has no rate: one past the planned ones has the last one's.
    assert falling[9] == falling[8] > 0


def test_steps_fall_to_a_tenth_at_a_third_two_thirds_and_eight_ninths() -> None:
    assert rates("optimizer.schedule=step") == pytest.approx(
        [*[0.1] * 3, *[0.01] * 3, *[0.001] * 2, 0.0001, 0.0001]
    )
    # Ten steps: the first of them after 10/3, 20/3 and 80/9.
    ten = rates("optimizer.schedule=step", samples=1280)
    assert ten[:10] == pytest.approx([*[0.1] * 4, *[0.01] * 3, *[0.001] * 2, 0.0001])


def test_all_epochs_are_planned_for_and_a_warm_up_multiplies_the_schedule() -> None:
    two = rates("epochs=2", "optimizer.schedule=cosine", "optimizer.warmup_steps=6")
    assert len(two) == 19
    # After three of 18 steps: 4/6 of the rate, times (1 + cos(pi / 6)) / 2.
    assert two[3] == pytest.approx(0.1 * 4 / 6 * (1 + math.sqrt(3) / 2) / 2)
    assert two[9] == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("words", "constant", "changing"),
    [
        ((), True, 0),
        (("optimizer.warmup_steps=4",), False, 4),
        (("optimizer.schedule=step",), False, 9),
        (("optimizer.schedule=step", "optimizer.warmup_steps=40"), False, 40),
    ],
)
def test_how_many_first_steps_have_rates_of_their_own(
    words: tuple[str, ...], constant: bool, changing: int
) -> None:
    rate = LearningRate.of(config(*words), 128 * 9)
    assert (rate.constant, rate.changing_steps) == (constant, changing)
    assert rate(changing) == rate(changing + 5)
