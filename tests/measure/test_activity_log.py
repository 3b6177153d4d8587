"""A rank's clock tells a trace of steps, waits and exchanges; only of those that are profiled."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from src.measure.activity_log import ActivityLog
from src.measure.step_clock import StepClock
from src.measure.timeline import Timeline


class Clock:
    """A clock that stands still until it is told to go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 100.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.seconds)
        monkeypatch.setattr(time, "perf_counter_ns", lambda: round(self.seconds * 1e9))
        # That one began to count 1,000 s before.
        monkeypatch.setattr(time, "time_ns", lambda: round((self.seconds + 1000) * 1e9))

    def take(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def rows(log: ActivityLog) -> list[tuple[str, str, float, float, int]]:
    """Return the rows with times in seconds of this test's clock."""
    return [
        (name, group, begin / 1e9 - 1100, end / 1e9 - 1100, size)
        for name, group, begin, end, size in log.rows
    ]


def test_what_is_told_is_what_the_clock_counts(clock: Clock, tmp_path: Path) -> None:
    log, steps = ActivityLog(), StepClock(0)
    steps.activities = log
    steps.start_clock()
    with steps.exchanging("all_reduce", group="MPI", size=1):
        clock.take(1)
    steps.tick()
    with steps.off_clock():
        clock.take(0.5)
        log.start()
    # 1.5
    with steps.waiting_for_input():
        clock.take(1)
    began = steps.now()
    with steps.exchanging():
        clock.take(2)
    steps.trace_exchange("all_reduce", began, group="MPI", size=80)
    with steps.exchanging("push", group="servers"):
        clock.take(1)
    clock.take(1)
    steps.tick()
    # 6.5
    log.stop()
    with steps.exchanging():
        clock.take(1)
    steps.tick()
    told = [
        ("input", "", 1.5, 2.5, 0),
        ("waiting", "", 2.5, 4.5, 0),
        ("all_reduce", "MPI", 2.5, 4.5, 80),
        ("waiting", "", 4.5, 5.5, 0),
        ("push", "servers", 4.5, 5.5, 0),
        ("step", "", 1.5, 6.5, 2),
    ]
    assert rows(log) == told
    # The first and the last second are of other steps.
    assert steps.exchange_seconds == 1 + 3 + 1
    log.write(tmp_path / "ranks/0/activities.json")
    assert json.loads((tmp_path / "ranks/0/activities.json").read_text()) == [list(row) for row in log.rows]


def test_a_stage_that_waits_says_so(clock: Clock) -> None:
    log, steps = ActivityLog(), StepClock(0)
    steps.activities = log
    log.start()
    timeline = Timeline(first=0, clock=steps)
    for activity in ("forward", "send", "wait", "backward", "optimizer"):
        timeline.mark(activity)
        clock.take(1)
    timeline.end_step()
    assert rows(log) == [("waiting", "", 1, 2, 0), ("waiting", "", 2, 3, 0)]
