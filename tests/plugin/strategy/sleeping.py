"""A strategy that hangs, to see it ended from outside."""

from __future__ import annotations

import signal

from src.measure.recorder import Recorder
from src.worker import Run


def train(run: Run, recorder: Recorder) -> None:
    """Waits for a signal for ever."""
    print("asleep", flush=True)
    while True:
        signal.pause()
