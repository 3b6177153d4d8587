"""Decide how many samples of each split and class a stand-in has."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import numpy as np

from src.data.generated.randomness import Stream

LEAST_TRAIN = 2000
LEAST_TEST = 200


def share(fraction: float, train: int) -> Fraction:
    """Return the share of the official splits to write, at least 2,000 training samples or all `train`."""
    return max(Fraction(str(fraction)), min(Fraction(1), Fraction(LEAST_TRAIN, train)))


def scaled(official: int, part: Fraction, least: int = 1) -> int:
    """Return `part` of an official number of samples, rounded up, but at least `least` or all of them."""
    return min(official, max(least, ceil(official * part)))


def spread(total: int, parts: int) -> list[int]:
    """Return `total` divided into `parts` integers that differ by 1 at most."""
    return [total // parts + (place < total % parts) for place in range(parts)]


def labels(stream: Stream, count: int, classes: int, first: int = 0) -> np.ndarray:
    """Draw labels int64 [count] in random order, of which each class has equally many, or one more.

    `first` samples come before them in other files of the split; classes differ by one at most in all
    of them together.
    """
    return stream.shuffled(np.arange(first, first + count, dtype=np.int64) % classes)
