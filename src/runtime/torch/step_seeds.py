"""Have what a training step draws at random, as masks of dropout, depend on that step alone."""

from __future__ import annotations

import random

import numpy as np
import torch

from src.config import Config
from src.data.random_streams import RandomStream, key


def seed(config: Config, rank: int, step: int) -> None:
    """Seed torch's, NumPy's and Python's generators of random numbers for a step, the first of which is 0.

    Called before each step, a job that goes on from a checkpoint draws what it would have drawn. Ranks that
    share a batch draw the same, for noise may be meant for the whole batch; stages of a pipeline don't.
    """
    number = key(RandomStream.STEP, config.seed, config.degrees.stage(rank), step)
    # `torch.manual_seed` looks for devices of all kinds, which takes fifty times as long.
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(number)
    seed_others(number)


def seed_others(number: int) -> None:
    """Seed NumPy's and Python's generators, which a user's model may draw from."""
    random.seed(number)
    np.random.seed(number % 2**32)
