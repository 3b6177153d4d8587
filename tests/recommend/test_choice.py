"""Choices among ways that were predicted, on evidence that is made up."""

from __future__ import annotations

from typing import Any

import pytest

from src.config.run_config import Degrees
from src.predict.memory import GIB
from src.predict.step import Parts
from src.recommend import rules
from src.recommend.candidate import Candidate
from src.recommend.choice import Limits, choose, front
from src.recommend.sentences import opening

DEVICE = 80 * GIB


def way(
    compute: float,
    exchange: float = 0.0,
    bubble: float = 0.0,
    other: float = 0.0,
    gib: float = 1.0,
    **more: Any,
) -> Candidate:
    """A way of dividing a batch of 100 samples, of so many seconds by part."""
    degrees = more.pop("degrees", Degrees())
    given: dict[str, Any] = {
        "room": DEVICE,
        "samples_asked": 3.6e6,
        "at_start": 0.0,
        "microbatches": 1,
        **more,
    }
    parts = Parts(compute, exchange, bubble, other)
    return Candidate(degrees, 100, samples=100, parts=parts, held={"weights": gib * GIB}, **given)


ALONE = way(1.0, gib=8.0)


def ddp(devices: int, compute: float, exchange: float = 0.0, **more: Any) -> Candidate:
    return way(compute, exchange, degrees=Degrees(data=devices), **more)


def test_devices_that_compute_their_part_are_worth_having() -> None:
    found = choose([ALONE, ddp(2, 0.5, 0.02), ddp(4, 0.25, 0.03)], "throughput")
    assert found.chosen is not None and found.chosen.devices == 4
    assert found.tied == () and [each.devices for each in found.behind] == [2, 1]


def test_devices_that_exchange_for_longer_than_they_save_are_not() -> None:
    found = choose([ALONE, ddp(2, 0.5, 1.4), ddp(4, 0.25, 2.8)], "throughput")
    assert found.chosen is ALONE
    assert [each.devices for each in found.behind] == [2, 4]


def test_what_a_step_costs_whatever_it_does_is_as_good_on_one_device() -> None:
    """A step that starting kernels or reading data fills isn't shorter on several devices."""
    bound = [way(0.001, other=0.015), way(0.0005, other=0.015, degrees=Degrees(data=2))]
    found = choose(bound, "throughput")
    assert found.chosen is bound[0] and found.tied == (bound[1],)


def test_of_what_nothing_tells_apart_the_fewest_devices_and_the_simplest_are_chosen() -> None:
    shards = way(0.24, 0.01, degrees=Degrees(shard=4))
    copies = ddp(4, 0.24, 0.0101)
    more = ddp(8, 0.23, 0.0101)
    found = choose([ALONE, shards, more, copies], "throughput")
    assert found.chosen is copies
    assert found.tied == (more, shards)


def test_what_does_not_fit_is_not_chosen_and_what_would_is_said() -> None:
    large = [way(1.0, gib=100.0), ddp(2, 0.5, gib=100.0)]
    shards = way(0.6, degrees=Degrees(shard=4), gib=30.0)
    found = choose([*large, shards], "throughput")
    assert found.chosen is shards
    assert found.refused == (
        "2 of 3 ways don't fit; of these single needs least, 100 GiB a device, of 80 beside what "
        "frameworks take",
    )
    nothing = choose(large, "throughput")
    assert nothing.chosen is None and nothing.front == () and "needs least, 100 GiB" in nothing.refused[0]


def test_weights_that_are_there_before_the_first_step_count() -> None:
    assert not way(1.0, gib=1.0, at_start=90 * GIB).fits


def test_the_least_memory_is_chosen_and_of_the_same_the_fastest() -> None:
    small, smaller = way(0.6, degrees=Degrees(shard=4), gib=2.0), way(0.4, degrees=Degrees(shard=8), gib=1.95)
    found = choose([ALONE, small, smaller], "memory")
    assert found.chosen is smaller and found.tied == (small,)


def test_the_cheapest_is_chosen_within_a_deadline() -> None:
    """A cheaper way is slower: a deadline makes a dearer one the choice."""
    alone, four = way(1.0, price=2.0), ddp(4, 0.3, price=2.0)
    # 3.6 million samples at 100 a second are ten hours.
    assert (alone.hours, alone.cost) == pytest.approx((10.0, 20.0))
    assert (four.hours, four.cost) == pytest.approx((3.0, 24.0))
    assert choose([alone, four], "cost").chosen is alone
    late = choose([alone, four], "cost", Limits(hours=5.0))
    assert late.chosen is four
    (why,) = late.refused
    assert why.startswith("1 may take longer than limit.hours=5; the quickest, ddp on 4 devices, takes 3 h (")
    both = choose([alone, four], "cost", Limits(hours=5.0, cost=22.0))
    assert both.chosen is None and len(both.refused) == 2
    assert "the cheapest, single, costs 20, or up to 2" in both.refused[1]


def test_what_may_break_a_limit_is_not_within_it() -> None:
    """Three hours are expected, and the interval ends later."""
    alone, four = way(1.0, price=2.0), ddp(4, 0.3, price=2.0)
    _, latest = four.hours_interval
    assert latest > 3.2
    assert choose([alone, four], "throughput", Limits(hours=3.1)).chosen is None
    assert choose([alone, four], "throughput", Limits(hours=latest * 1.001)).chosen is four
    dearest = 24.0 * latest / 3
    assert choose([four], "cost", Limits(cost=0.999 * dearest)).chosen is None
    assert choose([four], "cost", Limits(cost=1.001 * dearest)).chosen is four


def test_of_what_costs_as_much_the_fewest_devices_are_chosen() -> None:
    alone, four = way(1.0, price=2.0), ddp(4, 0.249, price=2.0)
    assert four.cost < alone.cost  # type: ignore[operator]
    assert choose([alone, four], "cost").chosen is alone


def test_idle_stages_wait_for_what_computes() -> None:
    idle = way(0.5, bubble=0.5, degrees=Degrees(pipeline=2), microbatches=2)
    assert ALONE.apart(idle) == pytest.approx(ALONE.apart(ddp(2, 0.5)))


def test_what_two_ways_have_in_common_does_not_tell_them_apart() -> None:
    """A device that is slower than believed slows both; an exchange that is dearer slows one."""
    same = way(1.0).apart(ddp(2, 0.5))
    assert same == pytest.approx(0.064, abs=0.001)
    assert way(1.0).apart(ddp(2, 0.5, 0.5)) > 2 * same


def test_the_front_has_what_no_other_way_beats() -> None:
    slow_small = way(1.0, degrees=Degrees(pipeline=2), gib=4.0, microbatches=8)
    fast_large = ddp(2, 0.5, gib=8.0)
    beaten = way(0.7, degrees=Degrees(tensor=2), gib=8.5)
    alike = way(0.5001, degrees=Degrees(shard=2), gib=8.01)
    assert front([alike, beaten, slow_small, fast_large, ALONE]) == [ALONE, slow_small, fast_large]


def test_names_and_words_are_those_of_the_command() -> None:
    mesh = way(0.1, degrees=Degrees(data=4, pipeline=2), microbatches=8)
    assert mesh.name == "hybrid data 4 x pipeline 2 on 8 devices with 8 micro-batches"
    assert mesh.words == [
        "strategy=hybrid", "workers=8", "strategy.data=4", "strategy.pipeline=2", "strategy.schedule=1f1b",
        "strategy.tied=reduce", "batch=100", "microbatches=8",
    ]  # fmt: skip
    assert ALONE.words == ["strategy=single", "batch=100", "microbatches=1"]


@pytest.mark.parametrize(
    ("chosen", "alone", "said"),
    [
        (way(0.1, degrees=Degrees(tensor=8)), ALONE, "Follows: split layers among the devices of one node"),
        (way(0.1, degrees=Degrees(tensor=16)), ALONE, "Breaks: split layers among the devices of one node"),
        (
            way(0.1, degrees=Degrees(pipeline=4), microbatches=16),
            ALONE,
            "Follows: give a pipeline four times",
        ),
        (way(0.1, degrees=Degrees(pipeline=4), microbatches=8), ALONE, "Breaks: give a pipeline four times"),
        (ddp(4, 0.3), ALONE, "Follows: take data parallelism for throughput (paper 4"),
        (ddp(4, 0.3, 0.4), ALONE, "Breaks: divide work only where to compute it takes longer than to wait"),
        (way(0.1, degrees=Degrees(shard=4)), way(1.0, gib=100.0), "Follows: divide a model that doesn't fit"),
    ],
)
def test_rules_of_thumb_are_followed_or_broken(chosen: Candidate, alone: Candidate, said: str) -> None:
    assert any(sentence.startswith(said) for sentence in rules.sentences(chosen, alone, 8, "throughput"))


def test_no_rule_is_about_one_device_that_has_room() -> None:
    assert rules.sentences(ALONE, ALONE, 8, "throughput") == []
    # What is said of rates is none of memory's business.
    assert rules.sentences(ddp(4, 0.3, 0.4), ALONE, 8, "memory") == []


def test_what_one_device_does_as_fast_is_said_first() -> None:
    def said(chosen: Candidate, *others: Candidate, suffices: bool = False) -> list[str]:
        found = choose([chosen, *others], "throughput", Limits(hours=100.0))
        return opening(found, ALONE, lambda each: f"{each.rate:.0f} samples/s", "", suffices=suffices)

    slower = ddp(2, 1.0, 0.1)
    first, second = said(slower, suffices=True)
    assert first.startswith("Nothing should be distributed: one device alone, with ")
    assert second.startswith(f"Of what was asked for, the best is {slower.name}") and "0.9" in second
    # It is among what could be chosen, and is told of as the others are.
    first, none = said(slower, ALONE)
    assert first.startswith(f"Train with {ALONE.name}")
    assert none == "Nothing should be distributed: more devices aren't faster, as far as known."
    # A limit refuses what may be faster.
    assert "of what fits and is within limits more devices" in said(ALONE, ddp(2, 0.97), ddp(2, 100.0))[1]
    # It was asked for, and a limit refuses it.
    assert said(slower)[0].startswith(f"Train with {slower.name}")
    quicker = ddp(8, 0.125)
    assert [each.split(" ")[0] for each in said(quicker)] == ["Train", "That"]
