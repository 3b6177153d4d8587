"""The best cut, on numbers worked by hand and against every possible cut."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from src.config import ConfigError
from src.partition import balance
from src.partition.balance import Problem


def problem(cost: list[float], stages: int, **overrides: object) -> Problem:
    count = len(cost)
    known: dict[str, object] = {
        "cost": np.array(cost),
        "crossing": np.zeros(count + 1),
        "sent": np.zeros(count + 1),
        "weights": np.zeros(count),
        "kept": np.zeros(count),
        "speeds": [1.0] * stages,
        "in_flight": [1] * stages,
    }
    return Problem(**{**known, **overrides})


def test_two_stages_by_hand() -> None:
    # 1 2 3 | 4: 6 and 4; 1 2 | 3 4: 3 and 7.
    assert balance.best(problem([1, 2, 3, 4], 2)) == [3]
    assert balance.costliest(problem([1, 2, 3, 4], 2), [3]) == 6


def test_a_crossing_counts_for_both_of_its_stages() -> None:
    # Without it 2 2 | 2 2; the crossing in the middle costs 3 on either side, the one before it nothing.
    crossing = np.array([0, 0, 3, 3, 0], dtype=float)
    assert balance.best(problem([2, 2, 2, 2], 2, crossing=crossing)) == [1]
    assert balance.costliest(problem([2, 2, 2, 2], 2, crossing=crossing), [2]) == 7


def test_a_preferred_boundary_is_taken_where_it_costs_a_twentieth_more_at_most() -> None:
    # The best cut is 100 | 100; at boundary 3 it is 105 | 95, at boundary 1 of the others 106 | 94.
    assert balance.best(problem([95, 5, 5, 95], 2)) == [2]
    assert balance.best(problem([95, 5, 5, 95], 2), preferred=[3]) == [3]
    assert balance.best(problem([94, 6, 6, 94], 2), preferred=[3]) == [2]
    # There are too few of them for three stages.
    instance = problem([95, 5, 5, 95], 3)
    assert balance.best(instance, preferred=[3]) == balance.best(instance)
    # None fits into memory.
    limited = problem([95, 5, 5, 95], 2, weights=np.array([1.0, 1.0, 1.0, 1.0]), limit=2.0)
    assert balance.best(limited, preferred=[3]) == [2]


def test_stages_that_are_to_be_sharded_have_weights() -> None:
    # The best cut, 9 | 1 3 5, leaves the first stage without any; the next best is 9 1 | 3 5.
    weights = np.array([0.0, 1.0, 0.0, 1.0])
    assert balance.best(problem([9, 1, 3, 5], 2, weights=weights)) == [1]
    assert balance.best(problem([9, 1, 3, 5], 2, weights=weights, weighted=True)) == [2]
    # A preferred boundary is no exception.
    assert balance.best(problem([9, 1, 3, 5], 2, weights=weights, weighted=True), preferred=[1]) == [2]
    with pytest.raises(ConfigError, match="only 2 of the model's operations have some; use fewer stages"):
        balance.best(problem([9, 1, 3, 5], 3, weights=weights, weighted=True))


def test_a_slower_device_gets_less() -> None:
    # At speeds 1 and 1/3 the first of four equal operations' three quarters: 3 and 1 x 3.
    assert balance.best(problem([1, 1, 1, 1], 2, speeds=[1.0, 1 / 3])) == [3]


def test_memory_keeps_operations_apart() -> None:
    # Time alone would cut 3 | 1 1 1; the second device can't hold three of these weights.
    constraints = {"weights": np.array([1.0, 2.0, 2.0, 2.0]), "limit": 5.0}
    assert balance.best(problem([3, 1, 1, 1], 2)) == [1]
    assert balance.best(problem([3, 1, 1, 1], 2, **constraints)) == [2]


def test_activations_count_for_each_micro_batch_in_flight() -> None:
    instance = problem([1, 1], 2, kept=np.array([3.0, 5.0]), in_flight=[4, 2], weights=np.array([7.0, 11.0]))
    assert instance.memory(0, 0, 1) == 7 + 4 * 3
    assert instance.memory(1, 1, 2) == 11 + 2 * 5


def test_a_model_too_big_says_what_it_needs() -> None:
    weights = np.array([2.0, 2.0, 2.0]) * 2**30
    with pytest.raises(
        ConfigError, match=r"memory_gib=3: the model needs 4.00 GiB a device even at the best cut"
    ):
        balance.best(problem([1, 1, 1], 2, weights=weights, limit=3.0 * 2**30))


def test_among_equally_good_cuts_the_one_that_sends_least() -> None:
    sent = np.array([0, 9, 5, 9, 0], dtype=float)
    assert balance.best(problem([4, 0, 0, 4], 2, sent=sent)) == [2]


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("seed", range(8))
def test_equals_every_possible_cut(stages: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    count = 9
    instance = problem(
        list(random.random(count)),
        stages,
        crossing=np.concatenate([[0], random.random(count - 1) / 3, [0]]),
        weights=random.random(count),
        kept=random.random(count),
        speeds=list(0.5 + random.random(stages)),
        in_flight=list(range(stages, 0, -1)),
        limit=float(count),
    )
    cuts = itertools.combinations(range(1, count), stages - 1)
    assert balance.costliest(instance, balance.best(instance)) == pytest.approx(
        min(balance.costliest(instance, cut) for cut in cuts)
    )


def test_shares() -> None:
    # 345 x 140 / 370 = 130.54
    assert balance.by_share(345, [140, 230]) == [131]
    assert balance.by_share(10, [1, 1, 1]) == [3, 7]
    with pytest.raises(ConfigError, match="leaves a stage without an operation"):
        balance.by_share(10, [1, 1000])
    with pytest.raises(ConfigError, match=r"at most 2 stages, one operation each; choose workers=2"):
        balance.by_share(2, [1, 1, 1])
