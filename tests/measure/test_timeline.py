"""Bubble, overlap and trace, on intervals worked by hand."""

from __future__ import annotations

import pytest

from src.measure import timeline
from src.measure.step_clock import StepClock
from src.measure.timeline import Timeline

# Two stages, two micro-batches, each pass a second; stage 1 waits a second at either end.
#   0    1    2    3    4    5    6
#   F0   F1   wait B0   B1   opt
#        F0   F1+B0..   (stage 1: F0 1-2, B0 2-3, F1 3-4, B1 4-5, opt 5-6)
RANKS = {
    0: [
        (5, "forward", 0, 0.0, 1.0),
        (5, "forward", 1, 1.0, 2.0),
        (5, "wait", 0, 2.0, 3.0),
        (5, "backward", 0, 3.0, 4.0),
        (5, "backward", 1, 4.0, 5.0),
        (5, "optimizer", -1, 5.0, 6.0),
    ],
    1: [
        (5, "wait", 0, 0.0, 1.0),
        (5, "forward", 0, 1.0, 2.0),
        (5, "backward", 0, 2.0, 3.0),
        (5, "forward", 1, 3.0, 4.0),
        (5, "backward", 1, 4.0, 5.0),
        (5, "optimizer", -1, 5.0, 6.0),
    ],
}


def test_bubble_fraction() -> None:
    # Each stage is idle for one of the six seconds.
    assert timeline.bubble_fraction(RANKS) == pytest.approx(2 / 12)


def test_stages_that_are_in_steps_of_their_own_idle_where_they_wait() -> None:
    late = {0: RANKS[0], 1: [(*row[:3], row[3] + 40, row[4] + 40) for row in RANKS[1]]}
    assert timeline.bubble_fraction(late, apart=True) == pytest.approx(2 / 12)
    assert timeline.bubble_fraction({0: RANKS[0], 1: []}, apart=True) is None


def test_a_stage_that_ends_early_is_idle_until_the_last_update() -> None:
    early = {0: RANKS[0], 1: [*RANKS[1][:-1], (5, "optimizer", -1, 5.0, 5.5)]}
    assert timeline.bubble_fraction(early) == pytest.approx(2.5 / 12)


def test_sending_is_not_idling() -> None:
    sending = {0: [*RANKS[0][:2], (5, "send", 1, 2.0, 3.0), *RANKS[0][3:]], 1: RANKS[1]}
    assert timeline.bubble_fraction(sending) == pytest.approx(1 / 12)


def test_a_step_that_only_one_stage_recorded_is_left_out() -> None:
    assert timeline.bubble_fraction({0: RANKS[0], 1: []}) is None
    assert timeline.bubble_fraction({}) is None


def test_chrome_trace() -> None:
    events = timeline.chrome_trace(RANKS)["traceEvents"]
    second = next(e for e in events if e["ph"] == "X" and e["pid"] == 1 and e["cat"] == "backward")
    assert (second["ts"], second["dur"], second["name"]) == (2e6, 1e6, "backward 0")
    assert {e["args"]["name"] for e in events if e["ph"] == "M"} == {"rank 0", "rank 1"}


class SetClock(StepClock):
    """A clock that shows given times, one after the other."""

    def __init__(self, *times: float) -> None:
        super().__init__(0)
        self._times = iter(times)

    def now(self) -> float:
        return next(self._times)


def test_recording() -> None:
    clock = SetClock(0.0, 1.0, 3.0, 6.0, 10.0)
    recorded = Timeline(first=0, clock=clock)
    recorded.mark("forward", 0)
    recorded.mark("send", 0)
    recorded.mark("wait", 0)
    recorded.mark("optimizer")
    recorded.end_step()
    assert recorded.intervals == [
        (0, "forward", 0, 0.0, 1.0),
        (0, "send", 0, 1.0, 3.0),
        (0, "wait", 0, 3.0, 6.0),
        (0, "optimizer", -1, 6.0, 10.0),
    ]
    assert recorded.communication_seconds == clock.communication_seconds == 5.0


def test_only_some_steps_are_kept() -> None:
    recorded = Timeline(first=2)
    for _ in range(timeline.STEPS + 10):
        recorded.mark("forward", 0)
        recorded.end_step()
    assert {row[0] for row in recorded.intervals} == set(range(2, 2 + timeline.STEPS))
