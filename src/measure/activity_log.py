"""Keep what a rank did in the steps that are profiled, as its clock saw that: steps, waits, own exchanges.

A framework's profiler knows operations, and the exchanges of the framework's own backends. It doesn't know
where a step ends, when the rank waits, or of an exchange by shared memory, MPI or sockets.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

from src.run.tables import write_text

# The activities that are no exchange; an exchange is called by its kind, as `all_reduce`.
STEP, INPUT, WAITING = "step", "input", "waiting"


class ActivityLog:
    """A record of a rank's activities between `start` and `stop`.

    Attributes:
        rows: (activity, group, begin, end, bytes or step) of each, in nanoseconds since 1970. The group says
            among whom, or by what, an exchange is.
    """

    def __init__(self) -> None:
        """Make an empty log, which isn't started."""
        self.rows: list[tuple[str, str, int, int, int]] = []
        # Nanoseconds by which the clock that counts from 1970 is ahead.
        self._ahead = 0
        self._since = math.inf
        self._until = math.inf

    def start(self) -> None:
        """Record activities from now on."""
        self._since = time.perf_counter()
        self._ahead = time.time_ns() - time.perf_counter_ns()

    def stop(self) -> None:
        """Record no activity that begins after this, though those of before may still be told of."""
        self._until = time.perf_counter()

    def add(self, activity: str, begin: float, end: float, *, group: str = "", size: int = 0) -> None:
        """Record an activity, from the log's start on if it began before, unless it ended before.

        Args:
            activity: its name.
            begin: when it began, on `time.perf_counter`'s clock.
            end: when it ended, likewise.
            group: among whom, or by what, it exchanges.
            size: the bytes that this rank hands over; of a step its number, from 1.
        """
        # The first step began with the pause in which the log was started.
        begin = max(begin, self._since)
        if begin < min(end, self._until):
            first, last = (round(moment * 1e9) + self._ahead for moment in (begin, end))
            self.rows.append((activity, group, first, last, size))

    def write(self, path: Path) -> None:
        """Write the rows to a JSON file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(self.rows))
