"""What a stage's saved tensors take at their most, on numbers worked by hand."""

from __future__ import annotations

import pytest

from src.partition.saved_tensors import SavedTensors, in_flight, most_bytes

# Of 10 bytes of inputs autograd saves 6, and 100 of the rest.
SAVED = SavedTensors(inputs=10, saved_inputs=6, others=100)


def most(schedule: str | None, recompute: str, stage: int, microbatches: int = 4) -> float:
    return most_bytes(
        SAVED, schedule=schedule, recompute=recompute, stage=stage, stages=3, microbatches=microbatches
    )


def test_micro_batches_in_flight() -> None:
    assert [in_flight("gpipe", stage, 3, 4) for stage in range(3)] == [4, 4, 4]
    assert [in_flight("1f1b", stage, 3, 4) for stage in range(3)] == [3, 2, 1]
    assert [in_flight("1f1b", stage, 3, 2) for stage in range(3)] == [2, 2, 1]
    assert [in_flight(None, stage, 3, 4) for stage in range(3)] == [1, 1, 1]


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
