"""Have what a training step draws at random, as masks of dropout, depend on that step alone."""

from __future__ import annotations

import numpy as np
import torch

from src.config import Config


def seed(config: Config, rank: int, step: int) -> None:
    """Seed torch's generators of random numbers for a step, the first of which is 0.

    Called before each step, a job that goes on from a checkpoint draws what it would have drawn. Ranks that
    share a batch draw the same, for noise may be meant for the whole batch; stages of a pipeline don't.
    numpy's `SeedSequence` mixes the numbers, so that what is drawn for one step says nothing of the next.
    """
    stage = rank // config.data_parallel_degree
    mixed = int(np.random.SeedSequence((config.seed, stage, step)).generate_state(1, np.uint64)[0])
    # `torch.manual_seed` looks for devices of all kinds, which takes fifty times as long.
    torch.default_generator.manual_seed(mixed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(mixed)
