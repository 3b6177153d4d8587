"""Draw random numbers for each sample from a hash of (seed, epoch, its index)."""

from __future__ import annotations

import numpy as np

# Draws of augmentation are others than those of anything else that is drawn from the run's seed.
PURPOSE = 0x41554722


def words(seed: int, epoch: int, indices: np.ndarray, count: int) -> np.ndarray:
    """Draw words of 64 even random bits, uint64 [count, samples], by (seed, epoch, index) alone.

    Args:
        seed: the run's seed.
        epoch: the epoch, from 0.
        indices: int64 [samples], the samples' places among all training samples.
        count: how many words each sample gets.
    """
    key = np.zeros(1, dtype=np.uint64)
    for word in (PURPOSE, seed, epoch):
        key = _mix(key ^ np.uint64(word))
    drawn = [_mix(key ^ indices.astype(np.uint64))]
    while len(drawn) < count:
        drawn.append(_mix(drawn[-1]))
    return np.stack(drawn)


def fractions(seed: int, epoch: int, indices: np.ndarray, count: int) -> np.ndarray:
    """Draw numbers from 0 to before 1, float64 [count, samples]; the arguments are those of `words`."""
    return (words(seed, epoch, indices, count) >> np.uint64(11)) * 2.0**-53


def _mix(words: np.ndarray) -> np.ndarray:
    """Scramble words, uint64, so that each bit depends on all: splitmix64 (Steele 2014, figure 14)."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
