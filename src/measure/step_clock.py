"""Time the optimizer steps of one rank, and its waits within the timed window.

A step's time is the interval between two completed updates, less blocks that ran `off_clock`. The window is
the training after the warm-up: every figure of speed is taken from it.

A GPU works behind the host, which only queues its operations. There the clock's moments are marks in the
GPU's queue (`DeviceClock`), so that a step ends when its update is done, and an interval is what the GPU
spent between two marks, idle or not. They are known once the GPU has come by: everything that is counted
waits for that, in order, until the clock is settled. To settle it stops the queue, and isn't done at every
step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, SupportsFloat

from src.measure.activity_log import INPUT, STEP, WAITING, ActivityLog
from src.measure.rank_record import RankRecord


class DeviceClock(Protocol):
    """A clock of a device that works behind the host."""

    def now(self) -> SupportsFloat:
        """Mark the present end of the device's queue.

        After the next `settle` the mark is when the device came by, on `time.perf_counter`'s clock.
        """

    def settle(self) -> None:
        """Wait until the device has done all that was queued."""


class Interval:
    """The seconds of each of several steps that were completed together, known once the clock is settled."""

    def __init__(self, steps: int) -> None:
        """Divide what `set` is told evenly between so many steps."""
        self._steps = steps
        self._seconds: float | None = None

    def set(self, seconds: float) -> None:
        """Set the seconds of all steps together."""
        self._seconds = seconds

    def __float__(self) -> float:
        assert self._seconds is not None, "the clock isn't settled"
        return self._seconds / self._steps


class StepClock:
    """The clock of one rank's training.

    All attributes but the numbers of steps are as of the last `settle`, where a device works behind the host.

    Attributes:
        steps: optimizer steps completed by this rank, those of a resumed checkpoint included.
        first_step: steps of a resumed checkpoint that another run had recorded.
        train_seconds: seconds of the other steps.
        communication_seconds: seconds of waiting for other ranks; `None` where these can't be measured.
        input_seconds: seconds of waiting for batches; `None` where these can't be measured.
        busy_seconds: seconds of computing; where they aren't measured, `None`, and a window's are what its
            waits leave.
        exchange_seconds: seconds within `exchanging`, counted even where `communication_seconds` is `None`.
        own_seconds: seconds of the last step without its exchanges.
        activities: takes down steps, waits and exchanges for a trace; `None` where none is made.
    """

    def __init__(self, warmup_steps: int) -> None:
        """Make a clock whose window begins after `warmup_steps` steps."""
        self.steps = 0
        self.first_step = 0
        self.train_seconds = 0.0
        self.communication_seconds: float | None = 0.0
        self.input_seconds: float | None = 0.0
        self.busy_seconds: float | None = None
        self.exchange_seconds = 0.0
        self.own_seconds = 0.0
        self.activities: ActivityLog | None = None
        self._warmup_steps = warmup_steps
        self._window: dict[str, float] = {}
        self._pauses: list[tuple[float, float]] = []
        self._last = time.perf_counter()
        self._last_wall = time.time()
        # Waits at the end of the last step; later ones belong to no step.
        self._exchanged = 0.0
        self._communicated: float | None = 0.0
        self._device: DeviceClock | None = None
        self._unsettled: list[Callable[[], None]] = []

    def follow_device(self, device: DeviceClock) -> None:
        """Take all moments from the clock of a device that works behind the host."""
        self._device = device

    def now(self) -> SupportsFloat:
        """Return the present moment, which may be known only when `when_known` calls."""
        return time.perf_counter() if self._device is None else self._device.now()

    def when_known(self, account: Callable[[], None]) -> None:
        """Call `account` once all moments so far are known: at once, or when the clock is settled."""
        if self._device is None:
            account()
        else:
            self._unsettled.append(account)

    def settle(self) -> None:
        """Wait for the device, if it works behind the host, and count what happened until now."""
        if self._device is None:
            return
        self._device.settle()
        accounts, self._unsettled = self._unsettled, []
        for account in accounts:
            account()

    @property
    def trained_steps(self) -> int:
        """Return how many steps this run has recorded: `steps` without the first `first_step`."""
        return self.steps - self.first_step

    def start_clock(self) -> None:
        """Start the clock of the first step."""
        self.settle()
        self._last = time.perf_counter()
        if self.trained_steps >= self._warmup_steps:
            self._open_window(time.time())

    def tick(self, count: int = 1, ended: float | None = None) -> Interval:
        """End `count` steps that were completed together, and return the seconds of each.

        `ended` is when they ended, on `time.perf_counter`'s clock, if not now.
        """
        self.steps += count
        opens = self.trained_steps - count < self._warmup_steps <= self.trained_steps
        moment: SupportsFloat = self.now() if ended is None else ended
        interval = Interval(count)
        last = self.steps
        self.when_known(lambda: interval.set(self._end_steps(float(moment), last, opens=opens)))
        return interval

    def _end_steps(self, ended: float, step: int, *, opens: bool) -> float:
        """End steps up to `step` at a moment, and open the window there if so; return their seconds."""
        # A step that is reported after its successor takes no time of its own.
        now = max(ended, self._last)
        seconds = now - self._last
        self._log(STEP, self._last, now, size=step)
        self._last = now
        self.own_seconds = seconds - (self.exchange_seconds - self._exchanged)
        self._exchanged = self.exchange_seconds
        self._communicated = self.communication_seconds
        self._last_wall = _wall(now)
        self.train_seconds += seconds
        if opens:
            self._open_window(self._last_wall)
        return seconds

    @contextmanager
    def off_clock(self) -> Iterator[None]:
        """Stop the clock of the running step within the block."""
        paused = self.now()
        exchanged: list[tuple[float, float | None]] = []
        self.when_known(lambda: exchanged.append((self.exchange_seconds, self.communication_seconds)))
        try:
            yield
        finally:
            resumed = self.now()

            def leave_out() -> None:
                start, end = float(paused), float(resumed)
                self._last += end - start
                self.exchange_seconds, self.communication_seconds = exchanged[0]
                self._pauses.append((_wall(start), _wall(end)))

            self.when_known(leave_out)

    @contextmanager
    def waiting_for_input(self) -> Iterator[None]:
        """Count the block as time in which the rank prepares or waits for its next batch.

        What the host prepares while a device behind it has other work is no wait.
        """
        start = self.now()
        try:
            yield
        finally:
            end = self.now()

            def count() -> None:
                self._log(INPUT, start, end)
                if self.input_seconds is not None:
                    self.input_seconds += float(end) - float(start)

            self.when_known(count)

    @contextmanager
    def exchanging(self, kind: str | None = None, *, group: str = "", size: int = 0) -> Iterator[None]:
        """Count the block as time in which the rank sends to others, receives, or waits for them.

        Args:
            kind: what the rank exchanges within the block, for a trace, as `all_reduce`; `None` where it only
                waits, or a backend's own events tell.
            group: among whom, or by what.
            size: bytes that this rank hands over.
        """
        start = self.now()
        try:
            yield
        finally:
            end = self.now()

            def count() -> None:
                self.count_exchange(float(start), float(end))
                if kind is not None:
                    self._log(kind, start, end, group=group, size=size)

            self.when_known(count)

    def exchanged_since(self, start: SupportsFloat) -> None:
        """Count the time from `start`, which `now` returned, until now as `exchanging` does."""
        end = self.now()

        self.when_known(lambda: self.count_exchange(float(start), float(end)))

    def trace_exchange(self, kind: str, start: SupportsFloat, *, group: str, size: int) -> None:
        """Have a trace show an exchange from `start`, which `now` returned, until now, whoever waits for it.

        The other arguments are those of `exchanging`.
        """
        if self.activities is not None:
            end = self.now()
            self.when_known(lambda: self._log(kind, start, end, group=group, size=size))

    def _log(
        self, activity: str, start: SupportsFloat, end: SupportsFloat, *, group: str = "", size: int = 0
    ) -> None:
        if self.activities is not None:
            self.activities.add(activity, float(start), float(end), group=group, size=size)

    def count_exchange(self, start: float, end: float) -> None:
        """Count the time between two moments as `exchanging` does."""
        seconds = end - start
        self._log(WAITING, start, end)
        self.exchange_seconds += seconds
        if self.communication_seconds is not None:
            self.communication_seconds += seconds

    def _open_window(self, start: float) -> None:
        self._window = {
            "start": start,
            "input": self.input_seconds or 0.0,
            "communication": self.communication_seconds or 0.0,
            "train": self.train_seconds,
            "busy": self.busy_seconds or 0.0,
        }

    def clock_facts(self) -> RankRecord:
        """Return the measured facts of the training and, after the warm-up, of the window."""
        facts: RankRecord = {
            "steps": self.steps,
            "train_seconds": self.train_seconds,
            "off_clock": self._pauses,
        }
        if not self._window:
            return facts
        wall = self.train_seconds - self._window["train"]
        waited = _since(self._window["input"], self.input_seconds)
        communicated = _since(self._window["communication"], self._communicated)
        busy = _since(self._window["busy"], self.busy_seconds)
        if busy is None and waited is not None and communicated is not None:
            busy = wall - waited - communicated
        return facts | {
            "window": (self._window["start"], self._last_wall),
            "window_seconds": wall,
            "input_seconds": waited,
            "communication_seconds": communicated,
            "busy_seconds": busy,
        }


def _wall(moment: float) -> float:
    """Return the time in seconds since 1970 of a moment on `time.perf_counter`'s clock."""
    return time.time() - (time.perf_counter() - moment)


def _since(before: float, now: float | None) -> float | None:
    return None if now is None else now - before
