"""The operations that are computed again are those that cost least; all choices of small models are tried."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest

from src.partition.recompute import Passes, least


def seconds_of(passes: Passes, runs: list[tuple[int, int]]) -> float:
    return float(sum(passes.seconds[start:stop].sum() for start, stop in runs))


def all_choices(passes: Passes) -> list[list[tuple[int, int]]]:
    """Every set of runs, each within a stage; operations of a run are in one, those outside in none."""
    count, found = len(passes.saved), []
    # Of each operation: kept, a run begins, or a run goes on.
    for kinds in itertools.product("kbg", repeat=count):
        if kinds[0] == "g" or any(
            kinds[place] == "g" and (kinds[place - 1] == "k" or place in passes.starts)
            for place in range(1, count)
        ):
            continue
        runs: list[list[int]] = []
        for place, kind in enumerate(kinds):
            if kind == "b":
                runs.append([place, place + 1])
            elif kind == "g":
                runs[-1][1] = place + 1
        found.append([(start, stop) for start, stop in runs])
    return found


def test_an_operation_that_saves_much_and_takes_little_is_computed_again() -> None:
    passes = Passes(
        seconds=np.array([1.0, 1.0, 5.0]),
        saved=np.array([4.0, 8.0, 8.0]),
        entering=np.array([1.0, 1.0, 1.0]),
        held=np.array([2, 2, 2]),
    )
    # All of two micro-batches is 40. Without the second operation it is 24, 2 that enter, and 8 of the one
    # that goes backward.
    assert passes.bytes() == 40 and passes.bytes([(1, 2)]) == 34
    assert least(passes, 40) == []
    assert least(passes, 37) == [(1, 2)]
    assert least(passes, 34) == [(1, 2)]
    # The first two by themselves: 16 + 2 + 2 + 8; together they would need 12 at once.
    assert least(passes, 28) == [(0, 1), (1, 2)]
    assert least(passes, 3) is None


@pytest.mark.parametrize("seed", range(12))
def test_of_all_choices_it_is_the_cheapest_that_fits(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = 7
    passes = Passes(
        seconds=random.integers(1, 9, count).astype(float),
        saved=random.integers(0, 9, count).astype(float),
        entering=random.integers(1, 4, count).astype(float),
        held=np.repeat(random.integers(1, 5, 2), [3, 4]),
        starts=(0, 3),
    )
    choices = all_choices(passes)
    for share in (0.9, 0.7, 0.5, 0.3):
        room = share * passes.bytes()
        fitting = [seconds_of(passes, each) for each in choices if passes.bytes(each) <= room]
        found = least(passes, room)
        if not fitting:
            assert found is None
            continue
        assert found is not None and passes.bytes(found) <= room
        assert seconds_of(passes, found) == min(fitting)


def test_a_long_model_takes_a_second() -> None:
    random = np.random.default_rng(0)
    count = 1000
    passes = Passes(
        seconds=random.random(count),
        saved=random.random(count),
        entering=0.5 + random.random(count),
        held=np.full(count, 8),
    )
    began = time.process_time()
    found = least(passes, 0.3 * passes.bytes())
    assert time.process_time() - began < 20
    assert found and passes.bytes(found) <= 0.3 * passes.bytes()
    # Less than half of what computing everything again takes.
    assert seconds_of(passes, found) < passes.seconds.sum()
