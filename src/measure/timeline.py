"""What a stage does when: intervals of a few training steps, kept as a Chrome trace with the run.

A rank marks the beginning of each activity; the previous one ends there. Times are the host's
monotonic clock, which all processes of one host share.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

STEPS = 20


class Timeline:
    """One rank's intervals: (step, activity, micro-batch, start, end) of `STEPS` steps after the warm-up.

    `communication_seconds` adds up `send` and `wait` of all steps.
    """

    def __init__(self, *, first: int, synchronise: Any = None) -> None:
        self.first = first
        self.step = 0
        self.intervals: list[tuple[int, str, int, float, float]] = []
        self.communication_seconds = 0.0
        self._synchronise = synchronise
        self._open: tuple[str, int, float] | None = None

    @property
    def recording(self) -> bool:
        """Whether the intervals of the running step are kept."""
        return self.first <= self.step < self.first + STEPS

    def mark(self, activity: str, microbatch: int = -1) -> None:
        """The activity that begins now; `idle` is whatever has no other name."""
        # A device that runs behind the host is waited for in the recorded steps alone.
        if self.recording and self._synchronise is not None:
            self._synchronise()
        now = time.perf_counter()
        if self._open is not None:
            before, which, start = self._open
            if before in ("send", "wait"):
                self.communication_seconds += now - start
            if self.recording and before != "idle" and now > start:
                self.intervals.append((self.step, before, which, start, now))
        self._open = (activity, microbatch, now)

    def end_step(self) -> None:
        """The step's optimizer update is done."""
        self.mark("idle")
        self._open = None
        self.step += 1

    def write(self, path: Path) -> None:
        """Keeps the intervals beside the rank's other records."""
        path.write_text(json.dumps(self.intervals))


def bubble_fraction(ranks: Mapping[int, Sequence[Sequence[Any]]]) -> float | None:
    """Idle / total stage time over the recorded steps.

    A step lasts from the first forward pass on any stage to the last optimizer update; a stage is idle
    in it unless it computes or sends. `None` without a step that all stages recorded.
    """
    idle = total = 0.0
    for step in _steps(ranks):
        rows = {rank: [row for row in found if row[0] == step] for rank, found in ranks.items()}
        span = max(r[4] for found in rows.values() for r in found) - min(
            r[3] for found in rows.values() for r in found if r[1] == "forward"
        )
        for found in rows.values():
            busy = sum(end - start for _, activity, _, start, end in found if activity != "wait")
            idle += span - busy
            total += span
    return idle / total if total else None


def overlap_fraction(ranks: Mapping[int, Sequence[Sequence[Any]]]) -> float | None:
    """Share of steps in which stage 1's forward pass of a micro-batch overlaps stage 0's of the next one."""
    found = []
    for step in _steps(ranks):
        forward = {
            rank: {row[2]: (row[3], row[4]) for row in ranks[rank] if row[0] == step and row[1] == "forward"}
            for rank in (0, 1)
        }
        pairs = [(forward[1][k], forward[0][k + 1]) for k in forward[1] if k + 1 in forward[0]]
        found.append(any(max(a[0], b[0]) < min(a[1], b[1]) for a, b in pairs))
    return sum(found) / len(found) if found else None


def _steps(ranks: Mapping[int, Sequence[Sequence[Any]]]) -> list[int]:
    seen = [{row[0] for row in rows if row[1] == "optimizer"} for rows in ranks.values()]
    return sorted(set.intersection(*seen)) if seen else []


def chrome_trace(ranks: Mapping[int, Sequence[Sequence[Any]]]) -> dict[str, Any]:
    """As Perfetto and chrome://tracing read it: complete events in microseconds, a process a rank."""
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
