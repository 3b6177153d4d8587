"""Key every stream of random numbers that is drawn from a seed, so that no two draw the same numbers."""

from __future__ import annotations

import hashlib
from enum import Enum

import numpy as np


class RandomStream(Enum):
    """A use of random numbers; its value says what they are drawn for, and by which generator."""

    WEIGHTS = "the model's first weights, by torch's or Keras's; what Keras's layers draw in training, too"
    STEP = "what a torch model draws in a training step, as masks of dropout or Bayesian weights, by torch's"
    COMPRESSION = "PowerSGD's first factors, by numpy's `RandomState`, which torch seeds"
    ORDER = "the order of an epoch's samples, by Philox"
    SYNTHETIC = "images and labels that are made in memory, by Philox"
    ROUNDING = "the directions in which weights are changed by their last digit, by Philox"
    STAND_IN = "the files of a generated dataset, by Philox"
    AUGMENTATION = "how each sample of an epoch is augmented, by `scramble` from its index on"


# Here are the second halves of keys without a place; ORDER has the number of an epoch there.
NO_EPOCHS = {RandomStream.SYNTHETIC: 2**62, RandomStream.ROUNDING: 2**63}
# Sets augmentation's mixtures apart from others that may be made of a seed and an epoch.
AUGMENTED = 0x41554722


def key(stream: RandomStream, seed: int, *place: int | str) -> int:
    """Return the key of a stream's numbers at a place of it, from 0 to before 2**128.

    Args:
        stream: what the numbers are drawn for.
        seed: the run's seed; that of the dataset's generator for SYNTHETIC and STAND_IN.
        place: (stage, step) of STEP, the epoch of ORDER and AUGMENTATION, the name of what is drawn of
            STAND_IN; all are counted from 0.
    """
    if stream in (RandomStream.WEIGHTS, RandomStream.COMPRESSION):
        return seed
    if stream is RandomStream.STEP:
        # Mixed, what is drawn for one step says nothing of the next.
        return int(np.random.SeedSequence((seed, *map(int, place))).generate_state(1, np.uint64)[0])
    if stream is RandomStream.STAND_IN:
        digest = hashlib.sha256(f"{seed} {place[0]}".encode()).digest()
        return int.from_bytes(digest[:16], "little")
    if stream is RandomStream.AUGMENTATION:
        mixture = np.zeros(1, dtype=np.uint64)
        for word in (AUGMENTED, seed, *place):
            mixture = scramble(mixture ^ np.uint64(word))
        return int(mixture[0])
    (second,) = place or (NO_EPOCHS[stream],)
    return seed | int(second) << 64


def philox(stream: RandomStream, seed: int, *place: int | str) -> np.random.Philox:
    """Return the Philox generator that has the `key` of these arguments.

    numpy promises to keep its raw output over versions and platforms, but not what `Generator` makes of it.
    """
    return np.random.Philox(key=key(stream, seed, *place))


def scramble(words: np.ndarray) -> np.ndarray:
    """Scramble words, uint64, so that each bit depends on all: splitmix64 (Steele 2014, figure 14)."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
