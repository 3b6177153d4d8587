"""Record when a stage or worker does what in a few training steps, as a Chrome trace.

A rank marks the beginning of each activity; the previous one ends there. Times are the host's
monotonic clock, which all processes of one host share; on a GPU the marks are in its queue.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, SupportsFloat

from src.measure.step_clock import StepClock
from src.run.tables import write_text

STEPS = 20


class Timeline:
    """A record of one rank's activities.

    Attributes:
        first: the first step to record, of `STEPS`.
        step: the running step, from 0.
        microbatch: the one of the last activity that was of one.
        intervals: (step, activity, micro-batch, start, end) of the recorded steps, in seconds.
        communication_seconds: seconds of the activities `send` and `wait` in all steps.
    """

    def __init__(self, *, first: int, clock: StepClock | None = None) -> None:
        """Record steps from `first` on by `clock`, the rank's, which also counts the exchanges."""
        self.first = first
        self.step = self.microbatch = 0
        self.intervals: list[tuple[int, str, int, float, float]] = []
        self.communication_seconds = 0.0
        self._clock = StepClock(0) if clock is None else clock
        self._open: tuple[str, int, SupportsFloat] | None = None

    def mark(self, activity: str, microbatch: int = -1) -> None:
        """Begin an activity, which ends the one before; `idle` is whatever has no other name."""
        now = self._clock.now()
        self.microbatch = microbatch if microbatch >= 0 else self.microbatch
        if self._open is not None:
            self._clock.when_known(partial(self._close, self.step, *self._open, now))
        self._open = (activity, microbatch, now)

    def _close(
        self, step: int, activity: str, microbatch: int, start: SupportsFloat, end: SupportsFloat
    ) -> None:
        """Record an activity whose beginning and end are known."""
        seconds = float(end) - float(start)
        if activity in ("send", "wait"):
            self.communication_seconds += seconds
            self._clock.count_exchange(float(start), float(end))
        if self.first <= step < self.first + STEPS and activity != "idle" and seconds > 0:
            self.intervals.append((step, activity, microbatch, float(start), float(end)))

    def end_step(self) -> None:
        """End the step, whose optimizer update is done."""
        self.mark("idle")
        self._open = None
        self.step += 1

    def write(self, path: Path) -> None:
        """Write the intervals to a JSON file."""
        write_text(path, json.dumps(self.intervals))


def bubble_fraction(ranks: Mapping[int, Sequence[Sequence[Any]]], *, apart: bool = False) -> float | None:
    """Return the idle time over the total time of all stages in the recorded steps.

    `ranks` holds the intervals of each rank. A step lasts from the first forward pass on any stage to the
    last optimizer update; a stage is idle in it unless it computes or sends. Where stages are `apart`, each
    in a step of its own, idle is what they wait. `None` without a step that all stages recorded.
    """
    idle = total = 0.0
    if apart:
        steps = set(_steps(ranks))
        spent = [(row[1], row[4] - row[3]) for own in ranks.values() for row in own if row[0] in steps]
        total = sum(seconds for _, seconds in spent)
        return sum(seconds for activity, seconds in spent if activity == "wait") / total if total else None
    for step in _steps(ranks):
        rows = {rank: [row for row in own if row[0] == step] for rank, own in ranks.items()}
        span = max(r[4] for own in rows.values() for r in own) - min(
            r[3] for own in rows.values() for r in own if r[1] == "forward"
        )
        for own in rows.values():
            busy = sum(end - start for _, activity, _, start, end in own if activity != "wait")
            idle += span - busy
            total += span
    return idle / total if total else None


def _steps(ranks: Mapping[int, Sequence[Sequence[Any]]]) -> list[int]:
    seen = [{row[0] for row in rows if row[1] == "optimizer"} for rows in ranks.values()]
    return sorted(set.intersection(*seen)) if seen else []


def chrome_trace(ranks: Mapping[int, Sequence[Sequence[Any]]]) -> dict[str, Any]:
    """Return the ranks' intervals as a Chrome trace: complete events in microseconds, a process a rank."""
    zero = min((row[3] for rows in ranks.values() for row in rows), default=0.0)
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}"}} for rank in ranks
    ]
    for rank, rows in sorted(ranks.items()):
        for step, activity, microbatch, start, end in rows:
            events.append(
                {
                    "ph": "X",
                    "pid": rank,
                    "tid": 0,
                    "name": f"{activity} {microbatch}" if microbatch >= 0 else activity,
                    "cat": activity,
                    "ts": (start - zero) * 1e6,
                    "dur": (end - start) * 1e6,
                    "args": {"step": step, "microbatch": microbatch},
                }
            )
    return {"traceEvents": events, "displayTimeUnit": "ms"}
