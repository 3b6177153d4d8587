"""A step of ranks that all do the same, by hand."""

from __future__ import annotations

import pytest

from src.config import ConfigError
from src.predict.program import Event, Program, between, least, neighbours


def of_size(event: Event) -> float:
    """A network that takes a second a byte."""
    return float(event.size)


def all_reduce(size: int, call: int, seconds: float) -> Event:
    return Event("all_reduce", size, 2, call, seconds)


def wait(call: int, seconds: float = 0.0) -> Event:
    return Event("wait", 0, 0, call, seconds)


UPDATE = Event("update", 0, 0, 0, 0.0)


def test_a_rank_that_waits_at_once_adds_up() -> None:
    program = Program((all_reduce(3, 1, 10.0), wait(1), all_reduce(2, 2, 5.0), wait(2), UPDATE), 1.0)
    found = program.simulate(of_size)
    assert (found.seconds, found.computing, found.waiting, found.exchanging) == (21.0, 16.0, 5.0, 5.0)
    assert [row[1:] for row in found.intervals] == [
        ("compute", -1, 0.0, 10.0), ("wait", -1, 10.0, 13.0), ("compute", -1, 13.0, 18.0),
        ("wait", -1, 18.0, 20.0), ("update", -1, 20.0, 21.0),
    ]  # fmt: skip


def test_what_is_not_waited_for_is_hidden_and_the_update_waits_for_the_rest() -> None:
    program = Program((all_reduce(3, 1, 10.0), all_reduce(4, 2, 5.0), UPDATE), 1.0)
    found = program.simulate(of_size)
    # The first one is hidden; the second one begins at 15 and ends at 19.
    assert (found.seconds, found.waiting) == (20.0, 4.0)
    # One exchange follows the other: the first one ends at 17, the second one at 21.
    late = Program((all_reduce(7, 1, 10.0), all_reduce(4, 2, 5.0), UPDATE), 1.0).simulate(of_size)
    assert (late.seconds, late.waiting) == (22.0, 6.0)


def test_what_goes_on_beside_it_delays_a_computation() -> None:
    program = Program((all_reduce(4, 1, 10.0), Event("update", 0, 0, 0, 8.0)), 1.0)
    assert program.simulate(of_size).seconds == 19.0
    # Half of the 4 seconds is the rank's own core's.
    assert program.simulate(of_size, slowed=0.5).seconds == 21.0
    # There is no computation to be delayed: the rank waits anyway.
    alone = Program((all_reduce(4, 1, 10.0), Event("update", 0, 0, 0, 0.0)), 1.0)
    assert alone.simulate(of_size, slowed=0.5).seconds == 15.0


def test_a_slower_device_computes_longer_and_exchanges_as_long() -> None:
    program = Program((all_reduce(3, 1, 10.0), wait(1), UPDATE), 1.0)
    assert program.simulate(of_size, computing=2.0).seconds == 25.0


def test_other_samples_are_on_the_line_through_two_sizes() -> None:
    few = Program((all_reduce(4, 1, 10.0), wait(1)), 1.0)
    many = Program((all_reduce(4, 1, 18.0), wait(1)), 1.0)
    found = between(few, many, (4, 8), 6)
    assert found.computed == [14.0, 0.0, 1.0] and found.events[0].size == 4
    assert between(few, many, (4, 8), 12).computed == [26.0, 0.0, 1.0]
    with pytest.raises(ValueError, match="do other things"):
        between(few, Program((wait(1),), 1.0), (4, 8), 6)


def test_of_several_rehearsals_the_one_counts_that_was_least_disturbed() -> None:
    programs = [Program((all_reduce(4, 1, seconds), wait(1)), 1.0) for seconds in (90.0, 10.0, 11.0)]
    assert least(programs) is programs[1]
    with pytest.raises(ValueError, match="other things"):
        least([programs[0], Program((), 1.0)])


@pytest.mark.parametrize(
    ("wanted", "places"), [(3, (0, 1)), (4, (0, 1)), (8, (1, 2)), (12, (1, 2)), (32, (1, 2))]
)
def test_a_size_is_predicted_from_the_nearest_two(wanted: int, places: tuple[int, int]) -> None:
    assert neighbours([4, 8, 16], wanted) == places


@pytest.mark.parametrize(("sizes", "wanted"), [([4], 5), ([4, 8], 1), ([4, 8], 17)])
def test_a_size_that_is_far_from_all_is_not_predicted(sizes: list[int], wanted: int) -> None:
    with pytest.raises(ConfigError, match=f"samples were profiled, not of {wanted}; profile these, or sizes"):
        neighbours(sizes, wanted)
