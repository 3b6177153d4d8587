"""Rehearse TensorFlow's steps on one device: train as the only worker, and note how long steps take.

Several processes may rehearse side by side, as workers of one host share its memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import threading
import time
from collections.abc import Callable
from pkgutil import resolve_name
from statistics import median

from src.config import ConfigError
from src.measure.recorder import Recorder
from src.measure.step_clock import Interval
from src.run import files
from src.run.status import Status
from src.run.tables import write_text
from src.run.variables import TOKEN
from src.runtime.common import messages
from src.runtime.common.context import RankContext
from src.runtime.common.listener import Listener
from src.runtime.common.messages import Connection
from src.runtime.common.rehearsed import LEAST, Rehearsed, is_enough, rehearsed, too_few
from src.runtime.tensorflow import setup

MEETING_SECONDS = 120.0


class StepTimes:
    """The times of a recorder's steps, each from the end of one update to the end of the next.

    Attributes:
        seconds: of each step after the warm-up.
        warmup: how many come before these.
    """

    def __init__(self, recorder: Recorder, warmup: int, meet: Callable[[], None]) -> None:
        """Follow a recorder; call `meet` off the clock when `warmup` steps are done, one at least."""
        self.seconds: list[float] = []
        self.warmup = max(1, warmup)
        self._recorder, self._meet, self._tick = recorder, meet, recorder.tick
        self._began: float | None = None
        self._calls = 0
        recorder.tick = self.tick  # type: ignore[method-assign]

    def tick(self, count: int = 1, ended: float | None = None) -> Interval:
        """End steps as the recorder does; raise `Rehearsed` once enough were seen."""
        interval = self._tick(count, ended)
        if self._recorder.trained_steps - count >= self.warmup:
            self.seconds += [float(interval)] * count
            self._calls += 1
        elif self._recorder.trained_steps >= self.warmup:
            with self._recorder.off_clock():
                self._meet()
            self._began = time.perf_counter()
        # Steps of one call are timed together.
        if self._began is not None and is_enough(self._calls, time.perf_counter() - self._began):
            raise Rehearsed
        return interval


def train(context: RankContext, recorder: Recorder) -> None:
    """Rehearse in the place of a training.

    Raises:
        ConfigError: for a training of too few steps.
    """
    config, entry = rehearsed(context.config)
    own = dataclasses.replace(context, config=config, rank=0, world_size=1)
    steps = StepTimes(recorder, config.warmup_steps, meeting(context))
    with contextlib.suppress(Rehearsed):
        resolve_name(entry)(own, recorder)
    if len(steps.seconds) < LEAST:
        raise ConfigError(too_few(config.epochs, recorder.steps, steps.warmup + LEAST))
    found = {
        # Where the update begins within a compiled step can't be seen.
        "events": [],
        "last_seconds": median(steps.seconds),
        "computed": steps.seconds,
        "trained_bytes": setup.gradient_bytes(setup.build(own)),
    }
    write_text(recorder.folder / files.REHEARSAL, json.dumps(found))
    if not recorder.finished:
        recorder.finish(Status.OK)


def meeting(context: RankContext) -> Callable[[], None]:
    """Return a function that waits until all processes that rehearse side by side have called it."""
    if context.world_size == 1:
        return lambda: None
    os.environ[TOKEN] = context.config.strategy["rehearsal"]["token"]
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    if context.rank > 0:
        return lambda: _report(address)
    everybody = threading.Barrier(context.world_size)

    def answer(connection: Connection) -> None:
        connection.receive()
        everybody.wait()
        connection.send("go")

    # It listens from the beginning: the others may come first.
    listening = Listener(address, answer)

    def meet() -> None:
        everybody.wait()
        listening.close()

    return meet


def _report(address: str) -> None:
    messages.connect(address, seconds=MEETING_SECONDS).ask("here")
