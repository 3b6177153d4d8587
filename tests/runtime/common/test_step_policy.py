"""When a training evaluates, saves and ends."""

from __future__ import annotations

import pytest

from src.run.status import Status
from src.runtime.common.step_policy import StepPolicy
from tests.support import config

STOPS = ("target_accuracy=0.9", "stop_at_target=true")


def policy(*words: str) -> StepPolicy:
    return StepPolicy(config("epochs=2", *words), 10)


@pytest.mark.parametrize(
    ("words", "asked", "ends"),
    [
        ((), {"step": 19}, None),
        ((), {"step": 20}, Status.OK),
        ((), {"step": 5, "late": True}, Status.TIME_LIMIT),
        ((), {"step": 20, "late": True}, Status.OK),
        ((), {"step": 20, "diverged": True}, Status.DIVERGED),
        (("target_accuracy=0.9",), {"step": 5, "reached": True}, None),
        (STOPS, {"step": 5}, None),
        (STOPS, {"step": 5, "reached": True}, Status.OK),
        # What reaches the target in the last moment has reached it, and what has diverged hasn't.
        (STOPS, {"step": 5, "reached": True, "late": True}, Status.OK),
        (STOPS, {"step": 5, "reached": True, "diverged": True}, Status.DIVERGED),
    ],
)
def test_a_training_ends(words: tuple[str, ...], asked: dict[str, int], ends: Status | None) -> None:
    known = {"diverged": False, "late": False, **asked}
    assert policy(*words).status(known.pop("step"), **known) == ends  # type: ignore[arg-type]


def test_what_falls_due_between_two_steps_is_due() -> None:
    every = policy("evaluate_every=4", "checkpoint_every=6")
    assert every.evaluates(3, 4) and every.evaluates(9, 10) and not every.evaluates(4, 6)
    assert every.evaluates(2, 7) and every.saves(4, 7) and not every.saves(6, 11)
    assert every.saves(6, 7, Status.OK) and not every.saves(6, 7, Status.DIVERGED)
    assert not policy().saves(6, 7, Status.OK)
