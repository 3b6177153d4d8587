"""Time the optimizer steps of one rank, and its waits within the timed window.

A step's time is the interval between two completed updates, less blocks that ran `off_clock`. The window is
the training after the warm-up: every figure of speed is taken from it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from src.measure.rank_record import RankRecord


class StepClock:
    """The clock of one rank's training.

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
        self._warmup_steps = warmup_steps
        self._window: dict[str, float] = {}
        self._pauses: list[tuple[float, float]] = []
        self._last = time.perf_counter()
        self._last_wall = time.time()
        # Waits at the end of the last step; later ones belong to no step.
        self._exchanged = 0.0
        self._communicated: float | None = 0.0

    @property
    def trained_steps(self) -> int:
        """Return how many steps this run has recorded: `steps` without the first `first_step`."""
        return self.steps - self.first_step

    def start_clock(self) -> None:
        """Start the clock of the first step."""
        self._last = time.perf_counter()
        if self.trained_steps >= self._warmup_steps:
            self._open_window(time.time())

    def tick(self, count: int = 1, ended: float | None = None) -> float:
        """End `count` steps that were completed together, and return their seconds.

        `ended` is when they ended, on `time.perf_counter`'s clock, if not now.
        """
        # A step that is reported after its successor takes no time of its own.
        now = time.perf_counter() if ended is None else max(ended, self._last)
        seconds = now - self._last
        self._last = now
        self.own_seconds = seconds - (self.exchange_seconds - self._exchanged)
        self._exchanged = self.exchange_seconds
        self._communicated = self.communication_seconds
        self._last_wall = time.time() - (time.perf_counter() - now)
        self.train_seconds += seconds
        self.steps += count
        if self.trained_steps - count < self._warmup_steps <= self.trained_steps:
            self._open_window(self._last_wall)
        return seconds

    @contextmanager
    def off_clock(self) -> Iterator[None]:
        """Stop the clock of the running step within the block."""
        paused = time.perf_counter()
        exchanged = self.exchange_seconds, self.communication_seconds
        wall = time.time()
        try:
            yield
        finally:
            self._last += time.perf_counter() - paused
            self.exchange_seconds, self.communication_seconds = exchanged
            self._pauses.append((wall, time.time()))

    @contextmanager
    def waiting_for_input(self) -> Iterator[None]:
        """Count the block as time in which the rank prepares or waits for its next batch."""
        start = time.perf_counter()
        try:
            yield
        finally:
            if self.input_seconds is not None:
                self.input_seconds += time.perf_counter() - start

    @contextmanager
    def exchanging(self) -> Iterator[None]:
        """Count the block as time in which the rank sends to others, receives, or waits for them."""
        start = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - start
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


def _since(before: float, now: float | None) -> float | None:
    return None if now is None else now - before
