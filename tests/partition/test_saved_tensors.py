"""What a stage's saved tensors take at their most, on numbers worked by hand."""

from __future__ import annotations

import pytest

from src.partition.saved_tensors import SavedTensors, in_flight, most_bytes
from src.partition.schedules.tables import table

# Of 10 bytes of inputs autograd saves 6, and 100 of the rest.
SAVED = SavedTensors(inputs=10, saved_inputs=6, others=100)


def most(schedule: str | None, recompute: str, stage: int, microbatches: int = 4) -> float:
    order = table(schedule, 3, 1, microbatches)[stage]
    return most_bytes(order, {stage: SAVED}, microbatches, recompute)


def most_in_flight(schedule: str | None, microbatches: int) -> list[int]:
    return [in_flight(own)[stage] for stage, own in enumerate(table(schedule, 3, 1, microbatches))]


def test_micro_batches_in_flight() -> None:
    assert most_in_flight("gpipe", 4) == [4, 4, 4]
    assert most_in_flight("1f1b", 4) == [3, 2, 1]
    assert most_in_flight(None, 4) == [1, 1, 1]
    # Interleaved, 2 ranks of 2 stages, 4 micro-batches: rank 0 does 4 + 1 forward passes ahead, of which 0, 1
    # and 2, 3 pass stage 0; then a backward pass of stage 2 after each forward one.
    assert in_flight(table("interleaved", 2, 2, 4)[0]) == {0: 4, 2: 2}
    # Backward passes for weights end it.
    assert in_flight(table("zero_bubble", 2, 1, 4)[1]) == {1: 2}


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        # The first stage's images are those of all 4 micro-batches: 4 * 6 + 4 * 100; 4 * (6 + 100).
        ("gpipe", [424, 424, 424]),
        # 4 * 6 + 3 * 100; 2 * 106; 106.
        ("1f1b", [324, 212, 106]),
        # 4 * 6 + 100; 106.
        (None, [124, 106, 106]),
    ],
)
def test_a_schedule_holds_those_of_its_micro_batches_in_flight(
    schedule: str | None, expected: list[int]
) -> None:
    assert [most(schedule, "none", stage) for stage in range(3)] == expected


def test_who_computes_again_keeps_inputs_and_one_micro_batch() -> None:
    # 4 * 10 + 100.
    assert [most("gpipe", "full", stage) for stage in range(3)] == [140, 140, 140]
    # 4 * 10 + 100; 2 * 10 + 100; 10 + 100.
    assert [most("1f1b", "full", stage) for stage in range(3)] == [140, 120, 110]


def test_who_keeps_the_last_micro_batch_holds_it_beside_one_that_is_computed_again() -> None:
    # 4 * 10 + 2 * 100.
    assert [most("gpipe", "except_last", stage) for stage in range(3)] == [240, 240, 240]
    # 4 * 10 + 200; 2 * 10 + 200; one at a time: 10 + 100.
    assert [most("1f1b", "except_last", stage) for stage in range(3)] == [240, 220, 110]
    # The only micro-batch is the last one.
    assert most("gpipe", "except_last", 1, microbatches=1) == 106


def test_all_stages_of_a_rank_count() -> None:
    # Looped, one rank with stages 0 and 1 and 2 micro-batches: 2 * 106 in each, of which the images are held
    # to the end.
    assert most_bytes(table("looped_bfs", 1, 2, 2)[0], {0: SAVED, 1: SAVED}, 2) == 424
