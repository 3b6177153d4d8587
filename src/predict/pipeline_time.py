"""Compute a pipeline's step from what its stages take for a micro-batch: closed forms, or a simulation."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from src.config.mistakes import ConfigError
from src.config.schedules import SCHEDULES
from src.partition.schedules.simulation import Costs, simulate
from src.partition.schedules.tables import table

# A backward pass takes about twice a forward pass, half of it for the weights.
FORWARD, INPUTS, WEIGHTS = 1 / 3, 1 / 3, 1 / 3
# So many times the stages, and every further micro-batch takes the slowest rank as long as the last one.
FILLED = 4
# Stages times micro-batches of a simulated step: a second or two.
MOST = 60_000


def relative_step(
    schedule: str, ranks: int, virtual: int, microbatches: int, shares: tuple[float, ...] = ()
) -> float:
    """Return a step's length over that of the same work without idle time, evenly spread.

    Args:
        schedule: a name of `SCHEDULES`.
        ranks: stages' devices.
        virtual: stages of each.
        microbatches: of a step.
        shares: of the model's work in each stage; none: all are alike.
    """
    if not shares:
        if schedule in ("gpipe", "1f1b"):
            return (microbatches + ranks - 1) / microbatches
        if schedule in ("interleaved", "looped_bfs") and microbatches >= ranks:
            return (microbatches + (ranks - 1) / virtual) / microbatches
    stages = ranks * virtual
    even = tuple(shares) if shares else (1.0,) * stages
    total = sum(even)
    # Raised to what the schedule can have; the last ones are then taken off again.
    count = _possible(schedule, ranks, stages, min(microbatches, FILLED * ranks))
    if stages * count > MOST:
        raise ConfigError(f"pipeline={ranks}: {stages} stages are more than can be simulated")
    seconds, slowest = _simulated(
        schedule, ranks, virtual, count, tuple(round(share / total, 6) for share in even)
    )
    return (seconds + (microbatches - count) * slowest) * ranks / microbatches


@lru_cache(maxsize=512)
def _simulated(
    schedule: str, ranks: int, virtual: int, count: int, shares: tuple[float, ...]
) -> tuple[float, float]:
    """Return the seconds of a step of `count` micro-batches, and of the slowest rank's work on one."""
    placement = SCHEDULES[schedule].placement
    work = np.array(shares)
    costs = Costs(forward=FORWARD * work, input_backward=INPUTS * work, weight_backward=WEIGHTS * work)
    seconds = float(simulate(table(schedule, ranks, virtual, count), placement, costs).step_seconds)
    slowest = max(
        sum(work[stage] for stage in placement.stages(rank, ranks, virtual)) for rank in range(ranks)
    )
    return seconds / float(work.sum()), float(slowest) / float(work.sum())


def _possible(schedule: str, ranks: int, stages: int, microbatches: int) -> int:
    """Return the least number of micro-batches, from so many on, that a schedule can have."""
    known = SCHEDULES[schedule]
    count = max(microbatches, stages) if known.filled else microbatches
    return -(-count // ranks) * ranks if known.rounds else count
