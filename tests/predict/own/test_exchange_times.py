"""Seconds of exchanges from what was measured, by hand."""

from __future__ import annotations

import pytest

from src.config import ConfigError
from src.predict.own.cost_profile import Profile
from src.predict.own.exchange_times import ExchangeTimes
from src.predict.program import Event
from tests.support import config

MEGA = 2**20


def row(operation: str, *points: tuple[int, float]) -> dict[str, object]:
    return {"operation": operation, "sizes": [{"bytes": size, "seconds": took} for size, took in points]}


def profile(links: str | None = None) -> Profile:
    rows = [
        row("all_reduce", (1024, 0.001), (MEGA, 0.011), (64 * MEGA, 0.641)),
        row("all_reduce_in_shared_memory", (1024, 0.0001), (MEGA, 0.0011), (64 * MEGA, 0.0641)),
        row("all_gather", (1024, 0.002), (MEGA, 0.012), (64 * MEGA, 0.642)),
        row("reduce_scatter", (1024, 0.003), (MEGA, 0.013), (64 * MEGA, 0.643)),
        row("send_receive", (1024, 0.0005), (4 * MEGA, 0.0405), (64 * MEGA, 0.7)),
    ]
    return Profile((), ({"ranks": 2, "device": "cpu device of 1 core(s)", "links": links, "rows": rows},))


def times(*words: str, network: float = 1.0) -> ExchangeTimes:
    return ExchangeTimes.of(profile(), config("strategy=ddp", "workers=2", *words), network)


def test_sizes_that_were_measured_take_as_long_and_others_are_between() -> None:
    found = times()
    assert found.seconds(Event("all_reduce", MEGA, 2, 1, 0.0), shared_memory=False) == pytest.approx(0.011)
    middle = (MEGA + 64 * MEGA) // 2
    assert found.seconds(Event("all_reduce", middle, 2, 1, 0.0), shared_memory=False) == pytest.approx(0.326)
    # Beyond what was measured the rate stays.
    large = Event("all_reduce", 128 * MEGA, 2, 1, 0.0)
    assert found.seconds(large, shared_memory=False) == pytest.approx(1.282)
    assert found.seconds(Event("all_reduce", MEGA, 2, 1, 0.0), shared_memory=True) == pytest.approx(0.0011)


def test_a_rank_hands_over_its_part_of_what_is_gathered_and_the_whole_of_what_is_scattered() -> None:
    found = times()
    gathered = Event("all_gather", MEGA // 2, 2, 1, 0.0)
    assert found.seconds(gathered, shared_memory=True) == pytest.approx(0.012)
    scattered = Event("reduce_scatter", MEGA, 2, 1, 0.0)
    assert found.seconds(scattered, shared_memory=True) == pytest.approx(0.013)


def test_a_ring_of_more_ranks_sends_more_and_in_more_steps() -> None:
    event = Event("all_reduce", MEGA, 8, 1, 0.0)
    # Seven times the latency of 1 ms, and (7 / 8) / (1 / 2) of the 10 ms.
    assert times().seconds(event, shared_memory=False) == pytest.approx(0.007 + 0.010 * 7 / 4)
    twice = times(network=2.0).seconds(event, shared_memory=False)
    assert twice == pytest.approx((0.007 + 0.010 * 7 / 4) / 2)


def test_whoever_broadcasts_hands_over_all_of_it_and_shared_memory_takes_as_long_as_there_are_ranks() -> None:
    found = times()
    assert found.seconds(Event("broadcast", MEGA, 2, 1, 0.0), shared_memory=False) == pytest.approx(0.012)
    added = Event("all_reduce", MEGA, 4, 1, 0.0)
    assert found.seconds(added, shared_memory=True) == pytest.approx(2 * 0.0011)


def test_stages_send_over_a_link_with_latency_and_rate() -> None:
    link = times().link
    assert link.seconds([0]) == pytest.approx(0.0005)
    assert link.seconds([4 * MEGA]) == pytest.approx(0.0405, rel=1e-3)


def test_links_that_were_not_measured_are_said() -> None:
    with pytest.raises(
        ConfigError, match="has no exchanges of strategy=ddp with hardware=lan on a cpu device of 1 core"
    ):
        times("hardware=lan")
