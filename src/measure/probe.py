"""Probe the cores' speed by a short, fixed piece of work, which tells two runs' machines apart."""

from __future__ import annotations

import os
import time

SIZE = 384
SECONDS = 0.1


def gflops() -> float:
    """Return the GFLOP/s a core of fp32 matrix products in numpy, run for `SECONDS` on this process's cores.

    The median product counts, so that a single interruption doesn't.
    """
    # Imported here: the parent reads this package too, and needs no numpy.
    import numpy as np

    left = np.full((SIZE, SIZE), 0.5, np.float32)
    right = np.full((SIZE, SIZE), 0.25, np.float32)
    left @ right
    durations: list[float] = []
    end = time.perf_counter() + SECONDS
    while (now := time.perf_counter()) < end:
        left @ right
        durations.append(time.perf_counter() - now)
    cores = len(os.sched_getaffinity(0))
    return 2 * SIZE**3 / float(np.median(durations)) / cores / 1e9
