"""How a stage's backward pass is divided for the ideal step of a schedule that divides it."""

from __future__ import annotations

from bench import schedules
from src.partition.schedules.actions import Kind


def test_a_whole_pass_is_divided_as_in_the_schedules_own_run() -> None:
    own = {(0, Kind.INPUT_BACKWARD): 1.0, (0, Kind.WEIGHT_BACKWARD): 3.0}
    alone = {(0, Kind.FORWARD): 1.0, (0, Kind.BACKWARD): 2.0}
    divided = schedules._in_parts(alone, own)
    assert divided[0, Kind.INPUT_BACKWARD] == 0.5 and divided[0, Kind.WEIGHT_BACKWARD] == 1.5
    assert schedules._in_parts(alone, {}) == alone
