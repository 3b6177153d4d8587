"""Measure what rounding alone does to a training's first losses, in the same way for every framework.

Two correct strategies add the same numbers in another order, and training may enlarge the difference. By how
much depends on the model, the rate and the data. So a framework's plain training on one device takes its
first steps twice: the second time from weights that are each changed by one last digit.
"""

from __future__ import annotations

import math
import sys
import time
import traceback
from collections.abc import Callable, Sequence

import numpy as np

from src.data.random_streams import RandomStream, philox
from src.measure.arithmetic import PARITY_STEPS, parity_gap
from src.measure.recorder import Recorder
from src.run import files
from src.run.status import Status
from src.run.tables import Row, read_table
from src.runtime.common.context import RankContext

# From so many expected seconds on, the person who waits is told.
NOTE_SECONDS = 5.0


def generator_of(seed: int) -> np.random.Generator:
    """Return a generator, drawn from the run's seed, of the directions in which weights are changed."""
    return np.random.Generator(philox(RandomStream.ROUNDING, seed))


def directions(generator: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    """Draw the direction of each weight, up or down: infinity or its negative, fp32 of `shape`."""
    up = generator.integers(0, 2, tuple(shape), dtype=np.int8)
    return np.where(up == 1, np.inf, -np.inf).astype(np.float32)


def measure_gap(
    context: RankContext, recorder: Recorder, first_losses: Callable[[], Sequence[float]]
) -> None:
    """Train the first steps once more, and add `rounding_gap` to the finished record.

    The record stays without it where the strategy is no `reference`, the run's precision isn't fp32, the run
    went on from a checkpoint, diverged, or ended within its first steps. It does so too where these steps
    fail, for want of memory say: the training itself has ended well, and stays so.

    Args:
        context: the rank's context.
        recorder: the rank's recorder, finished already: nothing here is timed or recorded as training.
        first_losses: trains from weights that are changed by one last digit, and returns the losses of the
            first `PARITY_STEPS` steps, in order; more are allowed.
    """
    own = _first_rows(context, recorder)
    if own is None:
        return
    expected = sum(row["seconds"] for row in own)
    if expected > NOTE_SECONDS:
        recorder.note(
            f"the first {PARITY_STEPS} steps once more, from weights changed by their last digit: "
            f"about {expected:.0f} s"
        )
    begun = time.perf_counter()
    try:
        losses = list(first_losses())[:PARITY_STEPS]
    except Exception:
        print(f"no rounding gap, for the first {PARITY_STEPS} steps once more failed:", flush=True)
        traceback.print_exc()
        return
    gap = parity_gap(losses, [row["loss"] for row in own])
    recorder.facts |= {
        # JSON has no infinity, which stands for a loss that is no number.
        "rounding_gap": None if gap is None else min(gap, sys.float_info.max),
        "rounding_losses": [loss if math.isfinite(loss) else None for loss in losses],
        "rounding_seconds": time.perf_counter() - begun,
    }
    recorder.save()


def _first_rows(context: RankContext, recorder: Recorder) -> list[Row] | None:
    """Return the rows of the run's own first steps; `None` where they aren't to be trained once more."""
    config = context.config
    comparable = config.reference and config.precision == "fp32" and config.resume is None
    if not comparable or recorder.facts.get("status") not in (Status.OK, Status.TIME_LIMIT):
        return None
    rows = read_table(recorder.folder / files.STEPS)[:PARITY_STEPS]
    return rows if [row["step"] for row in rows] == list(range(1, PARITY_STEPS + 1)) else None
