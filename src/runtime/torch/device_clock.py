"""Tell a GPU's time by events in its queue, on the host's clock."""

from __future__ import annotations

import time

import torch


class Mark:
    """A place in a GPU's queue; as a number it is when the GPU came by, on `time.perf_counter`'s clock."""

    def __init__(self, event: torch.cuda.Event) -> None:
        """Mark the place where `event` was recorded."""
        self.event = event
        self.seconds: float | None = None

    def __float__(self) -> float:
        assert self.seconds is not None, "the clock isn't settled"
        return self.seconds


class CUDAClock:
    """The `DeviceClock` of a GPU.

    CUDA tells the time between two events alone, so that marks are placed by an event that the idle GPU meets
    as soon as it is recorded. That one is renewed whenever the clock is settled: the two clocks drift apart,
    and CUDA gives the milliseconds between events as floats of 24 bits.
    """

    def __init__(self, device: torch.device) -> None:
        """Tell the time of `device`."""
        self._device = device
        self._marks: list[Mark] = []
        self._anchor()

    def now(self) -> Mark:
        """Mark the present end of the queue of the current stream."""
        mark = Mark(self._record())
        self._marks.append(mark)
        return mark

    def settle(self) -> None:
        """Wait until the GPU has done all that was queued; every mark so far is then a number."""
        torch.cuda.synchronize(self._device)
        for mark in self._marks:
            mark.seconds = self._anchored + self._start.elapsed_time(mark.event) / 1000
        self._marks.clear()
        self._anchor()

    def _anchor(self) -> None:
        """Record an event at a known time."""
        torch.cuda.synchronize(self._device)
        before = time.perf_counter()
        self._start = self._record()
        torch.cuda.synchronize(self._device)
        self._anchored = (before + time.perf_counter()) / 2

    def _record(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
