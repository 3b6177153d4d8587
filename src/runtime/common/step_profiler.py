"""Profile a few steps at the end of a rank's warm-up, by the framework's own profiler (`profiler=true`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Protocol

from src.config import Config
from src.measure.activity_log import ActivityLog
from src.measure.step_clock import StepClock
from src.run import files

# Steps that are profiled. The one after them, in which the trace is written, is the warm-up's last.
STEPS = 3


class Profiler(Protocol):
    """A framework's profiler, which is started and stopped once."""

    def start(self, target: Path) -> None:
        """Begin to profile; what is found goes to `target`, and endings that the framework adds."""

    def stop(self) -> None:
        """End, and write the trace."""


def of(config: Config, rank: int, out: Path) -> StepProfiler:
    """Return the profiler of a rank's steps, by the run's framework."""
    make = resolve_name(f"src.runtime.{config.framework}.step_profiler.make")
    return StepProfiler(config, rank, out, make())


class StepProfiler:
    """A follower of a rank's steps that profiles some of them (a `RecordListener`).

    Attributes:
        activities: what the rank did in these steps, by its clock.
    """

    def __init__(self, config: Config, rank: int, out: Path, profiler: Profiler) -> None:
        """Prepare to profile rank `rank` of the run in the directory `out`."""
        self._last = config.warmup_steps - 1
        self._target = files.profile_of(out, rank)
        self._written = files.rank_folder(out, rank) / files.ACTIVITIES
        self._profiler = profiler
        self._settle: Callable[[], None] = lambda: None
        self.activities = ActivityLog()
        self._running = self._done = False

    def follow(self, clock: StepClock) -> None:
        """Take the rank's activities from its clock."""
        clock.activities = self.activities
        self._settle = clock.settle

    def on_start(self) -> None:
        """Do nothing: the first step is nobody's measure."""

    def on_steps(self, steps: int) -> None:
        """Start or stop, after so many steps of this run."""
        if not self._running and not self._done and steps >= self._last - STEPS:
            self._target.parent.mkdir(exist_ok=True)
            self._profiler.start(self._target)
            self.activities.start()
            self._running = True
        elif self._running and steps >= self._last:
            self._end()

    def on_finish(self) -> None:
        """End with the training, if that is shorter."""
        if self._running:
            self._end()

    def _end(self) -> None:
        self._running, self._done = False, True
        self.activities.stop()
        self._settle()
        self._profiler.stop()
        self.activities.write(self._written)
