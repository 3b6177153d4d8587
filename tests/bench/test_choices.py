"""What choices by predictions lose, by hand."""

from __future__ import annotations

import pytest

from bench import choices, study_steps
from bench.choices import places, regret
from src.config import command_line, compose
from tests.support import config


def test_a_choice_loses_what_it_takes_longer_than_the_best() -> None:
    # The first choice takes 12 where 10 would do; the third one is the best.
    assert regret([1.0, 2.0, 3.0, 4.0], [12.0, 11.0, 10.0, 20.0], [0.0] * 4) == pytest.approx((0.2, 0.0))
    # Of the first three none is the best.
    assert regret([4.0, 1.0, 2.0, 3.0], [10.0, 12.0, 15.0, 11.0], [0.0] * 4) == pytest.approx((0.2, 0.1))


def test_what_repetitions_do_not_tell_apart_is_no_loss() -> None:
    assert regret([1.0, 2.0], [10.5, 10.0], [0.3, 0.2]) == (0.0, 0.0)
    assert regret([1.0, 2.0], [10.6, 10.0], [0.3, 0.2])[0] == pytest.approx(0.06)


def test_a_place_has_as_many_ways_as_are_asked_for() -> None:
    found = places([1, 4, 7, 2, 5, 3], lambda number: number % 3, 2)  # type: ignore[type-var]
    assert found == {1: [1, 4, 7], 2: [2, 5]}


def test_ways_do_the_same_work_with_the_same_samples_of_the_same_model() -> None:
    few = ("model=cnn", "dataset=mnist", "batch=64")
    works = {
        words: choices.work_of(config(*few, *words))
        for words in [
            ("strategy=single",),
            ("strategy=ddp", "workers=2"),
            ("strategy=ddp", "workers=2", "scaling=weak", "batch=32"),
            ("dataset=fashion_mnist",),
            ("dataset.limit=640",),
            ("optimizer.name=adam",),
            ("strategy=tf_single",),
            ("hardware.speeds=[0.5]",),
        ]
    }
    alike = [words for words, work in works.items() if work == works["strategy=single",]]
    assert alike == [*list(works)[:3], ("dataset.limit=640",)]


def test_a_study_s_steps_are_few_and_each_is_taken_once() -> None:
    # Four cells have one seed each, and there are three of each of them.
    found = study_steps.chosen("mirrored_scaling")
    assert len(found) == 5
    for words, whole in found:
        (limited,) = compose.cells(command_line.parse(words))
        steps = limited.dataset["limit"] * limited.epochs / limited.global_batch
        assert study_steps.STEPS <= steps < study_steps.STEPS + 2
        # A large batch is taken from few samples, several times.
        assert limited.dataset["limit"] == study_steps.SAMPLES
        assert choices.work_of(limited) == choices.work_of(whole)
