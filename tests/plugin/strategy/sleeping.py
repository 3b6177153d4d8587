"""A strategy that hangs, to see it ended from outside."""

from __future__ import annotations

import signal

from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext


def train(context: RankContext, recorder: Recorder) -> None:
    """Waits for a signal for ever."""
    print("asleep", flush=True)
    while True:
        signal.pause()
