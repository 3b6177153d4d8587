"""Which weights PipeDream's micro-batches see, by hand, and that they are there by then."""

from __future__ import annotations

import itertools

import pytest

from src.partition.saved_tensors import SavedTensors, most_bytes_when_full
from src.partition.schedules.pipedream import WeightRule


@pytest.mark.parametrize(
    ("stage", "microbatches", "options", "versions"),
    [
        # Stage 0 of 3 has two more micro-batches under way when it begins one.
        (0, 1, {}, [0, 0, 0, 1, 2, 3]),
        (1, 1, {}, [0, 0, 1, 2, 3, 4]),
        (2, 1, {}, [0, 1, 2, 3, 4, 5]),
        (2, 1, {"vertical_sync": True}, [0, 0, 0, 1, 2, 3]),
        (0, 2, {}, [0, 0, 0, 0, 1, 1, 2, 2]),
        (1, 2, {}, [0, 0, 0, 1, 1, 2, 2, 3]),
        (0, 3, {"stash": "two"}, [0, 0, 0, 0, 0, 0, 1, 1, 1, 2]),
        (2, 3, {"stash": "two"}, [0, 0, 0, 0, 0, 0, 1, 1, 1, 2]),
    ],
)
def test_versions_by_hand(
    stage: int, microbatches: int, options: dict[str, object], versions: list[int]
) -> None:
    rule = WeightRule(3, stage, microbatches, **options)
    assert [rule.version(number) for number in range(len(versions))] == versions


@pytest.mark.parametrize(("stages", "microbatches"), [*itertools.product(range(1, 7), repeat=2)])
def test_a_version_is_there_when_it_is_seen_and_no_more_are_held_than_is_said(
    stages: int, microbatches: int
) -> None:
    kinds: list[dict[str, object]] = [{}, {"vertical_sync": True}]
    if microbatches >= stages:
        kinds.append({"stash": "two"})
    for stage, options in itertools.product(range(stages), kinds):
        rule = WeightRule(stages, stage, microbatches, **options)
        done, most = 0, 1
        for begun in range(6 * (stages + microbatches)):
            if begun - done == rule.depth:
                done += 1
            updates = done // microbatches
            assert rule.version(begun) <= updates
            # From that of the oldest one under way to the newest.
            most = max(most, updates - rule.version(done) + 1)
        assert rule.versions == most
        behind = -(-(stages - 1 - (0 if rule.vertical_sync else stage)) // microbatches)
        assert rule.versions == (2 if rule.stash == "two" else 1 + behind)


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (2, 1), (3, 1), (3, 2), (4, 3), (2, 4)])
def test_saved_bytes_are_those_that_are_under_way(stages: int, microbatches: int) -> None:
    saved = SavedTensors(inputs=7.0, saved_inputs=5.0, others=100.0)
    for stage in range(stages):
        rule = WeightRule(stages, stage, microbatches)
        held: list[int] = []
        kept, again = 0.0, 0.0
        for number in range(6 * (stages + microbatches)):
            if len(held) == rule.depth:
                held.pop(0)
            held.append(number)
            batches = len({each // microbatches for each in held})
            received = len(held) if stage else batches * microbatches
            kept = max(kept, 100.0 * len(held) + 5.0 * received)
            # One at a time is computed again.
            again = max(again, 100.0 + 7.0 * received)
        assert most_bytes_when_full(rule, saved, "none") == kept
        assert most_bytes_when_full(rule, saved, "full") == again
