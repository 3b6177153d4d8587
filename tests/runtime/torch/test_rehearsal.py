"""What a rehearsal keeps of a rank's steps, by a clock that a test turns."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

from src.runtime.common.rehearsed import LEAST, SECONDS, STEPS, Rehearsed
from src.runtime.torch import rehearsal
from src.runtime.torch.rehearsal import Step, StepObserver, summary

OPTIMIZER = torch.optim.SGD([torch.zeros(3)], lr=1.0)


class Turned(StepObserver):
    """An observer whose clock is turned by hand."""

    now = 0.0

    def _moment(self) -> float:
        return self.now


def turn(observer: Turned, seconds: float) -> None:
    observer.now += seconds


def warm() -> Turned:
    """An observer of the step after the warm-up."""
    observer = Turned(torch.device("cpu"), warmup=0)
    for _ in range(observer.warmup):
        turn(observer, 9.0)
        observer.step_ends()
    return observer


def exchange(observer: Turned, seconds: float) -> int:
    observer.begin()
    turn(observer, seconds)
    return observer.exchanged("all_reduce", 8, 2)


def test_the_time_of_an_exchange_is_nobodys() -> None:
    observer = warm()
    observer.forward_begins()
    turn(observer, 1.0)
    observer.waited(exchange(observer, 5.0))
    turn(observer, 2.0)
    assert observer.step_begins(OPTIMIZER, ("optimizer",), {}) is None
    turn(observer, 0.5)
    observer.step_ends()
    (step,) = observer.steps
    assert [event[0] for event in step.events] == ["all_reduce", "wait", "update"]
    assert step.computed == [1.0, 0.0, 2.0, 0.5]


def test_where_gradients_are_computed_within_the_update_it_begins_after_them() -> None:
    observer = warm()

    def closure() -> str:
        turn(observer, 3.0)
        return "loss"

    args, kwargs = observer.step_begins(OPTIMIZER, ("optimizer", closure), {})
    assert args == ("optimizer",) and kwargs["closure"]() == "loss"
    turn(observer, 1.0)
    observer.step_ends()
    assert observer.steps[0].computed == [3.0, 1.0]


def test_what_ranks_agree_on_between_steps_and_evaluations_are_no_part_of_a_step() -> None:
    observer = warm()
    turn(observer, 1.0)
    # An agreement, which begins before the next forward pass and is waited for after a later step.
    observer.waited(exchange(observer, 5.0))
    with observer.off_clock(contextlib.nullcontext()):
        observer.forward_begins()
        turn(observer, 50.0)
        exchange(observer, 7.0)
    observer.forward_begins()
    turn(observer, 2.0)
    observer.step_begins(OPTIMIZER, ("optimizer",), {})
    observer.step_ends()
    assert [event[0] for event in observer.steps[0].events] == ["update"]
    assert observer.steps[0].computed == [3.0, 0.0]


def test_it_ends_after_enough_steps_or_enough_time() -> None:
    observer = warm()
    for _ in range(STEPS - 1):
        observer.step_ends()
    with pytest.raises(Rehearsed):
        observer.step_ends()
    slow = warm()
    for _ in range(LEAST - 1):
        turn(slow, SECONDS)
        slow.step_ends()
    turn(slow, SECONDS)
    with pytest.raises(Rehearsed):
        slow.step_ends()


def test_what_most_steps_do_is_kept_with_median_seconds() -> None:
    usual = [
        Step([("all_reduce", 8, 2, call, seconds)], 1.0) for call, seconds in ((1, 2.0), (4, 3.0), (5, 9.0))
    ]
    odd = Step([("all_reduce", 8, 2, 2, 1.0), ("all_reduce", 16, 2, 3, 1.0)], 1.0)
    found = summary([usual[0], odd, *usual[1:]])
    assert found["events"] == [{"kind": "all_reduce", "bytes": 8, "ranks": 2, "call": 0, "seconds": 3.0}]
    assert found["computed"] == [3.0, 4.0, 10.0]


def test_hooks_on_every_optimizer_are_gone_afterwards() -> None:
    observer = warm()
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with rehearsal._following(observer):
        optimizer.step()
    optimizer.step()
    model(torch.zeros(1))
    assert len(observer.steps) == 1
