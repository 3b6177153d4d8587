"""Have what a training step draws at random, as masks of dropout, depend on that step alone."""

from __future__ import annotations

import numpy as np
import torch


def seed(*numbers: int) -> None:
    """Seed torch's generators of random numbers from whole numbers, such as a seed and a step, 0 or more.

    Called before each step, a job that goes on from a checkpoint draws what it would have drawn. numpy's
    `SeedSequence` mixes the numbers, so that what is drawn for one says nothing of what is for the next.
    """
    mixed = int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])
    # `torch.manual_seed` looks for devices of all kinds, which takes fifty times as long.
    torch.default_generator.manual_seed(mixed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(mixed)
