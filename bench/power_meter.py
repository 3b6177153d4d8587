"""Read a GPU's power by NVML on its own, to hold a run's trace against it."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence

from src.machine.devices import visible_gpus

INTERVAL_SECONDS = 0.02
Reading = tuple[float, float]


class PowerMeter:
    """A thread that reads the first GPU's power within the block; where there is none, it reads nothing."""

    def __init__(self) -> None:
        self._readings: list[Reading] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> PowerMeter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def between(self, start: float, end: float) -> list[Reading]:
        """Return the readings (seconds since 1970, watts) of a span of time."""
        return [reading for reading in self._readings if start <= reading[0] <= end]

    def _run(self) -> None:
        gpus = visible_gpus()
        if not gpus:
            return
        import pynvml

        handle = pynvml.nvmlDeviceGetHandleByUUID(gpus[0][1])
        while not self._stop.wait(INTERVAL_SECONDS):
            self._readings.append((time.time(), pynvml.nvmlDeviceGetPowerUsage(handle) / 1000))


def integrate(readings: Sequence[Reading], *, means: bool) -> float:
    """Return the joules of readings (seconds, watts), of which there are two at least.

    With `means` a reading's watts are the mean since the reading before; else they are those of its moment.
    """
    joules = 0.0
    for (before, low), (moment, watts) in itertools.pairwise(readings):
        joules += (moment - before) * (watts if means else (low + watts) / 2)
    return joules
