"""Draw random numbers for each sample from a hash of (seed, epoch, its index)."""

from __future__ import annotations

import numpy as np

from src.data.random_streams import RandomStream, key, scramble


def words(seed: int, epoch: int, indices: np.ndarray, count: int) -> np.ndarray:
    """Draw `count` words of 64 even random bits for each sample, uint64 [count, samples].

    They depend on (seed, epoch, index) alone, which are those of `Augmentation`.
    """
    common = np.uint64(key(RandomStream.AUGMENTATION, seed, epoch))
    drawn = [scramble(common ^ indices.astype(np.uint64))]
    while len(drawn) < count:
        drawn.append(scramble(drawn[-1]))
    return np.stack(drawn)


def fractions(seed: int, epoch: int, indices: np.ndarray, count: int) -> np.ndarray:
    """Draw numbers from 0 to before 1, float64 [count, samples]; the arguments are those of `words`."""
    return (words(seed, epoch, indices, count) >> np.uint64(11)) * 2.0**-53
