"""Where two runs begin to differ, on numbers worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from src.audit import records
from src.audit.records import Gap, Record, first_gap, gaps, largest


def record(*steps: dict[str, list[float]], losses: tuple[float, ...] = (2.0, 1.0)) -> Record:
    """Of one rank, with these tensors in each step."""
    known = {step: sketched(of) for step, of in enumerate(steps, 1)}
    return Record(dict(enumerate(losses, 1)), {0: known}, {}, None)


def sketched(tensors: dict[str, list[float]]) -> dict[str, np.ndarray]:
    """As sketches, whose last number is of whole numbers alone."""
    return {name: np.array([*each, 0.0]) for name, each in tensors.items()}


STEP = {"weights/a": [3.0, 4.0], "weights/b": [0.0, 1e-9], "gradients/a": [0.6, 0.8], "buffers/m": [1.0]}


def test_equal_runs_have_no_gap() -> None:
    assert first_gap(record(STEP, STEP), record(STEP, STEP), 1e-12) is None
    assert largest(record(STEP), record(STEP))["gradients"] == 0


def test_the_first_step_counts_and_in_it_weights_before_the_loss_before_gradients() -> None:
    other = {**STEP, "gradients/a": [0.6, 0.8 + 1e-3]}
    assert first_gap(record(STEP, other), record(STEP, STEP), 1e-9) == Gap(
        2, "gradients", "a", pytest.approx(1e-3)
    )
    late = record(STEP, other, losses=(2.0, 1.5))
    assert first_gap(late, record(STEP, STEP), 1e-9) == Gap(2, "loss", "", 0.5)
    heavier = {**other, "weights/a": [3.0, 4.5]}
    found = first_gap(record(STEP, heavier, losses=(2.0, 1.5)), record(STEP, STEP), 1e-9)
    assert found == Gap(2, "weights", "a", pytest.approx(0.1), among=2)


def test_a_tensor_that_is_zero_but_for_rounding_is_held_against_all_of_its_kind() -> None:
    # 1e-9 of 5 x 1e-5, and not all of its own 1e-9.
    other = {**STEP, "weights/b": [0.0, 2e-9]}
    assert largest(record(other), record(STEP))["weights"] == pytest.approx(2e-5)


def test_weights_whose_gradients_are_rounding_alone_are_left_out() -> None:
    # What Adam makes of a gradient of 1e-17 is anything.
    idle = {**STEP, "gradients/b": [0.0, 1e-17]}
    other = {**idle, "weights/b": [0.0, 3e-9], "gradients/b": [1e-17, 0.0]}
    assert largest(record(other), record(idle))["weights"] == 0
    # One that has a gradient in either run isn't.
    moved = {**other, "gradients/b": [1e-3, 0.0]}
    assert largest(record(moved), record(idle))["weights"] > 1e-5


def test_a_tensor_that_one_run_lacks_differs_by_all_of_itself() -> None:
    more = {**STEP, "gradients/b": [0.0, 1.0]}
    without = {name: value for name, value in more.items() if name != "gradients/a"}
    for pair in ((record(without), record(more)), (record(more), record(without))):
        found = first_gap(*pair, 1e-9)
        assert found == Gap(1, "gradients", "a", 1.0, among=2)


def test_losses_that_are_no_numbers_or_missing_differ() -> None:
    assert first_gap(record(STEP, losses=(math.nan,)), record(STEP), 1e-9).size == math.inf
    assert first_gap(record(STEP, STEP), record(STEP, losses=(2.0,)), 1e-9).step == 2


def test_a_kind_that_is_not_watched_is_not_compared() -> None:
    of_workers = records.without_gradients(record(STEP))
    assert "gradients" not in largest(of_workers, record(STEP))


def test_gradients_of_parts_add_up_and_stages_are_one_model() -> None:
    half = sketched({**STEP, "gradients/a": [0.3, 0.4]})
    parts = Record({1: 2.0}, {0: {1: half}, 1: {1: half}}, {}, None)
    assert first_gap(records.summed(parts), record(STEP, losses=(2.0,)), 1e-12) is None
    first = {name: value for name, value in sketched(STEP).items() if name.endswith("a")}
    last = {name: value for name, value in sketched(STEP).items() if not name.endswith("a")}
    stages = Record({1: 2.0}, {0: {1: first}, 1: {1: last}}, {}, None)
    assert first_gap(records.joined(stages, lambda _: 0), record(STEP, losses=(2.0,)), 1e-12) is None


def test_every_rank_is_held_against_its_own_or_the_only_one() -> None:
    stale = {**STEP, "weights/a": [3.0, 4.1]}
    one = {1: sketched(STEP)}
    other = {1: sketched(stale)}
    found = list(gaps(Record({1: 2.0}, {0: one, 1: other}, {}, None), record(STEP, losses=(2.0,))))
    assert found[0] == Gap(1, "weights", "a", pytest.approx(0.02), rank=1, among=2)
    own = Record({1: 2.0}, {0: one, 1: other}, {}, None)
    assert first_gap(own, Record({1: 2.0}, {0: one, 1: other}, {}, None), 1e-12) is None
