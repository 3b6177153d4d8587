"""Work is done ahead, in order, and ends with its consumer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest

from src.data.prefetch import ahead


def count(numbers: list[int], number: int) -> int:
    numbers.append(number)
    return number


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_results_come_in_order(threads: int) -> None:
    assert list(ahead((partial(pow, n, 2) for n in range(20)), threads)) == [n * n for n in range(20)]


def test_without_threads_nothing_is_done_ahead() -> None:
    done: list[int] = []
    results = ahead((partial(count, done, n) for n in range(5)), 0)
    assert (next(results), done) == (0, [0])


def test_the_next_result_is_made_while_this_one_is_used() -> None:
    made = threading.Event()
    calls: list[Callable[[], bool]] = [lambda: True, lambda: made.set() or True]
    results = ahead(calls, 1)
    next(results)
    assert made.wait(10)
    results.close()


@pytest.mark.parametrize("threads", [0, 2])
def test_an_error_is_raised_where_its_result_would_be(threads: int) -> None:
    results = ahead([partial(divmod, 1, n) for n in (1, 0, 2)], threads)
    assert next(results) == (1, 0)
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("feed")]


def test_threads_end_when_the_consumer_stops() -> None:
    done: list[int] = []
    results = ahead((partial(count, done, n) for n in range(1000)), 2)
    next(results)
    results.close()
    assert len(done) <= 4
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("feed")]
